"""Barlow Twins (Zbontar et al., https://arxiv.org/abs/2103.03230)."""

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method
from simplicia.sem import Temperature


class BarlowTwins(Method):
    """The cross-correlation of the two views' projections should be the identity matrix."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: int = 2048,  # width of the projector's hidden layers
        out: int = 2048,  # width of the projector's output
        lamb: float = 0.0051,  # weight of the off-diagonal
        scale: float = 0.1,  # of the whole loss
    ):
        projector = mlp(bottleneck.out_features, hidden, out, layers=3, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.lamb, self.scale = lamb, scale

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.barlow_twins(branches[0].projection, branches[1].projection, self.lamb, self.scale)
