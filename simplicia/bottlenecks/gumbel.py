"""Straight-through Gumbel-softmax (Jang et al., https://arxiv.org/abs/1611.01144)."""

import math
from typing import Literal

import torch
from torch import Tensor

from simplicia.bottlenecks.base import register
from simplicia.distributed import drawn
from simplicia.sem import Embedder, Temperature, simplicial


@register("gumbel", layers=("codes", "embedder"))
class GumbelEmbedding(Embedder):
    """One-hot simplices: sampled in training, the argmax in evaluation.

    The forward pass is the one-hot argmax of logits + Gumbel noise; the gradient is that of their softmax at
    the temperature (straight-through).
    """

    def __init__(
        self,
        in_features: int,
        simplices: int = 5000,  # L
        vertices: int = 13,  # V
        temperature: Temperature = 2.0,
        norm: Literal["batch", "layer"] | None = "batch",
        embedder: Literal["linear", "identity", "mlp"] = "linear",
        blocks: int = 1,
    ):
        super().__init__(in_features, simplices, vertices, temperature, norm, embedder, blocks)
        _check_positive(temperature)

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        logits = self.logits(h)
        if not self.training:
            return simplicial(logits, self.vertices, 0.0)
        temperature = self.temperature if temperature is None else temperature
        _check_positive(temperature)
        wide = logits.float()  # 16-bit noise has ties
        noise = drawn(lambda n: wide.new_empty((n, *wide.shape[1:])).exponential_(), len(wide))
        exponential = noise.clamp_min(torch.finfo(wide.dtype).tiny)
        noisy = wide - exponential.log()
        return simplicial(noisy, self.vertices, temperature, hard=True).to(logits.dtype)


def _check_positive(temperature: Temperature) -> None:
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; Gumbel samples need a positive one")
