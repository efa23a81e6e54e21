"""Convolutions and linear layers that compute, while training, with a 16-bit copy of their weight.

The gradient goes to the copy. The fused update writes the 32-bit weight and the copy in one pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.layers import Adapted, BlockLinear, replace_modules

LARGE = 1 << 22  # numbers in a weight from which special paths pay off


class Copied(Adapted):
    """A layer with a 16-bit copy of its weight."""

    weight: Any  # nn.Parameter, or Tensor as nn.Linear declares it
    half_weight: Tensor

    def __init__(self, original: nn.Module):
        super().__init__(original)
        self.half_weight = self.weight.detach().to(torch.bfloat16).requires_grad_(self.weight.requires_grad)

    @torch.no_grad()
    def refresh(self) -> None:
        """Write the copy again, after the weight was loaded."""
        self.half_weight.copy_(self.weight)


class CopiedConv2d(Copied, nn.Conv2d):
    @property
    def is_product(self) -> bool:
        """Whether to compute it as a product of patches: few channels leave a convolution's units idle."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1 and self.padding_mode == "zeros"
        small = self.in_channels <= 4 and self.kernel_size == (3, 3)
        return plain and small and self.padding in ((1, 1), (2, 2))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if not self.is_product:
            return self._conv_forward(x, self.half_weight, self.bias)
        patches = x if x.shape[1] > self.in_channels else self.patches(x)
        weight = self.half_weight.permute(0, 2, 3, 1).flatten(1)
        weight = F.pad(weight, (0, patches.shape[1] - weight.shape[1]))
        return F.linear(patches.permute(0, 2, 3, 1), weight, self.bias).permute(0, 3, 1, 2)

    def patches(self, x: Tensor) -> Tensor:
        """The receptive field of each output, as channels: 9 per channel, padded to a multiple of 16."""
        p = int(self.padding[0])
        x = F.pad(x.to(self.half_weight.dtype).permute(0, 2, 3, 1), (0, 0, p, p, p, p))
        height, width, channels = x.shape[1] - 2, x.shape[2] - 2, x.shape[3]
        # the offset of each number of a patch in its image; padding meets zero weights
        row, column = (torch.arange(n, device=x.device) for n in (height, width))
        number = torch.arange(9 * channels + -9 * channels % 16, device=x.device) % (9 * channels)
        i, j, channel = number // (3 * channels), number // channels % 3, number % channels
        offset = ((row[:, None, None] + i) * x.shape[2] + column[:, None] + j) * channels + channel
        return x.flatten(1)[:, offset].permute(0, 3, 1, 2)


class CopiedLinear(Copied, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if self.bias is None or self.weight.numel() < LARGE:
            return F.linear(x, self.half_weight, self.bias)
        # Add the bias separately and in 32 bits, so that no compiler fuses it: with a bias, cuBLAS chooses
        # an algorithm that takes a quarter longer for a product of SEM's size.
        y = F.linear(x, self.half_weight)
        return (y + self.bias).to(y.dtype)


class CopiedBlockLinear(Copied, BlockLinear):
    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.half_weight if self.training else self.weight)


def copy_weights(module: nn.Module) -> None:
    """Replace convolutions and linear layers by ones with a 16-bit copy of their weight."""
    kinds = {nn.Conv2d: CopiedConv2d, nn.Linear: CopiedLinear, BlockLinear: CopiedBlockLinear}
    replace_modules(module, kinds)
