"""Barlow Twins (Zbontar et al., https://arxiv.org/abs/2103.03230)."""

from typing import Annotated

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("barlow")
class BarlowTwins(Method):
    """The cross-correlation of the two views' projections should be the identity matrix."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 2048,
        lamb: Annotated[float, "weight of the off-diagonal terms", Range(low=0)] = 0.0051,
        scale: Annotated[float, "weight of the loss", Range(low=0)] = 0.1,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, layers=3, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.lamb, self.scale = lamb, scale

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.barlow_twins(branches[0].projection, branches[1].projection, self.lamb, self.scale)
