"""The page of one or several runs: one HTML file that needs nothing else."""

from simplicia.report.page import page, write

__all__ = ["page", "write"]
