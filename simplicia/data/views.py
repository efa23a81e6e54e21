"""Random views of a batch of images, every sample with its own parameters, on the images' own device.

The `sample_*` functions draw the parameters, the functions of `pixels` apply them. Nothing waits for the
host, so the whole of `Views` can be compiled with `fullgraph=True` or captured in a CUDA graph.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from simplicia.data.pixels import (
    Triple,
    blur_kernel_size,
    colour_jitter,
    flip,
    gaussian_blur,
    greyscale,
    normalise,
    resized_crop,
    solarise,
)

Pair = tuple[float, float]


@dataclass
class ViewSettings:
    """The augmentations of a method, as in its paper's table; blur and solarise have one entry per view."""

    crop_scale: Pair = (0.08, 1.0)  # share of the image's area
    crop_ratio: Pair = (3 / 4, 4 / 3)  # width / height
    interpolation: str = "bicubic"  # or "bilinear"
    brightness: float = 0.4  # largest change, as a share
    contrast: float = 0.4  # largest change, as a share
    saturation: float = 0.2  # largest change, as a share
    hue: float = 0.1  # largest turn, as a share of the colour wheel
    jitter: float = 0.8  # probability of the four colour adjustments above
    grey: float = 0.2  # probability
    blur: tuple[float, ...] = (0.0, 0.0)  # probability per view
    blur_sigma: Pair = (0.1, 2.0)  # pixels
    solarise: tuple[float, ...] = (0.0, 0.2)  # probability per view
    flip: float = 0.5  # probability

    @classmethod
    def crop_flip(cls, crop_scale: Pair = (0.08, 1.0), views: int = 1) -> "ViewSettings":
        """Only random crops and flips: the training views of a linear probe."""
        return cls(crop_scale=crop_scale, jitter=0.0, grey=0.0, blur=(0.0,) * views, solarise=(0.0,) * views)

    def validate(self) -> None:
        """Raise a ValueError that names the first setting out of its range."""
        _check_range("crop_scale", self.crop_scale, most=1.0)
        _check_range("crop_ratio", self.crop_ratio)
        _check_range("blur_sigma", self.blur_sigma)
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"interpolation is {self.interpolation!r}; it must be 'bicubic' or 'bilinear'.")
        for name in ("brightness", "contrast", "saturation"):
            _check_number(name, getattr(self, name))
        _check_number("hue", self.hue, most=0.5)
        for name in ("jitter", "grey", "flip"):
            _check_number(name, getattr(self, name), most=1)
        for name in ("blur", "solarise"):
            if not isinstance(getattr(self, name), tuple | list):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a tuple, one entry per view.")
            for probability in getattr(self, name):
                _check_number(name, probability, most=1)
        if not 0 < len(self.blur) == len(self.solarise):
            given = f"blur is {self.blur} and solarise is {self.solarise}"
            raise ValueError(f"{given}; each must have one entry per view, and there must be a view.")


@dataclass
class LocalCrops:
    """Further, small views (multi-crop), which otherwise share the settings of the large ones."""

    count: int = 6
    size: int = 96
    crop_scale: Pair = (0.05, 0.25)
    blur: float = 0.5  # probability
    solarise: float = 0.0  # probability


class Views:
    """Random views of images: `Views(settings, size, mean, std)(images)` is a list of normalised batches.

    `images` are (N, 3, H, W) uint8 on any device, a view is (N, 3, size, size) float32; local crops are last.
    Where they are pictures of other shapes, brought to that one, `aspects` (N,) are the pictures' widths over
    heights. Order: crop, colour jitter, grey, blur, solarise, flip, normalise.
    """

    def __init__(
        self, settings: ViewSettings, size: int, mean: Triple, std: Triple, local: LocalCrops | None = None
    ):
        self.mean, self.std = mean, std
        self.groups = [(settings, size)]
        if local is not None:
            blur, solarise = (local.blur,) * local.count, (local.solarise,) * local.count
            small = replace(settings, crop_scale=local.crop_scale, blur=blur, solarise=solarise)
            self.groups.append((small, local.size))
        for group, group_size in self.groups:
            group.validate()
            _check_output(group_size, mean, std)

    def __call__(self, images: Tensor, aspects: Tensor | None = None) -> list[Tensor]:
        _check_images(images)
        # Under autocast the matrix products of crop and blur would round the pixels to a mantissa of 8 bits.
        with torch.autocast(images.device.type, enabled=False):
            x = images.float() / 255
            return [self._view(x, aspects, s, size, i) for s, size in self.groups for i in range(len(s.blur))]

    def _view(self, x: Tensor, aspects: Tensor | None, s: ViewSettings, size: int, view: int) -> Tensor:
        n, device = len(x), x.device
        boxes = sample_boxes(n, x.shape[2], x.shape[3], s.crop_scale, s.crop_ratio, device, aspects)
        x = resized_crop(x, boxes, size, s.interpolation)
        if s.jitter > 0 and max(s.brightness, s.contrast, s.saturation, s.hue) > 0:
            x = colour_jitter(x, *sample_jitter(n, s, device), sample_apply(n, s.jitter, device))
        if s.grey > 0:
            x = greyscale(x, sample_apply(n, s.grey, device))
        if s.blur[view] > 0:
            sigma = _uniform((n,), *s.blur_sigma, device)
            x = gaussian_blur(x, sigma, blur_kernel_size(size), sample_apply(n, s.blur[view], device))
        if s.solarise[view] > 0:
            x = solarise(x, 0.5, sample_apply(n, s.solarise[view], device))
        if s.flip > 0:
            x = flip(x, sample_apply(n, s.flip, device))
        return normalise(x, self.mean, self.std)


def eval_view(images: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """The deterministic view for evaluation of uint8 images: (N, 3, size, size), normalised.

    Images of that very size are left whole. Others are resized (bicubic, antialiased) until the short side is
    8/7 of size, as 256 is of 224, and the centre is cut out.
    """
    _check_images(images)
    _check_output(size, mean, std)
    x = images.float() / 255
    height, width = x.shape[2:]
    if (height, width) != (size, size):
        short, resized = min(height, width), round(size * 8 / 7)
        height, width = resized * height // short, resized * width // short
        x = F.interpolate(x, (height, width), mode="bicubic", antialias=True).clamp_(0, 1)
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = x[:, :, top : top + size, left : left + size]
    return normalise(x, mean, std)


def squares(images: Tensor, size: int) -> Tensor:
    """The centre squares of uint8 images, brought to a size: of tensors what ``decode`` gives of files."""
    height, width = images.shape[2:]
    if (height, width) == (size, size):
        return images
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = images[:, :, top : top + short, left : left + short].float()
    resized = F.interpolate(square, (size, size), mode="bicubic", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def centre_squares(images: Tensor, aspects: Tensor) -> Tensor:
    """The centre squares of pictures that were brought to squares: uint8 of the same size."""
    size = images.shape[-1]
    narrow = torch.stack((aspects, 1 / aspects), 1).clamp(max=1)  # of the height and of the width
    kept = (size * narrow).round().clamp(min=1)
    boxes = torch.cat((((size - kept) / 2).floor(), kept), 1).long()
    parts = zip(images.split(256), boxes.split(256), strict=True)
    return torch.cat([(resized_crop(x / 255, box, size) * 255).round().byte() for x, box in parts])


# ---- Sampling: parameters of n samples, from torch's default generator of the device.


def sample_apply(n: int, probability: float, device: torch.device) -> Tensor:
    """Which samples an operation applies to, (n,) bool; probabilities 0 and 1 are exact."""
    return torch.rand(n, device=device) < probability


def sample_boxes(
    n: int,
    height: int,
    width: int,
    scale: Pair,
    ratio: Pair,
    device: torch.device,
    aspects: Tensor | None = None,
) -> Tensor:
    """Crops (n, 4) of top, left, height, width: area uniform in scale, log(width / height) uniform in ratio.

    A crop larger than the image is drawn again, up to ten draws; then it is the largest central one in ratio.
    The ratio is that in the pictures, of which images may be squeezed: aspects (n,) are their width / height.
    """
    # how much wider than in the picture things are in the image
    wider = torch.ones((), device=device) if aspects is None else width / height / aspects
    area = height * width * _uniform((n, 10), *scale, device)
    aspect = _uniform((n, 10), math.log(ratio[0]), math.log(ratio[1]), device).exp() * wider.view(-1, 1)
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    valid = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    found, first = valid.any(1), valid.int().argmax(1, keepdim=True)
    h = torch.where(found, h.gather(1, first)[:, 0], (width / ratio[0] / wider).round().clamp(1, height))
    w = torch.where(found, w.gather(1, first)[:, 0], (height * ratio[1] * wider).round().clamp(1, width))
    room = torch.stack((height - h, width - w))
    # The minimum guards against a random number so close to 1 that the product rounds up.
    corner = torch.minimum((torch.rand(2, n, device=device) * (room + 1)).floor(), room)
    top, left = torch.where(found, corner, (room / 2).floor())
    return torch.stack((top, left, h, w), 1).long()


def sample_jitter(n: int, settings: ViewSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors (n, 4) of brightness, contrast, saturation and hue, and their order (n, 4)."""
    strengths = settings.brightness, settings.contrast, settings.saturation
    factors = [_uniform((n,), max(0.0, 1 - x), 1 + x, device) for x in strengths]
    factors.append(_uniform((n,), -settings.hue, settings.hue, device))
    return torch.stack(factors, 1), torch.rand(n, 4, device=device).argsort(1)


def _uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    return torch.rand(shape, device=device) * (high - low) + low


# ---- Checks.


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise ValueError(f"The images are {given}; they must be torch.uint8 of shape (N, 3, H, W).")


def _check_output(size: int, mean: Triple, std: Triple) -> None:
    if size < 2:
        raise ValueError(f"The size of a view is {size}; it must be at least 2 pixels.")
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ValueError(f"mean is {mean} and std is {std}; each must have 3 entries, those of std above 0.")


def _check_range(name: str, pair: Pair, most: float = math.inf) -> None:
    if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most or pair[1] == math.inf:
        raise ValueError(f"{name} is {pair}; it must be (low, high) with 0 < low <= high <= {most}.")


def _check_number(name: str, number: float, most: float = math.inf) -> None:
    if not 0 <= number <= most or number == math.inf:
        raise ValueError(f"{name} is {number}; it must be between 0 and {most}.")
