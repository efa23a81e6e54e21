"""Modules that take both views of a batch at once, and ``join_views``, which makes a method use them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from simplicia.bottlenecks.vq import VectorQuantised
from simplicia.engine import batch_norms, is_replaceable
from simplicia.engine.norm import (
    VIEWS,
    FusedBatchNorm1d,
    FusedSimplicialEmbedding,
    PerViewBatchNorm,
    fuse_norms,
)
from simplicia.errors import UserError
from simplicia.layers import Adapted, replace_modules
from simplicia.methods.base import Branch, Method, Network
from simplicia.sem import SimplicialEmbedding, Temperature

Encode = Callable[[nn.Module, Tensor], Tensor]


def join_views(method: Method) -> None:
    """Make a method's networks and heads take both views in one batch: half as many launches, twice as large.

    Replaces modules in place; parameters, buffers and names stay. An encoder with a BatchNorm that cannot be
    replaced stays as it is, and takes one view after the other.
    """
    encoders = [part.encoder for part in method.modules() if isinstance(part, Network)]
    apart = [encoder for encoder in encoders if not all(map(is_replaceable, batch_norms(encoder)))]
    fuse_norms(method, {id(norm) for encoder in apart for norm in batch_norms(encoder)})
    replace_modules(method, {VectorQuantised: JointVectorQuantised})
    replace_modules(method, {Network: JointNetwork})
    for name, head in list(method.named_children()):
        if type(head) is nn.Sequential:
            setattr(method, name, JointSequential(head))


def encode_views(encoder: nn.Module, images: Tensor, encode: Encode = nn.Module.__call__) -> Tensor:
    """An encoder's output for both views: in one batch if its norms separate them, else one at a time."""
    if all(isinstance(norm, PerViewBatchNorm) for norm in batch_norms(encoder)):
        return encode(encoder, images)
    return torch.cat([encode(encoder, view) for view in images.chunk(VIEWS)])


class JointNetwork(Adapted, Network):
    """A network that takes both views in one batch."""

    def __init__(self, network: Network):
        super().__init__(network)
        self.encoded: Tensor | None = None  # the encoder's output, while a step runs the encoders itself
        sem = network.bottleneck
        if network.offset and type(sem) is SimplicialEmbedding and isinstance(sem.norm, FusedBatchNorm1d):
            self.bottleneck = sem if sem.hard else FusedSimplicialEmbedding(sem)

    def apply_jointly(self, inputs: list[Tensor], *temperatures: Temperature | None) -> list[Branch]:
        features = encode_views(self.encoder, torch.cat(inputs)) if self.encoded is None else self.encoded
        embedding = self.embed(features, self._joint_temperature(features, temperatures))
        outputs = features, embedding, self.projector(embedding)
        per_view = zip(*(output.chunk(VIEWS) for output in outputs), strict=True)
        return [Branch(*view)._replace(penalty=self.bottleneck.penalty) for view in per_view]

    def embed(self, features: Tensor, temperature: Temperature | None = None) -> Tensor:
        if self.training and isinstance(self.bottleneck, FusedSimplicialEmbedding):
            return self.bottleneck.centred(features, temperature)
        return super().embed(features, temperature)

    def forward(self, images: Tensor, temperature: Temperature | None = None) -> Branch:
        _check_one_view(self)
        return super().forward(images, temperature)

    def _joint_temperature(
        self, features: Tensor, temperatures: tuple[Temperature | None, ...]
    ) -> Temperature | None:
        """The views' temperatures as one column; None if all views use the bottleneck's."""
        if len(set(temperatures)) == 1:
            return temperatures[0]
        own = getattr(self.bottleneck, "temperature", 1.0)
        ones = torch.ones(len(features) // VIEWS, 1, 1, device=features.device)
        return torch.cat([ones * (own if t is None else t) for t in temperatures])


class JointSequential(Adapted, nn.Sequential):
    """A head that takes both views in one batch."""

    def apply_jointly(self, inputs: list[Tensor]) -> list[Tensor]:
        return list(super().forward(torch.cat(inputs)).chunk(VIEWS))

    def forward(self, x: Tensor) -> Tensor:
        _check_one_view(self)
        return super().forward(x)


class JointVectorQuantised(Adapted, VectorQuantised):
    """A vector quantiser whose codes follow the views of a joint batch one after the other."""

    def _quantise(self, z: Tensor) -> Tensor:
        if not self.training:
            return super()._quantise(z)
        return torch.cat([super(JointVectorQuantised, self)._quantise(v) for v in z.chunk(VIEWS, 1)], dim=1)


def _check_one_view(module: nn.Module) -> None:
    """Refuse to take one view for two: BatchNorm would halve it."""
    if module.training:
        raise UserError(
            "this method calls its modules directly, where a captured step needs apply_per_view; "
            "use --engine eager"
        )
