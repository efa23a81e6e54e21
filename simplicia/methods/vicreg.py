"""VICReg (Bardes et al., https://arxiv.org/abs/2105.04906)."""

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Method
from simplicia.sem import Temperature


class VICReg(Method):
    """Invariance between views, variance and decorrelation within each."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: int = 2048,  # width of the projector's hidden layers
        out: int = 2048,  # width of the projector's output
        sim: float = 25.0,  # weight of the distance between views
        var: float = 25.0,  # weight of the variance term
        cov: float = 1.0,  # weight of the covariance term
    ):
        projector = mlp(bottleneck.out_features, hidden, out, layers=3, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.weights = {"sim": sim, "var": var, "cov": cov}

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        return losses.vicreg(branches[0].projection, branches[1].projection, **self.weights)
