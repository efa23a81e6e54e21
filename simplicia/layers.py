"""Layers of encoders and heads: block-diagonal linear ones, MLPs, prototypes, synchronised BatchNorm."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.distributed import average, gather, world_size


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
    """Linear, (BatchNorm,) activation, repeated, and a last Linear.

    >>> [type(layer).__name__ for layer in mlp(8, 16, 4)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
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


class Adapted(nn.Module):
    """Base of layers that replace another one.

    Built from the original as a shallow copy: the same settings and the very same parameters, buffers and
    children, so an optimiser that holds them stays valid.
    """

    def __init__(self, original: nn.Module):
        for name, value in vars(original).items():
            vars(self)[name] = copy.copy(value) if isinstance(value, dict | set) else value


def replace_modules(module: nn.Module, replacements: Mapping[type, Callable[[Any], nn.Module]]) -> None:
    """Replace all submodules of exactly these types, in place, under the same names.

    A replacement copies its original's table of children: replace inner modules before outer ones.
    """
    replaced: dict[int, nn.Module] = {}  # by the original's id: a shared module stays shared
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) in replacements:
                if id(child) not in replaced:
                    replaced[id(child)] = replacements[type(child)](child)
                setattr(parent, name, replaced[id(child)])


class SynchronisedBatchNorm(Adapted, nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the batch of all processes, on any device; each has the same number of samples."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            y, mean, variance = _normalise(x, self.weight, self.bias, self.eps)
            self._track(mean, variance, world_size() * x.numel() // x.shape[1])
        else:
            running = self.running_mean, self.running_var
            y = F.batch_norm(x, *running, self.weight, self.bias, running[0] is None, 0.0, self.eps)
        for name in ("drop", "act", "aa"):  # what timm's norms apply to their output
            if name in self._modules:
                y = self._modules[name](y)  # type: ignore[misc]
        return y

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the statistics of all processes' samples."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, ...]:
        variance, mean = torch.var_mean(_wide(x), _samples(x), correction=0)
        means, variances = gather(torch.stack([mean, variance])[None]).unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        shape, wide = [1, -1, *[1] * (x.ndim - 2)], _wide(grad)
        normalised = (_wide(x) - mean.view(shape)) * inverse.view(shape)
        sums = torch.stack([wide.sum(_samples(x)), (wide * normalised).sum(_samples(x))])
        shift, slope = (average(sums) / (x.numel() // x.shape[1])).view(2, *shape).unbind()
        scale = inverse if weight is None else inverse * weight
        moved = (wide - shift - normalised * slope) * scale.view(shape)
        # DDP averages the gradients of weight and bias
        own = (None, None) if weight is None else (sums[1].to(weight.dtype), sums[0].to(weight.dtype))
        return moved.to(x.dtype), *own, None


@torch._disable_dynamo  # it has collectives; torch.compiler.disable would import the compiler
def _normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _Normalise.apply(x, weight, bias, eps)


def _samples(x: Tensor) -> list[int]:
    """The dimensions of (N, C, ...) that a norm averages over."""
    return [0, *range(2, x.ndim)]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def synchronise_norms(module: nn.Module) -> None:
    """Replace BatchNorms, in place, by ones that share their statistics between processes."""
    norms = {type(part) for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)}
    replace_modules(module, dict.fromkeys(norms, SynchronisedBatchNorm))
