"""BYOL (Grill et al., https://arxiv.org/abs/2006.07733)."""

from typing import Annotated

from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, TargetMethod, apply_per_view, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("byol")
class BYOL(TargetMethod):
    """A predictor on one view must match the target network's projection of the other; no negatives."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the hidden layers of projector and predictor", Range(low=1)] = 4096,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 256,
        momentum: Annotated[float, "target's EMA momentum at first", Range(0, 1)] = 0.99,
        final_momentum: Annotated[float, "target's EMA momentum at the end", Range(0, 1)] = 1.0,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature, momentum, final_momentum)
        self.predictor = mlp(out, hidden, out)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        first, second = apply_per_view(self.predictor, [branch.projection for branch in branches])
        target1, target2 = self.targets(views)
        return losses.byol(first, target2) + losses.byol(second, target1)
