"""Charts: one description, drawn as SVG for the page (``to_svg``) or by matplotlib into files (``save``)."""

from simplicia.report.plots.chart import Axis, Chart, Note, Series
from simplicia.report.plots.files import check_suffix, save, write_csv
from simplicia.report.plots.svg import positions, to_svg

__all__ = ["Axis", "Chart", "Note", "Series", "check_suffix", "positions", "save", "to_svg", "write_csv"]
