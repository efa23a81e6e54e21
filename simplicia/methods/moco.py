"""MoCo v2, symmetric, with one queue per view (He et al., https://arxiv.org/abs/1911.05722)."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia import losses
from simplicia.layers import mlp
from simplicia.methods.base import Bottleneck, Branch, Queue, TargetMethod, register
from simplicia.sem import Temperature
from simplicia.settings import Range


@register("moco")
class MoCo(TargetMethod):
    """A query must find the target network's key of the other view among a queue of earlier keys."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Bottleneck,
        second_temperature: Temperature | None = None,
        hidden: Annotated[int, "width of the projector's hidden layers", Range(low=1)] = 2048,
        out: Annotated[int, "width of the projector's output", Range(low=1)] = 128,
        temperature: Annotated[float, "temperature of the loss", Range(above=0)] = 0.2,
        queue: Annotated[int, "number of earlier keys kept as negatives", Range(low=1)] = 32768,
        momentum: Annotated[float, "target's EMA momentum at first", Range(0, 1)] = 0.99,
        final_momentum: Annotated[float, "target's EMA momentum at the end", Range(0, 1)] = 0.999,
    ):
        projector = mlp(bottleneck.out_features, hidden, out, norm=False, blocks=bottleneck.blocks)
        super().__init__(encoder, bottleneck, projector, second_temperature, momentum, final_momentum)
        self.temperature = temperature
        self.queue = Queue(queue, out)
        self.keys: Tensor | None = None

    def chance(self, images: int) -> float:
        return math.log(self.queue.vectors.shape[1] + 1)

    def loss(self, views: list[Tensor], branches: list[Branch]) -> Tensor:
        query1, query2 = (branch.projection for branch in branches)
        key1, key2 = (F.normalize(losses.widen(key), dim=-1) for key in self.targets(views))
        self.keys = torch.stack([key1, key2])  # queued after the step: backward needs the old ones
        queue1, queue2 = (vectors.T for vectors in self.queue.vectors)
        first = losses.info_nce(query1, key2, queue2, self.temperature)
        second = losses.info_nce(query2, key1, queue1, self.temperature)
        return (first + second) / 2

    def after_micro_batch(self) -> None:
        if self.keys is not None:
            self.queue.push(self.keys)
            self.keys = None
