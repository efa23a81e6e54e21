"""Simplicia: simplicial embeddings (SEM), a trainer for them, and tools to measure and understand them.

``import simplicia`` is cheap: a name imports its module, and torch, when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from simplicia.errors import UserError
from simplicia.version import __version__ as __version__

if TYPE_CHECKING:
    from simplicia import bottlenecks, encoders, losses, methods
    from simplicia.api import dry_run, pretrain
    from simplicia.estimator import RunTransformer as RunTransformer
    from simplicia.run import from_pretrained, load, load_classifier
    from simplicia.sem import SimNorm, SimplicialEmbedding, entropy, pack, simplicial, unpack, usage

__all__ = [  # without RunTransformer, which imports scikit-learn
    "SimNorm",
    "SimplicialEmbedding",
    "UserError",
    "bottlenecks",
    "dry_run",
    "encoders",
    "entropy",
    "from_pretrained",
    "load",
    "load_classifier",
    "losses",
    "methods",
    "pack",
    "pretrain",
    "simplicial",
    "unpack",
    "usage",
]

_NAMES = {  # by the module that defines them
    "api": "dry_run pretrain",
    "estimator": "RunTransformer",
    "run": "from_pretrained load load_classifier",
    "sem": "SimNorm SimplicialEmbedding entropy pack simplicial unpack usage",
}
_MODULES = {name: f"simplicia.{module}" for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = (
    *("analyze", "bottlenecks", "codes", "data", "encoders", "estimator", "evaluate", "export", "layers"),
    *("losses", "methods", "run", "sem", "train"),
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"simplicia.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'simplicia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_MODULES})
