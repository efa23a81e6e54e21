"""Analyses of representations, the cost of models, and the bounds of the theory."""

import importlib
from typing import Any

_FUNCTIONS = {  # name: the file it lives in
    "Atlas": "atlas",
    "analyze": "study",
    "coherence": "class_coherence",
    "coherence_curve": "class_coherence",
    "coherence_graph": "class_coherence",
    "cost": "model_cost",
    "effective_rank": "covariance_spectrum",
    "entropy_histogram": "entropy",
    "expressivity": "bound",
    "expressivity_base": "bound",
    "expressivity_supremum": "bound",
    "ica": "class_coherence",
    "nearest": "retrieval",
    "spectrum": "covariance_spectrum",
}


def __getattr__(name: str) -> Any:
    """Import a function when it is first used: ``import simplicia`` stays fast."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'simplicia.analyze' has no attribute {name!r}")
    return getattr(importlib.import_module(f"simplicia.analyze.{_FUNCTIONS[name]}"), name)
