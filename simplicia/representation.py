"""The layers of a network that can be looked at, computed from its encoder's output."""

from typing import Any

from torch import Tensor

from simplicia.bottlenecks.vq import VectorQuantised
from simplicia.methods.base import Network
from simplicia.sem import Temperature, simplicial


def represent(
    network: Network, features: Tensor, layer: str, temperature: Temperature | None = None
) -> Tensor:
    """A layer's representation from the encoder's output."""
    bottleneck: Any = network.bottleneck
    if layer == "encoder":
        return features
    if layer == "codes":
        return bottleneck.codes(features)
    if layer in ("quantised", "bottleneck"):
        return bottleneck(features)
    if layer == "embedder":
        quantised = isinstance(bottleneck, VectorQuantised)
        return bottleneck.embed(features) if quantised else bottleneck.logits(features)
    temperature = bottleneck.temperature if temperature is None else temperature
    return simplicial(bottleneck.logits(features), bottleneck.vertices, temperature)
