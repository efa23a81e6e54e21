"""Linear layers, dense and block-diagonal, and the MLP heads of the methods."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BlockLinear(nn.Module):
    """A linear layer whose weight is block-diagonal: one batched product of ``blocks`` small matrices.

    Each block is initialised like its own ``nn.Linear``.
    """

    def __init__(self, in_features: int, out_features: int, blocks: int, bias: bool = True):
        super().__init__()
        if blocks < 1 or in_features % blocks or out_features % blocks:
            raise ValueError(
                f"{blocks} blocks do not divide {in_features} inputs and {out_features} outputs; "
                f"{math.gcd(in_features, out_features)} and its divisors do"
            )
        self.in_features, self.out_features, self.blocks = in_features, out_features, blocks
        self.weight = nn.Parameter(torch.empty(blocks, out_features // blocks, in_features // blocks))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (self.in_features // self.blocks) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the layer with a given weight, such as a copy in another precision."""
        # views, not copies: a batched product takes strided blocks, (blocks, N, in / blocks)
        parts = x.reshape(-1, self.blocks, self.in_features // self.blocks).transpose(0, 1)
        width = weight.shape[1]
        bias = None if self.bias is None else self.bias.view(self.blocks, 1, width)
        if x.is_cuda and (width % 8 or weight.shape[2] % 8):  # matrix units of a GPU take multiples of eight
            across, along = -weight.shape[2] % 8, -width % 8
            parts, weight = F.pad(parts, (0, across)), F.pad(weight, (0, across, 0, along))
            bias = None if bias is None else F.pad(bias, (0, along))
        weight = weight.transpose(1, 2)
        y = torch.bmm(parts, weight) if bias is None else torch.baddbmm(bias, parts, weight)
        return y[..., :width].transpose(0, 1).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, blocks={self.blocks}"
        return f"{sizes}, bias={self.bias is not None}"


def mlp(
    in_features: int,
    hidden: int,
    out_features: int,
    layers: int = 2,
    norm: bool = True,
    activation: type[nn.Module] = nn.ReLU,
    blocks: int = 1,  # of the first layer, to follow a block-diagonal embedder
) -> nn.Sequential:
    """Linear, (BatchNorm,) activation, repeated, and a last Linear."""
    modules: list[nn.Module] = []
    width = in_features
    for i in range(layers - 1):
        is_blocks = i == 0 and blocks > 1
        modules.append(BlockLinear(width, hidden, blocks) if is_blocks else nn.Linear(width, hidden))
        modules += [nn.BatchNorm1d(hidden), activation()] if norm else [activation()]
        width = hidden
    return nn.Sequential(*modules, nn.Linear(width, out_features))


def activate(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """ReLU(norm(x) + residual). A norm with ``activated`` computes all of it in one pass."""
    activated = getattr(norm, "activated", None)
    if activated is not None:
        return activated(x, residual)
    return F.relu(norm(x) if residual is None else norm(x) + residual)


class Prototypes(nn.Module):
    """Scores against learned unit vectors: a weight-normalised linear layer with its gain fixed at 1."""

    def __init__(self, in_features: int, count: int):
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(in_features, count, bias=False).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=1))


def synchronised(module: nn.Module) -> Any:
    """Return the module with BatchNorms that share their statistics between processes.

    timm's conversion keeps the activations inside its BatchNorms; PyTorch's would drop them.
    """
    from timm.layers import convert_sync_batchnorm

    return convert_sync_batchnorm(module)
