"""The layers of a network after its encoder."""

from typing import Any

import numpy as np
from torch import Tensor

from simplicia.bottlenecks.vq import Quantiser
from simplicia.methods.base import Network
from simplicia.sem import Temperature, simplicial

LAYERS = ("encoder", "embedder", "sem", "quantised", "bottleneck", "codes")  # in the order of computation


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
        quantised = isinstance(bottleneck, Quantiser)
        return bottleneck.embed(features) if quantised else bottleneck.logits(features)
    temperature = bottleneck.temperature if temperature is None else temperature
    return simplicial(bottleneck.logits(features), bottleneck.vertices, temperature)


def sparse_codes(codes: Tensor, vertices: int) -> Any:
    """One-hot codes as a scipy CSR matrix: (N, simplices) integers to (N, simplices * vertices)."""
    from scipy.sparse import csr_array

    n, simplices = codes.shape
    columns = codes.cpu().numpy().astype(np.int64) + vertices * np.arange(simplices)
    ends = np.arange(0, n * simplices + 1, simplices)
    return csr_array((np.ones(n * simplices), columns.ravel(), ends), shape=(n, simplices * vertices))
