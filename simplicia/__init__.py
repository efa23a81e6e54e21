"""Simplicia: simplicial embeddings (SEM), a trainer for them, and a laboratory to look inside.

``import simplicia`` brings the module alone; the rooms (losses, methods, train, …) come when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from simplicia.errors import UserError
from simplicia.sem import SimplicialEmbedding, entropy, simplicial

if TYPE_CHECKING:
    from simplicia import bottlenecks, encoders, losses, methods
    from simplicia.run import load
    from simplicia.train.loop import pretrain

__version__ = "0.1.0"
__all__ = [
    "SimplicialEmbedding",
    "UserError",
    "bottlenecks",
    "encoders",
    "entropy",
    "load",
    "losses",
    "methods",
    "pretrain",
    "simplicial",
]

_ROOMS = {
    "analyze",
    "bottlenecks",
    "data",
    "encoders",
    "evaluate",
    "layers",
    "losses",
    "methods",
    "run",
    "sweep",
    "train",
}
_FUNCTIONS = {"pretrain": "simplicia.train.loop", "load": "simplicia.run"}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"simplicia.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'simplicia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_FUNCTIONS})
