"""Bottlenecks between encoder and projector, all with one interface.

``bottleneck(h, temperature=None) -> z`` with ``.out_features``, ``.blocks`` (how many diagonal blocks the
projector's first layer should have) and ``.penalty`` (what the method adds to its loss).
"""

import inspect
from collections.abc import Callable

from torch import Tensor, nn

from simplicia.errors import unknown
from simplicia.sem import SimplicialEmbedding, Temperature


class NoBottleneck(nn.Module):
    """The baseline: the encoder's output as it is."""

    penalty = 0.0
    blocks = 1

    def __init__(self, in_features: int):
        super().__init__()
        self.out_features = in_features

    def forward(self, h: Tensor, temperature: Temperature | None = None) -> Tensor:
        return h


_BOTTLENECKS: dict[str, Callable[..., nn.Module]] = {"none": NoBottleneck, "sem": SimplicialEmbedding}


def names() -> list[str]:
    """The bottlenecks there are."""
    return sorted(_BOTTLENECKS)


def create(name: str, in_features: int, **options) -> nn.Module:
    """A bottleneck by name: "sem" takes the options of SimplicialEmbedding, "none" takes none."""
    if name not in _BOTTLENECKS:
        raise unknown("bottleneck", name, names())
    known = list(inspect.signature(_BOTTLENECKS[name]).parameters)
    for option in options:
        if option not in known:
            raise unknown(f"option of bottleneck {name!r}:", option, known[1:])
    return _BOTTLENECKS[name](in_features, **options)
