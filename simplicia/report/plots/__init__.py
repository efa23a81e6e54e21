"""Charts: one description, drawn by the page (``layout``) or by matplotlib into files (``save``)."""

from simplicia.report.plots.chart import Axis, Chart, Note, Series
from simplicia.report.plots.files import check_suffix, save
from simplicia.report.plots.svg import BOX, layout

__all__ = ["BOX", "Axis", "Chart", "Note", "Series", "check_suffix", "layout", "save"]
