"""Random views of a batch of images on their device; each sample has its own random parameters.

The `sample_*` functions draw the parameters, `image_ops` applies them. None synchronises with the host, so
`Views` compiles with `fullgraph=True` and can be captured in a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from simplicia.data.image_ops import (
    Triple,
    blur_kernel_size,
    check_images,
    check_output,
    colour_jitter,
    gaussian_blur,
    greyscale,
    normalise,
    resized_crop,
    solarise,
)
from simplicia.errors import UserError
from simplicia.settings import Formerly, Range, check

Pair = tuple[float, float]


@dataclass
class ViewSettings:
    """The augmentations of a method, as in its paper's table; blur and solarise have one entry per view."""

    crop_scale: Annotated[Pair, "crop area, as a share of the image's", Range(above=0, high=1)] = (0.08, 1.0)
    crop_ratio: Annotated[Pair, "crop width / height", Range(above=0)] = (3 / 4, 4 / 3)
    interpolation: Annotated[Literal["bicubic", "bilinear"], "of resized crops"] = "bicubic"
    brightness: Annotated[float, "largest change, as a share", Range(low=0)] = 0.4
    contrast: Annotated[float, "largest change, as a share", Range(low=0)] = 0.4
    saturation: Annotated[float, "largest change, as a share", Range(low=0)] = 0.2
    hue: Annotated[float, "largest change, as a share of the colour wheel", Range(0, 0.5)] = 0.1
    jitter_prob: Annotated[
        float, "probability of the four colour changes", Range(0, 1), Formerly("jitter")
    ] = 0.8
    grey: Annotated[float, "probability", Range(0, 1)] = 0.2
    blur: Annotated[tuple[float, ...], "probability per view", Range(0, 1)] = (0.0, 0.0)
    blur_sigma: Annotated[Pair, "pixels", Range(above=0)] = (0.1, 2.0)
    solarise: Annotated[tuple[float, ...], "probability per view", Range(0, 1)] = (0.0, 0.2)
    flip: Annotated[float, "probability", Range(0, 1)] = 0.5

    @classmethod
    def crop_flip(cls, crop_scale: Pair = (0.08, 1.0)) -> "ViewSettings":
        """One view with random crops and flips only, as linear probes train on."""
        return cls(crop_scale=crop_scale, jitter_prob=0.0, grey=0.0, blur=(0.0,), solarise=(0.0,))

    def validate(self) -> None:
        """Raise a UserError that names the first setting out of its range."""
        check(self)
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            pair = getattr(self, name)
            if len(pair) != 2 or pair[0] > pair[1]:
                raise UserError(f"{name} is {pair}; it must be (low, high) with low <= high")
        counts = {len(x) if isinstance(x, tuple | list) else 0 for x in (self.blur, self.solarise)}
        if len(counts) > 1 or 0 in counts:
            given = f"blur is {self.blur} and solarise is {self.solarise}"
            raise UserError(f"{given}; each must have one entry per view")


class Views:
    """Random views of images: `Views(settings, size, mean, std)(images)` is a list of normalised batches.

    `images` are (N, 3, H, W) uint8 on any device, a view is (N, 3, size, size) float32. If images were
    squeezed to squares, `aspect_ratios` (N,) are their original width / height.
    Order: crop, colour jitter, grey, blur, solarise, flip, normalise.
    """

    def __init__(self, settings: ViewSettings, size: int, mean: Triple, std: Triple):
        settings.validate()
        check_output(size, mean, std)
        self.settings, self.size, self.mean, self.std = settings, size, mean, std

    def __call__(self, images: Tensor, aspect_ratios: Tensor | None = None) -> list[Tensor]:
        check_images(images)
        # Under autocast the matrix products of crop and blur would round the pixels to a mantissa of 8 bits.
        with torch.autocast(images.device.type, enabled=False):
            x = images.float() / 255
            return [self._view(x, aspect_ratios, view) for view in range(len(self.settings.blur))]

    def _view(self, x: Tensor, aspect_ratios: Tensor | None, view: int) -> Tensor:
        s, size, n, device = self.settings, self.size, len(x), x.device
        boxes = sample_boxes(n, x.shape[2], x.shape[3], s.crop_scale, s.crop_ratio, device, aspect_ratios)
        x = resized_crop(x, boxes, size, s.interpolation)
        if s.jitter_prob > 0 and max(s.brightness, s.contrast, s.saturation, s.hue) > 0:
            x = sometimes(s.jitter_prob, colour_jitter(x, *sample_jitter(n, s, device)), x)
        if s.grey > 0:
            x = sometimes(s.grey, greyscale(x), x)
        if s.blur[view] > 0:
            sigma = _uniform((n,), *s.blur_sigma, device)
            x = sometimes(s.blur[view], gaussian_blur(x, sigma, blur_kernel_size(size)), x)
        if s.solarise[view] > 0:
            x = sometimes(s.solarise[view], solarise(x, 0.5), x)
        if s.flip > 0:
            x = sometimes(s.flip, x.flip(3), x)
        return normalise(x, self.mean, self.std)


# ---- Sampling: parameters of n samples, drawn from torch's default generator of the device.


def sometimes(probability: float, changed: Tensor, images: Tensor) -> Tensor:
    """Each sample changed with a probability; probabilities 0 and 1 are exact."""
    chosen = torch.rand(len(images), device=images.device) < probability
    return torch.where(chosen[:, None, None, None], changed, images)


def sample_boxes(
    n: int,
    height: int,
    width: int,
    scale: Pair,
    ratio: Pair,
    device: torch.device,
    aspect_ratios: Tensor | None = None,
) -> Tensor:
    """Crops (n, 4) of top, left, height, width: area uniform in scale, log(width / height) uniform in ratio.

    A crop larger than the image is redrawn, up to ten times; then it is the largest central crop in ratio.
    The ratio is the one before images were squeezed to squares, given their original aspect_ratios (n,).
    """
    # how much squeezing widened the image
    wider = torch.ones((), device=device) if aspect_ratios is None else width / height / aspect_ratios
    area = height * width * _uniform((n, 10), *scale, device)
    aspect = _uniform((n, 10), math.log(ratio[0]), math.log(ratio[1]), device).exp() * wider.view(-1, 1)
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    valid = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    any_valid, first = valid.any(1), valid.int().argmax(1, keepdim=True)
    h = torch.where(any_valid, h.gather(1, first)[:, 0], (width / ratio[0] / wider).round().clamp(1, height))
    w = torch.where(any_valid, w.gather(1, first)[:, 0], (height * ratio[1] * wider).round().clamp(1, width))
    slack = torch.stack((height - h, width - w))
    # The minimum guards against a random number so close to 1 that the product rounds up.
    corner = torch.minimum((torch.rand(2, n, device=device) * (slack + 1)).floor(), slack)
    top, left = torch.where(any_valid, corner, (slack / 2).floor())
    return torch.stack((top, left, h, w), 1).long()


def sample_jitter(n: int, settings: ViewSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors (n, 4) of brightness, contrast, saturation and hue, and their order (n, 4)."""
    strengths = settings.brightness, settings.contrast, settings.saturation
    factors = [_uniform((n,), max(0.0, 1 - x), 1 + x, device) for x in strengths]
    factors.append(_uniform((n,), -settings.hue, settings.hue, device))
    return torch.stack(factors, 1), torch.rand(n, 4, device=device).argsort(1)


def _uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    return torch.rand(shape, device=device) * (high - low) + low
