"""SwAV (Caron et al., https://arxiv.org/abs/2006.09882)."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import Prototypes, mlp
from simplicia.methods.base import Bottleneck, Branch, Method, Queue, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("swav")
class SwAV(Method):
    """Each view must predict to which prototypes the other view was assigned."""

    prototype_rate: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 128,
        prototypes: Annotated[int, "number of prototypes", Range(low=1)] = 3000,
        temperature: Annotated[float, "temperature of the loss", Range(above=0)] = 0.1,
        epsilon: Annotated[float, "temperature of the Sinkhorn assignment", Range(above=0)] = 0.05,
        iterations: Annotated[int, "iterations of the Sinkhorn assignment", Range(low=1)] = 3,
        queue: Annotated[int, "earlier projections that join the assignment", Range(low=1)] = 3840,
        queue_start: Annotated[int, "first epoch that uses the queue", Range(low=0)] = 50,
        frozen_epochs: Annotated[int, "epochs before the prototypes start to learn", Range(low=0)] = 2,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature)
        self.prototypes = Prototypes(out, prototypes)
        self.temperature, self.sinkhorn = temperature, {"epsilon": epsilon, "iterations": iterations}
        self.queue = Queue(queue, out)
        self.queue_start, self.frozen_epochs = queue_start, frozen_epochs
        self.queue_used = False
        self.vectors: Tensor | None = None
        self.register_buffer("prototype_rate", torch.ones(()), persistent=False)

    def chance(self, images: int) -> float:
        return math.log(len(self.prototypes.weight))

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        first, second = (F.normalize(branch.projection, dim=-1) for branch in branches)
        self.vectors = torch.stack([first, second]).detach()
        queues = {}
        if self.queue_used:
            queue1, queue2 = (self.prototypes(vectors).detach() for vectors in self.queue.vectors)
            queues = {"queue1": queue1, "queue2": queue2}
        scores1, scores2 = self.prototypes(first), self.prototypes(second)
        return losses.swav(scores1, scores2, self.temperature, **self.sinkhorn, **queues)

    def schedule(self, step: int, total_steps: int, epoch: int) -> None:
        self.prototype_rate.fill_(float(epoch >= self.frozen_epochs))
        self.queue_used = epoch >= self.queue_start

    def rates(self) -> dict[str, Tensor]:
        return {"prototypes": self.prototype_rate}

    def after_micro_batch(self) -> None:
        if self.vectors is not None:
            self.queue.push(self.vectors)
            self.vectors = None
