"""Analyses of representations, the cost of models, and the bounds of the theory."""

import importlib
from typing import Any

_MODULES = {
    "atlas": ("Atlas",),
    "bound": ("expressivity", "expressivity_base", "expressivity_supremum"),
    "class_coherence": ("coherence", "coherence_curve", "coherence_graph", "ica"),
    "covariance_spectrum": ("effective_rank", "spectrum"),
    "entropy": ("entropy_histogram",),
    "model_cost": ("cost",),
    "retrieval": ("nearest",),
    "study": ("analyze",),
}


def __getattr__(name: str) -> Any:
    """Import a function when it is first used: ``import simplicia`` stays fast."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"simplicia.analyze.{module}"), name)
    raise AttributeError(f"module 'simplicia.analyze' has no attribute {name!r}")
