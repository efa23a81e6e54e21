"""Sweeps: many runs of a recipe with other settings, each measured on held-out training images."""

from simplicia.sweep.study import sweep

__all__ = ["sweep"]
