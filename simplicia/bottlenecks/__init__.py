"""Bottlenecks between encoder and projector, all with one interface: SEM and its alternatives.

``bottleneck(h, temperature=None) -> z`` with ``.out_features``, ``.blocks`` (diagonal blocks of the
projector's first layer) and ``.penalty`` (of the last batch; methods add its mean over the views).
"""

from simplicia.bottlenecks import gumbel, vq  # noqa: F401  (registers them)
from simplicia.bottlenecks.base import create, layers, names, options, register

__all__ = ["create", "layers", "names", "options", "register"]
