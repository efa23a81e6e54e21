"""BatchNorm layers that keep the views of a joint batch apart, in few passes over memory.

The ReLU, residual or simplices that follow a BatchNorm are computed in the same passes. The operators are in
``norm_operators.py``.
"""

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from simplicia.encoders import ResNet
from simplicia.engine.norm_operators import BLOCK, Fork, batch_simplicial, fits, normalise, view_statistics
from simplicia.layers import Adapted, replace_modules
from simplicia.sem import SimplicialEmbedding, Temperature

VIEWS = 2


class PerViewBatchNorm(Adapted):
    """BatchNorm for a batch that holds its views one after the other: each has its own statistics.

    Running statistics move once per view, as if the views had come separately. Written to be compiled: one
    pass for the sums, one to normalise.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        views = x.unflatten(0, (VIEWS, -1)).float()  # (views, N, C, ...)
        spatial = list(range(3, views.ndim))
        dims = [1, *spatial]
        count = views.numel() // (VIEWS * views.shape[2])
        mean = views.mean(dims, keepdim=True)
        variance = (views.square().mean(dims, keepdim=True) - mean.square()).clamp_min(0)
        self._track(mean.detach(), variance.detach(), count)
        shape = [1, 1, -1, *[1] * len(spatial)]
        scale = (variance + self.eps).rsqrt() * self.weight.view(shape)
        shift = self.bias.view(shape) - mean * scale
        return (views * scale + shift).flatten(0, 1).to(x.dtype)

    @torch.no_grad()
    def _track(self: Any, mean: Tensor, variance: Tensor, count: int) -> None:
        unbiased = variance * (count / max(count - 1, 1))
        for view in range(VIEWS):
            for running, now in ((self.running_mean, mean), (self.running_var, unbiased)):
                running.lerp_(now[view].flatten(), self.momentum)
        self.num_batches_tracked.add_(VIEWS)


class PerViewBatchNorm1d(PerViewBatchNorm, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` with statistics per view of a joint batch."""


class PerViewBatchNorm2d(PerViewBatchNorm, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with statistics per view of a joint batch."""


class FusedBatchNorm(PerViewBatchNorm):
    """BatchNorm per view by Triton kernels; falls back to PyTorch for tensors that the kernels do not fit."""

    def __init__(self, norm: Any, relu: bool = False, forks: bool = False):
        super().__init__(norm)
        self.relu = relu  # apply the ReLU that follows
        self.forks = forks  # return the activated output twice, once per consumer
        blocks = triton.cdiv(norm.num_features, BLOCK)
        arrived = torch.zeros(blocks, dtype=torch.int32, device=norm.weight.device)
        self.register_buffer("arrived", arrived, persistent=False)

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.relu:
            return self.activated(x)
        if not (self.training and fits(x)):
            return super().forward(x)
        return normalise(x, self.weight, self.bias, self.statistics(x), self.arrived, None, False)

    def activated(self: Any, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """ReLU(normalised x + residual)."""
        if not (self.training and fits(x, residual)):
            y = super().forward(x)
            return F.relu(y if residual is None else y + residual)
        arguments = x, self.weight, self.bias, self.statistics(x), self.arrived, residual
        twice = self.forks and residual is not None and not torch.compiler.is_compiling()
        return Fork.apply(*arguments) if twice else normalise(*arguments, True)

    def statistics(self: Any, x: Tensor) -> Tensor:
        """The table that ``normalise`` takes; moves the running statistics."""
        running = self.running_mean, self.running_var, self.num_batches_tracked
        arguments = x.detach(), self.weight.detach(), self.bias.detach(), *running, self.arrived
        return view_statistics(*arguments, VIEWS, self.eps, self.momentum)


class FusedBatchNorm1d(FusedBatchNorm, nn.BatchNorm1d):
    pass


class FusedBatchNorm2d(FusedBatchNorm, nn.BatchNorm2d):
    pass


FUSED: dict[type, type[FusedBatchNorm]]
FUSED = {nn.BatchNorm1d: FusedBatchNorm1d, nn.BatchNorm2d: FusedBatchNorm2d}


class FusedSimplicialEmbedding(Adapted, SimplicialEmbedding):
    """A simplicial embedding that computes BatchNorm and softmax in one pass."""

    def centred(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        """The simplices minus 1/V, in the embedder's precision."""
        temperature = self.temperature if temperature is None else temperature
        x = self.embedder(h)
        norm: Any = self.norm
        inverse, scale = None, 1.0
        if isinstance(temperature, Tensor):
            simple = temperature.dim() == 0 or temperature.shape == (len(x), 1, 1)
            simple = simple and not temperature.requires_grad
            inverse = (1 / temperature).float().flatten()
        else:
            simple = temperature >= 1e-4
            scale = 1 / temperature if simple else 0.0
        if not (simple and fits(x)):
            return self(h, temperature) - 1 / self.vertices
        arguments = x, norm.weight, norm.bias, norm.statistics(x)
        return batch_simplicial(*arguments, inverse, scale, self.vertices)[0]


def fuse_norms(module: nn.Module, kept: Collection[int] = ()) -> None:
    """Replace BatchNorms, except those whose ids are ``kept``, by ones that separate views.

    They include the ReLU that follows.
    """
    part: Any
    with_relu, forking = set(), set()
    for part in module.modules():
        if isinstance(part, ResNet):
            forking |= {id(getattr(block, f"bn{block.depth}")) for block in part.blocks()[:-1]}
        if type(part) is nn.Sequential:
            for (_, norm), (name, after) in pairwise(list(part.named_children())):
                if type(norm) in FUSED and id(norm) not in kept and type(after) is nn.ReLU:
                    with_relu.add(id(norm))
                    setattr(part, name, nn.Identity())

    def fused(norm: nn.Module) -> nn.Module:
        if id(norm) in kept:
            return norm
        return FUSED[type(norm)](norm, relu=id(norm) in with_relu, forks=id(norm) in forking)

    replace_modules(module, dict.fromkeys(FUSED, fused))
