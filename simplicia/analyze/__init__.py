"""Analyses: what a representation is like inside, what a model costs, and what the theory says.

Functions come when first used. One that is named like its file stays the function when the file is imported.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_FUNCTIONS = {  # name: the file it lives in
    "Atlas": "atlas",
    "analyze": "bundle",
    "coherence": "coherence",
    "coherence_curve": "coherence",
    "coherence_graph": "coherence",
    "cost": "cost",
    "effective_rank": "spectrum",
    "entropy_histogram": "entropy",
    "expressivity": "bound",
    "expressivity_base": "bound",
    "expressivity_supremum": "bound",
    "ica": "ica",
    "nearest": "retrieval",
    "spectrum": "spectrum",
}


class _Room(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return getattr(importlib.import_module(f"simplicia.analyze.{_FUNCTIONS[name]}"), name)
        raise AttributeError(f"module 'simplicia.analyze' has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # importing a file puts it here under its name
        same = isinstance(value, ModuleType) and _FUNCTIONS.get(name) == name
        super().__setattr__(name, getattr(value, name) if same else value)


sys.modules[__name__].__class__ = _Room
