"""The fifteen standard corruptions of images at five severities, batched on the images' device.

After Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261. Constants are the published ones for 32-pixel
images (CIFAR-C) and for 224-pixel images (ImageNet-C), and linear in the logarithm of the size in between;
beyond, lengths (radii, shifts) scale with the image. Differences from the published code:

* Each severity is farther from the clean image than the one before. Glass blur, snow, frost, elastic
  transform, pixelate, strong motion blur at 32 pixels and strong fog at 224 have other constants for that.
* Frost is drawn, not photographed; fog and frost are octaves of smooth noise; glass blur copies neighbouring
  pixels instead of swapping them; pixelate's cells have integer sides and are blended in.

So accuracies are close to those on the published files, but not equal.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.errors import UserError, unknown

Numbers = tuple[float, ...]

# name: constants of the severities at 32 pixels and at 224, and which of them are lengths in pixels
# fmt: off
_LADDERS: dict[str, tuple[list[Numbers], list[Numbers], tuple[int, ...]]] = {
    "gaussian_noise": ([(.04,), (.06,), (.08,), (.09,), (.1,)], [(.08,), (.12,), (.18,), (.26,), (.38,)], ()),
    "shot_noise": ([(500,), (250,), (100,), (75,), (50,)], [(60,), (25,), (12,), (5,), (3,)], ()),
    "impulse_noise": ([(.01,), (.02,), (.03,), (.05,), (.07,)], [(.03,), (.06,), (.09,), (.17,), (.27,)], ()),
    # radius, sigma of the antialiasing
    "defocus_blur": ([(.3, .4), (.4, .5), (.5, .6), (1, .2), (1.5, .1)],
                     [(3, .1), (4, .5), (6, .5), (8, .5), (10, .5)], (0, 1)),
    # sigma, reach, share of the pixels moved
    "glass_blur": ([(.3, 1, .2), (.3, 1, .4), (.3, 1, .6), (.3, 1, .8), (.3, 1, 1)],
                   [(.7, 2, .6), (.7, 2, .8), (.7, 3, .9), (.7, 4, 1), (.7, 5, 1)], (0, 1)),
    "motion_blur": ([(6, 1), (6, 1.5), (6, 2), (8, 2.25), (9, 2.5)],  # radius, sigma
                    [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)], (0, 1)),
    "zoom_blur": ([(.06,), (.11,), (.16,), (.21,), (.26,)], [(.11,), (.16,), (.21,), (.26,), (.31,)], ()),
    # mean of the flakes, their enlargement, threshold, share of the colours kept; streak's length, sigma
    "snow": ([(.1, 1.2, .5, .95, 3, 1), (.15, 1.2, .5, .92, 3, 1), (.2, 1.2, .5, .89, 4, 1.2),
              (.25, 1.2, .5, .85, 4, 1.5), (.3, 1.2, .5, .8, 5, 2)],
             [(.1, 3, .5, .8, 10, 4), (.2, 3, .5, .75, 12, 4), (.35, 3, .55, .7, 12, 6),
              (.45, 3, .55, .65, 12, 8), (.55, 3, .55, .55, 12, 12)], (4, 5)),
    "frost": ([(1, .2), (1, .3), (.9, .4), (.85, .45), (.75, .5)],  # weights of image and frost
              [(1, .4), (.8, .6), (.7, .7), (.65, .75), (.6, .8)], ()),
    "fog": ([(.2, 3), (.5, 3), (.75, 2.5), (1, 2), (1.5, 1.75)],  # thickness, decay of the octaves
            [(1.5, 2), (2, 2), (2.5, 1.9), (3, 1.8), (3.5, 1.7)], ()),
    "brightness": ([(.05,), (.1,), (.15,), (.2,), (.3,)], [(.1,), (.2,), (.3,), (.4,), (.5,)], ()),
    "contrast": ([(.75,), (.5,), (.4,), (.3,), (.15,)], [(.4,), (.3,), (.2,), (.1,), (.05,)], ()),
    # shift and its sigma, both in pixels
    "elastic_transform": ([(.8, 2), (1.2, 2), (1.6, 2), (2, 2), (2.6, 2)],
                          [(5, 12), (7, 12), (9, 12), (12, 12), (15, 12)], (0, 1)),
    # side of the cells in pixels, how much they cover
    "pixelate": ([(2, .2), (2, .4), (2, .6), (2, .8), (2, 1)],
                 [(2, .8), (2, 1), (3, .9), (3, 1), (4, 1)], (0,)),
    "jpeg_compression": ([(80,), (65,), (58,), (50,), (40,)], [(25,), (18,), (15,), (10,), (7,)], ()),
}
# JPEG's quantisation steps, annex K of the standard
_LUMINANCE = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99]
_CHROMINANCE = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99] + [99] * 32
# fmt: on


def names() -> list[str]:
    """The corruptions, in the order in which they are usually listed.

    >>> names()[:3]
    ['gaussian_noise', 'shot_noise', 'impulse_noise']
    """
    return list(_LADDERS)


def corrupt(images: Tensor, name: str, severity: int, generator: torch.Generator | None = None) -> Tensor:
    """Images (N, 3, H, W) in [0, 1], corrupted: float32, same shape, in [0, 1].

    ``generator`` is of the images' device; equal generators give equal images.

    >>> corrupt(torch.rand(4, 3, 32, 32), "fog", severity=3).shape
    torch.Size([4, 3, 32, 32])
    """
    if name not in _LADDERS:
        raise unknown("corruption", name, _LADDERS)
    if severity not in (1, 2, 3, 4, 5):
        raise UserError(f"severity is {severity}; it must be a whole number from 1 to 5")
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise ValueError(f"images are {images.dtype} {tuple(images.shape)}; they must be float (N, 3, H, W)")
    function: Callable[..., Tensor] = globals()[f"_{name}"]
    numbers = constants(name, severity, min(images.shape[2:]))
    with torch.autocast(images.device.type, enabled=False):
        return function(images.float(), generator, *numbers).clamp(0, 1)


def constants(name: str, severity: int, size: int) -> Numbers:
    """A corruption's constants for images of a size."""
    small, large, lengths = _LADDERS[name]
    clamped = min(max(size, 32), 224)
    inside, beyond = math.log(clamped / 32) / math.log(224 / 32), size / clamped
    pairs = zip(small[severity - 1], large[severity - 1], strict=True)
    return tuple((a + (b - a) * inside) * (beyond if i in lengths else 1.0) for i, (a, b) in enumerate(pairs))


def _gaussian_noise(x: Tensor, g: Any, sigma: float) -> Tensor:
    return x + sigma * torch.randn(x.shape, device=x.device, generator=g)


def _shot_noise(x: Tensor, g: Any, photons: float) -> Tensor:
    return torch.poisson(x.clamp(min=0) * photons, generator=g) / photons


def _impulse_noise(x: Tensor, g: Any, share: float) -> Tensor:
    drawn = torch.rand(x.shape, device=x.device, generator=g)
    return torch.where(drawn < share / 2, 0.0, torch.where(drawn > 1 - share / 2, 1.0, x))


def _defocus_blur(x: Tensor, g: Any, radius: float, alias: float) -> Tensor:
    reach = max(1, math.ceil(radius + 2 * alias))
    # finer than pixels, so that radii below one pixel are more than a point
    fine = torch.arange(-8 * reach - 4, 8 * reach + 4, device=x.device) / 8 + 1 / 16
    disk = ((fine[:, None] ** 2 + fine**2) <= max(radius, 0.5) ** 2).float()
    kernel = gaussian(F.avg_pool2d(disk[None, None], 8), alias, "constant")
    return _convolve(x, (kernel / kernel.sum()).expand(len(x), -1, -1, -1))


def _glass_blur(x: Tensor, g: Any, sigma: float, reach: float, share: float) -> Tensor:
    x = gaussian(x, sigma)
    n, _, height, width = x.shape
    steps = max(1, round(reach))
    shift = torch.randint(-steps, steps + 1, (2, n, height, width), device=x.device, generator=g)
    shift *= torch.rand((n, height, width), device=x.device, generator=g) < share
    image, row, column = (torch.arange(count, device=x.device) for count in (n, height, width))
    row = (row[:, None] + shift[0]).clamp(0, height - 1)
    column = (column + shift[1]).clamp(0, width - 1)
    moved = x[image[:, None, None], :, row, column].permute(0, 3, 1, 2)
    return gaussian(moved, sigma)


def _motion_blur(x: Tensor, g: Any, radius: float, sigma: float) -> Tensor:
    angle = (torch.rand(len(x), device=x.device, generator=g) - 0.5) * (math.pi / 2)
    return _streak(x, angle, radius, sigma)


def _zoom_blur(x: Tensor, g: Any, most: float) -> Tensor:
    return torch.stack([x, *(_zoom(x, 1 + most * i / 10) for i in range(11))]).mean(0)


def _snow(x: Tensor, g: Any, *constants: float) -> Tensor:
    mean, enlarged, threshold, kept, radius, sigma = constants
    noise = torch.randn((len(x), 1, *x.shape[2:]), device=x.device, generator=g)
    flakes = _zoom(0.3 * noise + mean, enlarged)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    angle = (torch.rand(len(x), device=x.device, generator=g) * 0.5 - 0.75) * math.pi
    flakes = _streak(flakes, angle, radius, sigma)
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    white = torch.maximum(x, grey * 1.5 + 0.5)
    return kept * x + (1 - kept) * white + flakes + flakes.flip(2, 3)


def _frost(x: Tensor, g: Any, image: float, frost: float) -> Tensor:
    """Bright ridges, bluish, where smooth noise crosses its middle: needles of ice."""
    noise = _octaves(x, g, 1.6)
    ridges = (1 - (2 * noise - 1).abs()) ** 3
    tint = torch.tensor([0.80, 0.90, 1.0], device=x.device)[:, None, None]
    return image * x + frost * ridges * tint


def _fog(x: Tensor, g: Any, thickness: float, decay: float) -> Tensor:
    most = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * _octaves(x, g, decay)) * most / (most + thickness)


def _brightness(x: Tensor, g: Any, more: float) -> Tensor:
    value = x.amax(1, keepdim=True)
    brighter = (value + more).clamp(max=1)
    return torch.where(value > 0, x * brighter / value.clamp(min=1e-12), brighter)


def _contrast(x: Tensor, g: Any, factor: float) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _elastic_transform(x: Tensor, g: Any, shift: float, sigma: float) -> Tensor:
    height, width = x.shape[2:]
    field = gaussian(torch.randn((len(x), 2, height, width), device=x.device, generator=g), sigma)
    field = field / field.square().mean((1, 2, 3), keepdim=True).sqrt() * shift  # root mean square, pixels
    scale = torch.tensor([2 / width, 2 / height], device=x.device)
    grid = _grid(x, 1.0) + field.permute(0, 2, 3, 1) * scale
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _pixelate(x: Tensor, g: Any, side: float, covered: float) -> Tensor:
    cell = max(2, round(side))
    cells = F.avg_pool2d(x, cell, ceil_mode=True, count_include_pad=False)
    mosaic = cells.repeat_interleave(cell, 2).repeat_interleave(cell, 3)[:, :, : x.shape[2], : x.shape[3]]
    return torch.lerp(x, mosaic, covered)


def _jpeg_compression(x: Tensor, g: Any, quality: float) -> Tensor:
    return jpeg(x, round(quality))


def gaussian(x: Tensor, sigma: float, mode: str = "reflect") -> Tensor:
    """Images blurred by a Gaussian of sigma pixels, cut at four of them."""
    reach = min(math.ceil(4 * sigma), min(x.shape[2:]) - 1) if sigma > 0 else 0
    if reach == 0:
        return x
    tap = torch.arange(-reach, reach + 1, device=x.device)
    kernel = torch.softmax(-0.5 * (tap / sigma) ** 2, 0)
    flat = F.pad(x.flatten(0, 1)[:, None], (reach,) * 4, mode=mode)
    flat = F.conv2d(F.conv2d(flat, kernel[None, None, None]), kernel[None, None, :, None])
    return flat[:, 0].view_as(x)


def _convolve(x: Tensor, kernels: Tensor) -> Tensor:
    """Each image (C, H, W) with its own kernel (1, k, k), k odd; edges are mirrored."""
    reach = kernels.shape[-1] // 2  # may exceed the image, which F.pad refuses
    rows, columns = (np.pad(np.arange(side), reach, mode="reflect") for side in x.shape[2:])
    padded = x[:, :, rows][:, :, :, columns].flatten(0, 1)[None]
    weights = kernels.repeat_interleave(x.shape[1], 0)
    return F.conv2d(padded, weights, groups=len(weights)).view_as(x)


def _streak(x: Tensor, angle: Tensor, radius: float, sigma: float) -> Tensor:
    """Blurred towards one side at an angle (N,), by half a Gaussian."""
    tap = torch.arange(0, max(1, round(2 * radius)) + 1, device=x.device).float()
    weight = torch.softmax(-0.5 * (tap / sigma) ** 2, 0)
    weight, tap = weight[weight > 1e-3], tap[weight > 1e-3]
    reach = len(tap)
    pixel = torch.arange(-reach, reach + 1, device=x.device)

    def near(place: Tensor) -> Tensor:  # (N, taps, pixels): shares of the two pixels a tap lies between
        return (1 - (pixel - place[:, :, None]).abs()).clamp(min=0)

    rows, columns = near(angle.sin()[:, None] * tap), near(angle.cos()[:, None] * tap)
    kernels = torch.einsum("t,nti,ntj->nij", weight, rows, columns)
    return _convolve(x, (kernels / kernels.sum((1, 2), keepdim=True))[:, None])


def _grid(x: Tensor, zoom: float) -> Tensor:
    turn = torch.tensor([[1 / zoom, 0, 0], [0, 1 / zoom, 0]], device=x.device)
    return F.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)


def _zoom(x: Tensor, zoom: float) -> Tensor:
    """The centre of images, enlarged."""
    return F.grid_sample(x, _grid(x, zoom), padding_mode="reflection", align_corners=False)


def _octaves(x: Tensor, g: Any, decay: float) -> Tensor:
    """Smooth noise (N, 1, H, W) from 0 to 1: each octave twice as fine and 1 / decay as high."""
    total = torch.zeros(len(x), 1, *x.shape[2:], device=x.device)
    for octave in range(1, max(2, math.ceil(math.log2(max(x.shape[2:])))) + 1):
        noise = torch.rand((len(x), 1, 2**octave, 2**octave), device=x.device, generator=g)
        total += F.interpolate(noise, x.shape[2:], mode="bicubic", antialias=True) / decay**octave
    low, high = total.amin((2, 3), keepdim=True), total.amax((2, 3), keepdim=True)
    return (total - low) / (high - low).clamp(min=1e-6)


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Images (N, 3, H, W) in [0, 1] after JPEG of a quality from 1 to 100, colours at half the resolution.

    Batched on the device, without entropy coding, which loses nothing. Tables are scaled as in libjpeg.
    """
    height, width = images.shape[2:]
    padded = F.pad(images * 255, (0, -width % 16, 0, -height % 16), mode="replicate").round()
    r, g, b = padded.split(1, 1)
    luminance = 0.299 * r + 0.587 * g + 0.114 * b
    blue, red = (b - luminance) / 1.772 + 128, (r - luminance) / 1.402 + 128
    luminance = _quantise(luminance.round(), _LUMINANCE, quality)
    blue, red = (_quantise(F.avg_pool2d(c, 2).round(), _CHROMINANCE, quality) for c in (blue, red))
    # like libjpeg's decoder: 3/4 of the nearest colour and 1/4 of the next, which is bilinear
    blue, red = (F.interpolate(c, scale_factor=2, mode="bilinear") - 128 for c in (blue, red))
    r, b = luminance + 1.402 * red, luminance + 1.772 * blue
    g = (luminance - 0.299 * r - 0.114 * b) / 0.587
    return torch.cat([r, g, b], 1)[:, :, :height, :width].round().clamp(0, 255) / 255


def _quantise(channel: Tensor, steps: list[int], quality: int) -> Tensor:
    """Cosine coefficients of a channel (N, 1, H, W), sides multiples of 8, rounded to multiples of steps."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    scaled = [min(max((step * scale + 50) // 100, 1), 255) for step in steps]
    table = torch.tensor(scaled, device=channel.device, dtype=channel.dtype).view(8, 8)
    n, _, height, width = channel.shape
    k = torch.arange(8, device=channel.device, dtype=channel.dtype)
    cosine = torch.cos((2 * k + 1) * k[:, None] * (math.pi / 16)) / 2
    cosine[0] /= math.sqrt(2)  # orthonormal
    blocks = (channel - 128).view(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    coefficients = cosine @ blocks @ cosine.T
    blocks = cosine.T @ ((coefficients / table).round() * table) @ cosine
    return (blocks.transpose(2, 3).reshape(n, 1, height, width) + 128).round().clamp(0, 255)
