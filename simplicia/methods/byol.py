"""BYOL (Grill et al., https://arxiv.org/abs/2006.07733)."""

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, TargetMethod
from simplicia.sem import Temperature


class BYOL(TargetMethod):
    """A predictor on one view must match the target network's projection of the other; no negatives."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: int = 4096,  # width of the hidden layers of projector and predictor
        out: int = 256,  # width of the projector's output
        momentum: float = 0.99,  # of the target's moving average, at first
        final_momentum: float = 1.0,  # of the target's moving average, at the end
    ):
        projector = mlp(bottleneck.out_features, hidden, out, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature, momentum, final_momentum)
        self.predictor = mlp(out, hidden, out)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        first, second = self.through(self.predictor, [branch.projection for branch in branches])
        target1, target2 = self.targets(views)
        return losses.byol(first, target2) + losses.byol(second, target1)
