"""The layers of a network after its encoder."""

from typing import Any

import numpy as np
from torch import Tensor, nn

from simplicia.bottlenecks.vq import Quantiser
from simplicia.errors import UserError
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


def patch_codes(network: Network, images: Tensor) -> Tensor:
    """The codes of each patch, (N, patches, simplices), of a vision transformer."""
    encoder: Any = getattr(network.encoder, "model", network.encoder)
    bottleneck: Any = network.bottleneck
    if not hasattr(bottleneck, "codes"):
        raise UserError("layer 'tokens' has the codes of patches, and this run has no codes")
    tokens = encoder.forward_features(images) if hasattr(encoder, "num_prefix_tokens") else None
    if tokens is None or tokens.dim() != 3:
        name = type(encoder).__name__
        raise UserError(f"layer 'tokens' needs a vision transformer; {name} has no tokens")
    patches = tokens[:, encoder.num_prefix_tokens :]
    return bottleneck.codes(getattr(encoder, "fc_norm", nn.Identity())(patches))


def sparse_codes(codes: Tensor, vertices: int) -> Any:
    """One-hot codes as a scipy CSR matrix: (N, simplices) integers to (N, simplices * vertices)."""
    from scipy.sparse import csr_array

    n, simplices = codes.shape
    columns = codes.cpu().numpy().astype(np.int64) + vertices * np.arange(simplices)
    ends = np.arange(0, n * simplices + 1, simplices)
    return csr_array((np.ones(n * simplices), columns.ravel(), ends), shape=(n, simplices * vertices))
