"""SimCLR (Chen et al., https://arxiv.org/abs/2002.05709)."""

import math

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method
from simplicia.sem import Temperature


class SimCLR(Method):
    """Two views of an image attract, all other images of the batch repel."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: int = 2048,  # width of the projector's hidden layers
        out: int = 256,  # width of the projector's output
        temperature: float = 0.2,  # of the loss
    ):
        projector = mlp(bottleneck.out_features, hidden, out, norm=False, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.temperature = temperature

    def chance(self, images: int) -> float:
        return math.log(2 * images - 1)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.nt_xent(branches[0].projection, branches[1].projection, self.temperature)
