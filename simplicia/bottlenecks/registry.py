"""The registry of bottlenecks: ``@register("vq")`` next to a class makes it known everywhere."""

from collections.abc import Callable
from typing import Any

from torch import nn

from simplicia.registry import Entry, Registry

_BOTTLENECKS: Registry[type[nn.Module]] = Registry("bottleneck", arguments=1)  # in_features
_LAYERS: dict[str, tuple[str, ...]] = {}

names = _BOTTLENECKS.names
options = _BOTTLENECKS.options


def register(name: str, layers: tuple[str, ...] = ("bottleneck",)) -> Callable[[Entry], Entry]:
    """Register a bottleneck, with the layers that a run offers after its encoder, the default one first.

    "bottleneck" (or "quantised") is the bottleneck's output, "embedder" its ``.logits``, "sem" their softmax
    and "codes" its ``.codes``.
    """
    _LAYERS[name] = layers
    return _BOTTLENECKS.register(name)


def layers(name: str) -> tuple[str, ...]:
    """The layers after the encoder that a run with this bottleneck offers, the default one first."""
    _BOTTLENECKS.get(name)
    return _LAYERS[name]


def create(name: str, in_features: int, **options: Any) -> nn.Module:
    """A bottleneck by name, for an encoder with ``in_features`` outputs."""
    return _BOTTLENECKS.create(name, in_features, **options)
