"""Linear layers, dense and block-diagonal, and the MLP heads of the methods."""

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


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
        """The layer's output with a weight given, such as a copy in another precision."""
        # views, not copies: a batched product takes strided blocks, (blocks, N, in / blocks)
        parts = x.reshape(-1, self.blocks, self.in_features // self.blocks).transpose(0, 1)
        width = weight.shape[1]
        bias = None if self.bias is None else self.bias.view(self.blocks, 1, width)
        if x.is_cuda and (width % 8 or weight.shape[2] % 8):  # a GPU's matrix units take eights
            across, along = -weight.shape[2] % 8, -width % 8
            parts, weight = F.pad(parts, (0, across)), F.pad(weight, (0, across, 0, along))
            bias = None if bias is None else F.pad(bias, (0, along))
        weight = weight.transpose(1, 2)
        y = torch.bmm(parts, weight) if bias is None else torch.baddbmm(bias, parts, weight)
        return y[..., :width].transpose(0, 1).reshape(*x.shape[:-1], self.out_features)

    def dense_weight(self) -> Tensor:
        """The same weight as one (out_features, in_features) matrix with zeros outside the blocks."""
        return torch.block_diag(*self.weight)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, blocks={self.blocks}, "
            f"bias={self.bias is not None}"
        )


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
    for _ in range(layers - 1):
        first_of_blocks = blocks > 1 and not modules
        modules.append(BlockLinear(width, hidden, blocks) if first_of_blocks else nn.Linear(width, hidden))
        if norm:
            modules.append(nn.BatchNorm1d(hidden))
        modules.append(activation())
        width = hidden
    return nn.Sequential(*modules, nn.Linear(width, out_features))


def activate(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """ReLU of a normalised x, plus a residual; in one go by a norm that knows how (``activated``)."""
    in_one = getattr(norm, "activated", None)
    if in_one is not None:
        return in_one(x, residual)
    y = norm(x)
    return F.relu(y if residual is None else y + residual)


class Prototypes(nn.Module):
    """Scores against learned unit vectors: a weight-normalised linear layer with its gain fixed at 1."""

    def __init__(self, in_features: int, count: int):
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(in_features, count, bias=False).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=1))


class _ByView:
    """BatchNorm for a batch that holds several views one after the other: each has its own statistics.

    Running statistics move once per view, as if the views had come apart. Made to be compiled: one pass for
    the sums, one to normalise.
    """

    views = 2

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:  # type: ignore[attr-defined]
            return super().forward(x)  # type: ignore[misc]
        parts = x.unflatten(0, (self.views, -1)).float()  # (views, N, C, ...)
        spatial = list(range(3, parts.ndim))
        dims = [1, *spatial]
        count = parts.numel() // (self.views * parts.shape[2])
        mean = parts.mean(dims, keepdim=True)
        variance = (parts.square().mean(dims, keepdim=True) - mean.square()).clamp_min(0)
        self._track(mean.detach(), variance.detach(), count)
        shape = [1, 1, -1, *[1] * len(spatial)]
        scale = (variance + self.eps).rsqrt() * self.weight.view(shape)  # type: ignore[attr-defined]
        shift = self.bias.view(shape) - mean * scale  # type: ignore[attr-defined]
        return (parts * scale + shift).flatten(0, 1).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        unbiased = variance * (count / max(count - 1, 1))
        for view in range(self.views):
            for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):  # type: ignore[attr-defined]
                running.lerp_(now[view].flatten(), self.momentum)  # type: ignore[attr-defined]
        self.num_batches_tracked.add_(self.views)  # type: ignore[attr-defined]


class ByView1d(_ByView, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` with statistics of its own for each view of a joint batch."""


class ByView2d(_ByView, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with statistics of its own for each view of a joint batch."""


BY_VIEW: dict[type, type] = {nn.BatchNorm1d: ByView1d, nn.BatchNorm2d: ByView2d}


def normalise_by_view(module: nn.Module) -> None:
    """Make every BatchNorm and codebook of a module tell views apart, in place; names stay."""
    for part in module.modules():
        if type(part) in BY_VIEW:
            part.__class__ = BY_VIEW[type(part)]
        elif hasattr(part, "views"):
            part.views = _ByView.views  # type: ignore[assignment]


def mixes_views(module: nn.Module) -> str | None:
    """The kind of a BatchNorm that ``normalise_by_view`` cannot make tell views apart, if there is one.

    Such are those of many timm models, which have an activation inside.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            tracks = part.affine and part.track_running_stats and part.momentum is not None
            if type(part) not in BY_VIEW or not tracks:
                return type(part).__name__
    return None


def synchronised(module: Module) -> Module:
    """The module with BatchNorms whose statistics are those of all processes together.

    PyTorch's own way would drop the activations that are inside those of timm.
    """
    from timm.layers import convert_sync_batchnorm

    return convert_sync_batchnorm(module)
