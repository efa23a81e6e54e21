"""VICReg (Bardes et al., https://arxiv.org/abs/2105.04906)."""

from typing import Annotated

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("vicreg")
class VICReg(Method):
    """Invariance between views, variance and decorrelation within each."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 2048,
        sim: Annotated[float, "weight of the invariance term", Range(low=0)] = 25.0,
        var: Annotated[float, "weight of the variance term", Range(low=0)] = 25.0,
        cov: Annotated[float, "weight of the covariance term", Range(low=0)] = 1.0,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, layers=3, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.weights = {"sim": sim, "var": var, "cov": cov}

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.vicreg(branches[0].projection, branches[1].projection, **self.weights)
