"""Analyses: what a model costs, and what its representation is like.

Functions come when first used. One that is named like its file stays the function when the file is imported.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_FUNCTIONS = {  # name: the file it lives in
    "cost": "cost",
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
"""Looking inside a run: entropy, coherence, spectrum, what simplices fire on, retrieval by code."""

import importlib
from typing import Any

_WHERE = {  # name: module of simplicia.analyze
    "Atlas": "atlas",
    "analyze": "bundle",
    "coherence": "coherence",
    "coherence_curve": "coherence",
    "coherence_graph": "coherence",
    "effective_rank": "spectrum",
    "entropy_histogram": "entropy",
    "nearest": "retrieval",
    "spectrum": "spectrum",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: a module is only paid for by who uses it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'simplicia.analyze' has no attribute {name!r}")
    return getattr(importlib.import_module(f"simplicia.analyze.{_WHERE[name]}"), name)


# Importing a module sets the name of the module here; where a function has the same name, it is the function
# that is meant, so it is put in place once and for all.
for _name in [name for name, module in _WHERE.items() if name == module]:
    globals()[_name] = __getattr__(_name)
