"""Batched image operations with one parameter per sample, for float images (N, 3, H, W) in [0, 1].

They agree with torchvision's, and none synchronises with the host.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from simplicia.errors import UserError

Triple = tuple[float, float, float]

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


def _adjust(images: Tensor, factor: Tensor, kind: Tensor) -> Tensor:
    """Brightness, contrast or saturation, as kind (N,) says: factor x + (1 - factor) target, clamped."""
    grey = greyscale(images)
    target = grey * _expand((1 - factor) * (kind == SATURATION))
    target += grey.mean((1, 2, 3), keepdim=True) * _expand((1 - factor) * (kind == CONTRAST))
    return torch.addcmul(target, images, _expand(factor)).clamp_(0, 1)


def _adjust_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue (of HSV) by factor (N,) of the full circle."""
    r, g, b = images.split(1, 1)
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    # The hue in sixths of the circle, times chroma until the division; the hue of grey is arbitrary.
    hue = torch.where(value == g, (b - r).add_(chroma, alpha=2), (r - g).add_(chroma, alpha=4))
    hue = torch.where(value == r, g - b, hue).div_(chroma.clamp(min=1e-12))
    hue = hue.add_(_expand(6 * factor)).remainder_(6)
    # A channel is at value within 1 of its own hue (0, 2 or 4) and at value - chroma from a distance of 2.
    centre = torch.arange(0, 6, 2, device=images.device)[:, None, None]
    fall = (hue - centre).abs_().sub_(3).abs_().sub_(2).clamp_(-1, 0)
    return torch.addcmul(value, chroma, fall)


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


def greyscale(images: Tensor) -> Tensor:
    """The luminance, (N, 1, H, W)."""
    r, g, b = images.split(1, 1)
    return (r * 0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114)


def blur_kernel_size(size: int) -> int:
    """The blur's kernel for images of a size: a tenth of it, odd, at least 3 (23 for 224)."""
    return max(3, size // 10 | 1)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Convolve with Gaussians of sigma (N,), cut to an odd kernel_size, edges mirrored."""
    tap = torch.arange(kernel_size, device=images.device) - kernel_size // 2
    kernel = torch.softmax(-0.5 * (tap / sigma[:, None]) ** 2, 1)
    rows, columns = (_convolution(kernel, tap, extent) for extent in images.shape[2:])
    return _separable(images, rows, columns)


def _convolution(kernel: Tensor, tap: Tensor, extent: int) -> Tensor:
    """Matrices (N, extent, extent) that convolve an axis with kernel (N, K)."""
    pixel = torch.arange(extent, device=kernel.device)
    mirrored = extent - 1 - (extent - 1 - (pixel[:, None, None] + tap[:, None]).abs()).abs()
    return torch.einsum("nk,ikj->nij", kernel, (mirrored == pixel).to(kernel.dtype))


def solarise(images: Tensor, threshold: float) -> Tensor:
    """Invert the values from threshold upwards."""
    return torch.where(images >= threshold, 1 - images, images)


def normalise(images: Tensor, mean: Triple, std: Triple) -> Tensor:
    """Subtract each channel's mean and divide by its std."""
    # Python numbers, not a tensor of them: copying that to the device would wait for the host.
    channels = zip(images.unbind(1), mean, std, strict=True)
    return torch.stack([(channel - m) / s for channel, m, s in channels], 1)


def _expand(parameter: Tensor) -> Tensor:
    return parameter[:, None, None, None]


def eval_view(images: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """The deterministic evaluation view of uint8 images: (N, 3, size, size), normalised.

    Images of that size are not cropped. The short side of others is resized (bicubic, antialiased) to 8/7 of
    size, as 256 is of 224, before a center crop.
    """
    check_images(images)
    check_output(size, mean, std)
    x = images.float() / 255
    height, width = x.shape[2:]
    if (height, width) != (size, size):
        short, resized = min(height, width), round(size * 8 / 7)
        height, width = resized * height // short, resized * width // short
        x = F.interpolate(x, (height, width), mode="bicubic", antialias=True).clamp_(0, 1)
        top, left = round((height - size) / 2), round((width - size) / 2)
        x = x[:, :, top : top + size, left : left + size]
    return normalise(x, mean, std)


def center_crop(images: Tensor, size: int) -> Tensor:
    """Center-crop uint8 images to squares and resize these, as ``image_files.decode`` does with files."""
    height, width = images.shape[2:]
    if (height, width) == (size, size):
        return images
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = images[:, :, top : top + short, left : left + short].float()
    resized = F.interpolate(square, (size, size), mode="bicubic", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def center_crop_squeezed(images: Tensor, aspect_ratios: Tensor) -> Tensor:
    """Center crops of uint8 images that were squeezed to squares, at the same size."""
    size = images.shape[-1]
    share = torch.stack((aspect_ratios, 1 / aspect_ratios), 1).clamp(max=1)  # of height and width
    sides = (size * share).round().clamp(min=1)
    boxes = torch.cat((((size - sides) / 2).floor(), sides), 1).long()
    parts = zip(images.split(256), boxes.split(256), strict=True)
    return torch.cat([(resized_crop(x / 255, box, size) * 255).round().byte() for x, box in parts])


def check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise UserError(f"the images are {given}; they must be torch.uint8 of shape (N, 3, H, W)")


def check_output(size: int, mean: Triple, std: Triple) -> None:
    if size < 2:
        raise UserError(f"the size of a view is {size}; it must be at least 2 pixels")
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise UserError(f"mean is {mean} and std is {std}; each must have 3 entries, those of std above 0")
