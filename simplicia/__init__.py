"""Simplicia: simplicial embeddings (SEM), a trainer for them, and tools to measure and understand them.

``import simplicia`` is cheap: a name imports its module, and torch, when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from simplicia.errors import UserError
from simplicia.version import __version__ as __version__

if TYPE_CHECKING:
    from simplicia import bottlenecks, encoders, losses, methods
    from simplicia.api import pretrain
    from simplicia.estimator import RunTransformer as RunTransformer
    from simplicia.run import from_pretrained, load
    from simplicia.sem import SimNorm, SimplicialEmbedding, entropy, pack, simplicial, unpack, usage

__all__ = [  # without RunTransformer, which imports scikit-learn
    "SimNorm",
    "SimplicialEmbedding",
    "UserError",
    "bottlenecks",
    "encoders",
    "entropy",
    "from_pretrained",
    "load",
    "losses",
    "methods",
    "pack",
    "pretrain",
    "simplicial",
    "unpack",
    "usage",
]

_MODULES = {  # where names are defined
    "RunTransformer": "simplicia.estimator",
    "SimNorm": "simplicia.sem",
    "SimplicialEmbedding": "simplicia.sem",
    "entropy": "simplicia.sem",
    "from_pretrained": "simplicia.run",
    "load": "simplicia.run",
    "pack": "simplicia.sem",
    "pretrain": "simplicia.api",
    "simplicial": "simplicia.sem",
    "unpack": "simplicia.sem",
    "usage": "simplicia.sem",
}
_SUBMODULES = (
    *("analyze", "bottlenecks", "data", "encoders", "estimator", "evaluate", "export", "layers", "losses"),
    *("methods", "run", "sem", "train"),
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"simplicia.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'simplicia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_MODULES})
