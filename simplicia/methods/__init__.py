"""Self-supervised methods, each with any encoder and any bottleneck."""

from simplicia.methods import barlow, byol, dino, moco, simclr, swav, vicreg  # noqa: F401  (registers them)
from simplicia.methods.base import (  # noqa: F401
    Method,
    Output,
    TargetMethod,
    converted,
    create,
    names,
    options,
    recommended,
    register,
)
