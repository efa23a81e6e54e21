"""SimCLR (Chen et al., https://arxiv.org/abs/2002.05709)."""

import math
from typing import Annotated

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("simclr")
class SimCLR(Method):
    """Two views of an image attract, all other images of the batch repel."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 256,
        temperature: Annotated[float, "temperature of the loss", Range(above=0)] = 0.2,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, norm=False, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.temperature = temperature

    def chance(self, images: int) -> float:
        return math.log(2 * images - 1)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.nt_xent(branches[0].projection, branches[1].projection, self.temperature)
