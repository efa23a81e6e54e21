"""Views of a batch of images: random ones for training, deterministic ones for evaluation.

Each sample has its own random parameters: the `sample_*` functions draw them, and the operations, which agree
with torchvision's, apply them to float images (N, 3, H, W) in [0, 1]. None synchronises with the host, so
`Views` compiles with `fullgraph=True` and can be captured in a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from simplicia.distributed import drawn
from simplicia.errors import UserError
from simplicia.settings import Formerly, Range, check

Pair = tuple[float, float]
Triple = tuple[float, float, float]


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
    squeezed to squares, `aspect_ratios` (N,) are their original width / height. Views that are cropped
    already, (N, views, 3, size, size), get the other changes.
    """

    def __init__(self, settings: ViewSettings, size: int, mean: Triple, std: Triple):
        settings.validate()
        check_output(size, mean, std)
        self.settings, self.size, self.mean, self.std = settings, size, mean, std

    def __call__(self, images: Tensor, aspect_ratios: Tensor | None = None) -> list[Tensor]:
        # Under autocast the matrix products of crop and blur would round the pixels to a mantissa of 8 bits.
        with torch.autocast(images.device.type, enabled=False):
            is_cropped = images.ndim == 5
            count = len(self.settings.blur)
            views = [to_float(x) for x in images.unbind(1)] if is_cropped else [to_float(images)] * count
            return [self._view(x, aspect_ratios, i, is_cropped) for i, x in enumerate(views)]

    def _view(self, x: Tensor, aspect_ratios: Tensor | None, view: int, is_cropped: bool) -> Tensor:
        s, n, device = self.settings, len(x), x.device
        if not is_cropped:
            boxes = sample_boxes(n, x.shape[2], x.shape[3], s.crop_scale, s.crop_ratio, device, aspect_ratios)
            x = resized_crop(x, boxes, self.size, s.interpolation)
        if s.jitter_prob > 0 and max(s.brightness, s.contrast, s.saturation, s.hue) > 0:
            x = sometimes(s.jitter_prob, colour_jitter(x, *sample_jitter(n, s, device)), x)
        if s.grey > 0:
            x = sometimes(s.grey, greyscale(x), x)
        if s.blur[view] > 0:
            sigma = _uniform((n,), *s.blur_sigma, device)
            kernel_size = max(3, self.size // 10 | 1)  # a tenth of the image, odd: 23 for 224
            x = sometimes(s.blur[view], gaussian_blur(x, sigma, kernel_size), x)
        if s.solarise[view] > 0:
            x = sometimes(s.solarise[view], torch.where(x >= 0.5, 1 - x, x), x)
        if s.flip > 0:
            x = sometimes(s.flip, x.flip(3), x)
        return normalise(x, self.mean, self.std)


# ---- Sampling from torch's default generator of the device, for the images of all processes.


def sometimes(probability: float, changed: Tensor, images: Tensor) -> Tensor:
    """Each sample changed with a probability; probabilities 0 and 1 are exact."""
    chosen = _rand(len(images), device=images.device) < probability
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
    corner = torch.minimum((_rand(2, n, device=device, dim=1) * (slack + 1)).floor(), slack)
    top, left = torch.where(any_valid, corner, (slack / 2).floor())
    return torch.stack((top, left, h, w), 1).long()


def sample_jitter(n: int, settings: ViewSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors (n, 4) of brightness, contrast, saturation and hue, and their order (n, 4)."""
    strengths = settings.brightness, settings.contrast, settings.saturation
    factors = [_uniform((n,), max(0.0, 1 - x), 1 + x, device) for x in strengths]
    factors.append(_uniform((n,), -settings.hue, settings.hue, device))
    return torch.stack(factors, 1), _rand(n, 4, device=device).argsort(1)


def _uniform(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    return _rand(*shape, device=device) * (high - low) + low


def _rand(*shape: int, device: torch.device, dim: int = 0) -> Tensor:
    """Numbers from 0 to 1 for this process's images, which are counted along ``dim``."""
    before, after = shape[:dim], shape[dim + 1 :]
    return drawn(lambda n: torch.rand(*before, n, *after, device=device), shape[dim], dim)


# ---- Operations.

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the codes in the `order` of colour_jitter


def resized_crop(images: Tensor, boxes: Tensor, size: int, interpolation: str = "bicubic") -> Tensor:
    """Crop boxes (N, 4) of top, left, height, width and resize them, antialiased, to size x size.

    Clamped to [0, 1], because bicubic weights overshoot.
    """
    top, left, height, width = boxes.unbind(1)
    rows = _resize_weights(top, height, size, images.shape[2], interpolation)
    columns = _resize_weights(left, width, size, images.shape[3], interpolation)
    return _separable(images, rows, columns).clamp_(0, 1)


def _resize_weights(start: Tensor, length: Tensor, size: int, extent: int, interpolation: str) -> Tensor:
    """Matrices (N, size, extent) that take an axis to its part start : start + length, resized to size."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    source = torch.arange(extent, device=start.device) - start
    target = torch.arange(size, device=start.device)[:, None]
    # Antialiasing widens the filter when the crop shrinks; when it grows the filter keeps its width.
    d = ((source + 0.5) - (target + 0.5) * scale).abs_().div_(scale.clamp(min=1))
    if interpolation == "bilinear":
        weights = (1 - d).clamp_(min=0)
    else:  # Keys' cubic, a = -1/2
        d.clamp_(max=2)
        weights = torch.where(d < 1, (1.5 * d - 2.5) * d * d + 1, (1 - d) * (2 - d) * (1 - d / 2))
    weights *= (source >= 0) & (source < length)
    return weights.div_(weights.sum(2, keepdim=True))


def _separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images with rows (N, h, H) applied to their height and columns (N, w, W) to their width.

    On a GPU, large images use 16-bit products, whose rounding error is below that of 8-bit pixels.
    """
    dtype = images.dtype
    if images.is_cuda and max(images.shape[2:]) >= 64:
        images, rows, columns = images.half(), rows.half(), columns.half()
    return (rows[:, None] @ (images.flatten(1, 2) @ columns.mT).unflatten(1, images.shape[1:3])).to(dtype)


def colour_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue by factors (N, 4), in each sample's own order.

    Each row of order (N, 4) is a permutation of 0 to 3. One pass of `_adjust` serves samples at different
    adjustments. Hue costs most and is computed once, with three passes before and after it; in those on the
    wrong side of its hue, a sample has factor 1.
    """
    turns = torch.arange(4, device=images.device)
    hue_turn = (order == HUE).int().argmax(1, keepdim=True)
    ordered = factors.gather(1, order)
    before, after = torch.where(turns < hue_turn, ordered, 1), torch.where(turns > hue_turn, ordered, 1)
    for turn in (0, 1, 2):
        images = _adjust(images, before[:, turn], order[:, turn])
    images = _adjust_hue(images, factors[:, HUE])
    for turn in (1, 2, 3):
        images = _adjust(images, after[:, turn], order[:, turn])
    return images


def _adjust(images: Tensor, factor: Tensor, kind: Tensor) -> Tensor:
    """Brightness, contrast or saturation, as kind (N,) says: factor x + (1 - factor) target, clamped."""
    factor, kind, grey = factor[:, None, None, None], kind[:, None, None, None], greyscale(images)
    target = grey * ((1 - factor) * (kind == SATURATION))
    target += grey.mean((1, 2, 3), keepdim=True) * ((1 - factor) * (kind == CONTRAST))
    return torch.addcmul(target, images, factor).clamp_(0, 1)


def _adjust_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue (of HSV) by factor (N,) of the full circle."""
    r, g, b = images.split(1, 1)
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    # The hue in sixths of the circle, times chroma until the division; the hue of grey is arbitrary.
    hue = torch.where(value == g, (b - r).add_(chroma, alpha=2), (r - g).add_(chroma, alpha=4))
    hue = torch.where(value == r, g - b, hue).div_(chroma.clamp(min=1e-12))
    hue = hue.add_(6 * factor[:, None, None, None]).remainder_(6)
    # A channel is at value within 1 of its own hue (0, 2 or 4) and at value - chroma from a distance of 2.
    centre = torch.arange(0, 6, 2, device=images.device)[:, None, None]
    fall = (hue - centre).abs_().sub_(3).abs_().sub_(2).clamp_(-1, 0)
    return torch.addcmul(value, chroma, fall)


def greyscale(images: Tensor) -> Tensor:
    """The luminance, (N, 1, H, W)."""
    r, g, b = images.split(1, 1)
    return (r * 0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Convolve with Gaussians of sigma (N,), cut to an odd kernel_size, edges mirrored."""
    tap = torch.arange(kernel_size, device=images.device) - kernel_size // 2
    kernel = torch.softmax(-0.5 * (tap / sigma[:, None]) ** 2, 1)
    matrices = []  # (N, extent, extent): the convolution of rows, and of columns
    for extent in images.shape[2:]:
        pixel = torch.arange(extent, device=images.device)
        mirrored = extent - 1 - (extent - 1 - (pixel[:, None, None] + tap[:, None]).abs()).abs()
        matrices.append(torch.einsum("nk,ikj->nij", kernel, (mirrored == pixel).to(kernel.dtype)))
    return _separable(images, *matrices)


def normalise(images: Tensor, mean: Triple, std: Triple) -> Tensor:
    """Subtract each channel's mean and divide by its std."""
    # Python numbers, not a tensor of them: copying that to the device would wait for the host.
    channels = zip(images.unbind(1), mean, std, strict=True)
    return torch.stack([(channel - m) / s for channel, m, s in channels], 1)


# ---- Evaluation: without randomness.


def eval_view(images: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """The deterministic evaluation view of images, uint8 or from 0 to 1: (N, 3, size, size), normalised.

    Images of that size are not cropped. The short side of others is resized (bicubic, antialiased) to 8/7 of
    size, as 256 is of 224, before a center crop.
    """
    check_output(size, mean, std)
    x = images if images.is_floating_point() else to_float(images)
    height, width = x.shape[2:]
    if (height, width) != (size, size):
        short, resized = min(height, width), round(size * 8 / 7)
        height, width = resized * height // short, resized * width // short
        x = F.interpolate(x, (height, width), mode="bicubic", antialias=True).clamp_(0, 1)
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = x[:, :, top : top + size, left : left + size]
    return normalise(x, mean, std)


def center_crop(images: Tensor, size: int) -> Tensor:
    """Center-crop images to squares and resize these, as ``image_files.decode`` does with files.

    uint8 images stay uint8, floats from 0 to 1 keep their precision.
    """
    height, width = images.shape[2:]
    if (height, width) == (size, size):
        return images
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = images[:, :, top : top + short, left : left + short].float()
    resized = F.interpolate(square, (size, size), mode="bicubic", antialias=True)
    if images.is_floating_point():
        return resized.clamp(0, 1)
    return resized.round().clamp(0, 255).to(torch.uint8)


def center_crop_squeezed(images: Tensor, aspect_ratios: Tensor) -> Tensor:
    """Center crops of uint8 images that were squeezed to squares, at the same size."""
    size = images.shape[-1]
    share = torch.stack((aspect_ratios, 1 / aspect_ratios), 1).clamp(max=1)  # of height and width
    sides = (size * share).round().clamp(min=1)
    boxes = torch.cat((((size - sides) / 2).floor(), sides), 1).long()
    parts = zip(images.split(256), boxes.split(256), strict=True)
    return torch.cat([(resized_crop(x / 255, box, size) * 255).round().byte() for x, box in parts])


def to_float(images: Tensor) -> Tensor:
    """uint8 images with values in [0, 1]."""
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise UserError(f"the images are {given}; they must be torch.uint8 of shape (N, 3, H, W)")
    return images.to(torch.get_default_dtype()) / 255


def check_output(size: int, mean: Triple, std: Triple) -> None:
    if size < 2:
        raise UserError(f"the size of a view is {size}; it must be at least 2 pixels")
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise UserError(f"mean is {mean} and std is {std}; each must have 3 entries, those of std above 0")
