"""Measuring a run: linear probe, nearest neighbours, transfer, fine-tuning, few labels, robustness.

``probe`` and ``knn`` are here; the others are imported from their own modules, such as ``evaluate.transfer``.
"""

from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import ProbeSettings, probe

__all__ = ["ProbeSettings", "knn", "probe"]
