"""Measuring a run: linear probe, nearest neighbours, transfer, fine-tuning, few labels, robustness.

``probe`` and ``knn`` are here; the others are imported from their own modules, such as ``evaluate.transfer``.
"""

from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import ProbeSettings, fit, probe

probe.fit = fit  # type: ignore[attr-defined]  # the function has the name of its module, which it hides
__all__ = ["ProbeSettings", "knn", "probe"]
