"""The registry of bottlenecks, with SEM, SEM without its softmax, and no bottleneck."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from simplicia.sem import Embedder, SimplicialEmbedding, Temperature
from simplicia.settings import Entry, Registry

_BOTTLENECKS: Registry[nn.Module] = Registry("bottleneck", arguments=1)  # in_features
_LAYERS: dict[str, tuple[str, ...]] = {}

names = _BOTTLENECKS.names
options = _BOTTLENECKS.options


def register(name: str, layers: tuple[str, ...] = ("bottleneck",)) -> Callable[[Entry], Entry]:
    """Register a bottleneck, with the layers that a run offers after its encoder, the default one first.

    "bottleneck" (or "quantised") is the bottleneck's output, "embedder" its ``.logits``, "sem" their softmax
    and "codes" its ``.codes``.

    >>> @register("half", layers=("bottleneck",))
    ... class Half(nn.Linear):
    ...     penalty, blocks = 0.0, 1
    ...     def __init__(self, in_features: int):
    ...         super().__init__(in_features, in_features // 2)
    ...     def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
    ...         return super().forward(h)
    >>> create("half", 16).out_features
    8
    >>> del _BOTTLENECKS._classes["half"], _LAYERS["half"]
    """
    _LAYERS[name] = layers
    return _BOTTLENECKS.register(name)


def layers(name: str) -> tuple[str, ...]:
    """Return the layers after the encoder that a run with this bottleneck offers, the default one first.

    >>> layers("sem")
    ('sem', 'embedder', 'codes')
    """
    _BOTTLENECKS.get(name)
    return _LAYERS[name]


def create(name: str, in_features: int, **options: Any) -> nn.Module:
    """Build a bottleneck by name, for an encoder with ``in_features`` outputs.

    >>> create("sem", 512, simplices=10, vertices=13).out_features
    130
    """
    return _BOTTLENECKS.create(name, in_features, **options)


register("sem", layers=("sem", "embedder", "codes"))(SimplicialEmbedding)
register("embed", layers=("embedder", "sem", "codes"))(Embedder)


@register("none", layers=())
class NoBottleneck(nn.Module):
    """The baseline: the projector sees the encoder's output."""

    penalty = 0.0
    blocks = 1

    def __init__(self, in_features: int):
        super().__init__()
        self.out_features = in_features

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        return h
