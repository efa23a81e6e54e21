"""The loss of JPEG, batched in torch: subsampled colours, cosine transform, quantisation, and back.

There are no files: entropy coding loses nothing. Corrupted sets are made on the device, where a codec would
copy each image to the host and back. The tables are those of the standard's annex K, scaled by quality as in
libjpeg.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# fmt: off
_LUMINANCE = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99]
_CHROMINANCE = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99] + [99] * 32
# fmt: on


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Images (N, 3, H, W) in [0, 1] after JPEG of a quality from 1 to 100, colours at half the resolution."""
    height, width = images.shape[2:]
    padded = F.pad(images * 255, (0, -width % 16, 0, -height % 16), mode="replicate").round()
    r, g, b = padded.split(1, 1)
    luminance = 0.299 * r + 0.587 * g + 0.114 * b
    blue, red = (b - luminance) / 1.772 + 128, (r - luminance) / 1.402 + 128
    luminance = _quantise(luminance.round(), _table(_LUMINANCE, quality, images))
    table = _table(_CHROMINANCE, quality, images)
    blue, red = (_quantise(F.avg_pool2d(c, 2).round(), table) for c in (blue, red))
    # like libjpeg's decoder: 3/4 of the nearest colour and 1/4 of the next, which is bilinear
    blue, red = (F.interpolate(c, scale_factor=2, mode="bilinear") - 128 for c in (blue, red))
    r, b = luminance + 1.402 * red, luminance + 1.772 * blue
    g = (luminance - 0.299 * r - 0.114 * b) / 0.587
    return torch.cat([r, g, b], 1)[:, :, :height, :width].round().clamp(0, 255) / 255


def _table(base: list[int], quality: int, like: Tensor) -> Tensor:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = [min(max((step * scale + 50) // 100, 1), 255) for step in base]
    return torch.tensor(steps, device=like.device, dtype=like.dtype).view(8, 8)


def _quantise(channel: Tensor, table: Tensor) -> Tensor:
    """(N, 1, H, W), sides multiples of 8: cosine coefficients rounded to multiples of the table."""
    n, _, height, width = channel.shape
    k = torch.arange(8, device=channel.device, dtype=channel.dtype)
    cosine = torch.cos((2 * k + 1) * k[:, None] * (math.pi / 16)) / 2
    cosine[0] /= math.sqrt(2)  # orthonormal
    blocks = (channel - 128).view(n, height // 8, 8, width // 8, 8).transpose(2, 3)
    coefficients = cosine @ blocks @ cosine.T
    blocks = cosine.T @ ((coefficients / table).round() * table) @ cosine
    return (blocks.transpose(2, 3).reshape(n, 1, height, width) + 128).round().clamp(0, 255)
