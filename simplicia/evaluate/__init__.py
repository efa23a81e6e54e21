"""Measuring a run: linear probe, nearest neighbours."""

from simplicia.evaluate.knn import knn
from simplicia.evaluate.probe import ProbeSettings, probe

__all__ = ["ProbeSettings", "knn", "probe"]
