"""Self-supervised methods, each with any encoder and any bottleneck."""

from simplicia.methods import barlow, byol, dino, moco, simclr, swav, vicreg  # noqa: F401  (registers them)
from simplicia.methods.base import Method, Output, TargetMethod
from simplicia.methods.registry import converted, create, kind, names, options, recommended, register

__all__ = [
    "Method",
    "Output",
    "TargetMethod",
    "converted",
    "create",
    "kind",
    "names",
    "options",
    "recommended",
    "register",
]
