"""BatchNorm per view in few passes over memory: the layers of the captured step.

Made in place from a method's own (``fuse``), with the ReLU, residual or simplices that follow in the same
passes. What they call is in ``norm_operators.py``.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from simplicia.encoders import ResNet
from simplicia.engine.norm_operators import BLOCK, Fork, batch_simplicial, fits, normalise, view_statistics
from simplicia.layers import ByView1d, ByView2d, normalise_by_view
from simplicia.methods.base import Branch, Network
from simplicia.sem import SimplicialEmbedding, Temperature


def fuse(module: nn.Module) -> None:
    """Make every BatchNorm of a module work by view and by these kernels, in place; names and weights stay.

    The ReLU after a BatchNorm joins it, and so does the softmax of a network's simplicial embedding.
    """
    normalise_by_view(module)
    kinds: dict[type, type] = {ByView1d: _Fused1d, ByView2d: _Fused2d}
    part: Any
    for part in module.modules():
        if type(part) in kinds:
            part.__class__ = kinds[type(part)]
            blocks = triton.cdiv(part.num_features, BLOCK)
            arrived = torch.zeros(blocks, dtype=torch.int32, device=part.weight.device)
            part.register_buffer("arrived", arrived, persistent=False)
    for part in module.modules():
        if isinstance(part, ResNet):
            for block in part.blocks()[:-1]:
                block.last_norm.forks = True
        if type(part) is nn.Sequential:
            for norm, after in pairwise(part):
                if isinstance(norm, _Fused) and type(after) is nn.ReLU:
                    norm.relu, after.__class__ = True, nn.Identity  # type: ignore[assignment]
        if type(part) is Network and part.offset:
            sem = part.bottleneck
            if type(sem) is SimplicialEmbedding and isinstance(sem.norm, _Fused1d):
                part.__class__, sem.__class__ = _FusedNetwork, _FusedSimplicial


class _Fused:
    """BatchNorm by view with ReLU and residual in the same pass; plain where the kernels do not fit."""

    relu = False  # True where the ReLU that followed was taken in
    forks = False  # True where the output goes two ways: it is given twice

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.relu:
            return self.activated(x)
        if not (self.training and fits(x)):
            return super().forward(x)  # type: ignore[misc]
        return normalise(x, self.weight, self.bias, self.statistics(x), self.arrived, None, False)

    def activated(self: Any, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """ReLU(normalised x + residual)."""
        if not (self.training and fits(x, residual)):
            y = super().forward(x)  # type: ignore[misc]
            return F.relu(y if residual is None else y + residual)
        given = x, self.weight, self.bias, self.statistics(x), self.arrived, residual
        twice = self.forks and residual is not None and not torch.compiler.is_compiling()
        return Fork.apply(*given) if twice else normalise(*given, True)

    def statistics(self: Any, x: Tensor) -> Tensor:
        """The table that ``normalise`` takes; moves the running statistics."""
        running = self.running_mean, self.running_var, self.num_batches_tracked
        given = x.detach(), self.weight.detach(), self.bias.detach(), *running, self.arrived
        return view_statistics(*given, self.views, self.eps, self.momentum)


class _Fused1d(_Fused, ByView1d):
    pass


class _Fused2d(_Fused, ByView2d):
    pass


class _FusedSimplicial(SimplicialEmbedding):
    """A simplicial embedding whose BatchNorm and softmax are one pass."""

    def centred(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        """The simplices less 1/V, in the embedder's precision."""
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
        given = x, norm.weight, norm.bias, norm.statistics(x)
        return batch_simplicial(*given, inverse, scale, self.vertices)[0]


class _FusedNetwork(Network):
    """A network whose projector gets p - 1/V as it comes from the kernel."""

    def forward(self, images: Tensor, temperature: Temperature | None = None) -> Branch:
        if not self.training:
            return super().forward(images, temperature)
        features = self.features(images)
        sem: Any = self.bottleneck
        centred = sem.centred(features, temperature)
        return Branch(features, centred, self.projector(centred))

    @property
    def missing(self) -> float:  # type: ignore[override]
        return self.offset if self.training else 0.0
