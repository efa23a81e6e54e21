"""Seven self-supervised methods, each with any encoder and any bottleneck."""

import inspect
from collections.abc import Callable

from torch import nn

from simplicia.errors import unknown
from simplicia.methods.barlow import BarlowTwins
from simplicia.methods.base import Bottleneck, Method, Output, TargetMethod
from simplicia.methods.byol import BYOL
from simplicia.methods.dino import DINO
from simplicia.methods.moco import MoCo
from simplicia.methods.simclr import SimCLR
from simplicia.methods.swav import SwAV
from simplicia.methods.vicreg import VICReg
from simplicia.sem import Temperature

__all__ = ["Method", "Output", "TargetMethod", "create", "kind", "names", "options"]

_METHODS: dict[str, Callable[..., Method]] = {
    "barlow": BarlowTwins,
    "byol": BYOL,
    "dino": DINO,
    "moco": MoCo,
    "simclr": SimCLR,
    "swav": SwAV,
    "vicreg": VICReg,
}


def names() -> list[str]:
    """The methods there are."""
    return sorted(_METHODS)


def kind(name: str) -> Callable[..., Method]:
    """The class of a method."""
    if name not in _METHODS:
        raise unknown("method", name, names())
    return _METHODS[name]


def options(name: str) -> dict[str, float]:
    """The options of a method with their defaults, which are the paper's."""
    parameters = inspect.signature(kind(name)).parameters
    return {p.name: p.default for p in list(parameters.values())[3:]}


def create(
    name: str,
    encoder: nn.Module,
    bottleneck: Bottleneck,
    second_temperature: Temperature | None = None,
    **settings,
) -> Method:
    """A method by name. ``second_temperature`` is the paper's tau' (None: the bottleneck's own)."""
    known = options(name)
    for setting in settings:
        if setting not in known:
            raise unknown(f"option of method {name!r}:", setting, known)
    return _METHODS[name](encoder, bottleneck, second_temperature, **settings)
