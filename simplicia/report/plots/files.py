"""Charts as SVG, PNG or PDF files drawn by matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simplicia.errors import UserError
from simplicia.files import atomic_write, write_errors
from simplicia.report.plots.chart import COLOURS, GREY, Axis, Chart, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", ":", "-.")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal charts give equal files
SIDES: dict[str, dict[str, Any]] = {
    "left": {"xytext": (-6, 0), "ha": "right", "va": "center"},
    "right": {"xytext": (6, 0), "ha": "left", "va": "center"},
    "above": {"xytext": (0, 2), "ha": "center", "va": "bottom"},
}


def check_suffix(path: str | Path) -> Path:
    """The path of a figure; a UserError if it ends in another suffix than .svg, .png or .pdf."""
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UserError(f"the figure is {path.name!r}; its name must end in .svg, .png or .pdf")
    return path


def save(charts: Chart | Sequence[Chart], path: str | Path, title: str = "") -> Path:
    """Draw a chart, or several side by side, into an .svg, .png or .pdf file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    path = check_suffix(path)
    charts = [charts] if isinstance(charts, Chart) else charts
    size = sum(chart.size[0] for chart in charts), max(chart.size[1] for chart in charts)
    suffix = path.suffix[1:].lower()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "simplicia"}), write_errors("the figure", path):
        figure = Figure(size, layout="constrained")
        for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            _draw(axes, chart)
        if title:
            figure.suptitle(_plain(title))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=150, format=suffix, metadata=UNDATED.get(suffix))
    return path


def _draw(axes: "Axes", chart: Chart) -> None:
    for series in chart.series:
        _draw_series(axes, series)
    if chart.cells:
        _draw_cells(axes, chart)
    for value, label in chart.x_lines:
        axes.axvline(value, color="grey", linewidth=0.8)
        axes.annotate(label, (value, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    for value, label in chart.y_lines:
        axes.axhline(value, color="grey", linewidth=0.8)
        axes.annotate(label, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    for note in chart.notes:
        look = SIDES[note.side] | {"fontsize": 7, "color": _colour(note.colour)}
        axes.annotate(_plain(note.text), (note.x, note.y), textcoords="offset points", **look)
    if chart.notes:
        axes.margins(x=0.1)
    _set_axis(axes, "x", chart.x, [x for series in chart.series for x in series.x])
    _set_axis(axes, "y", chart.y, [y for series in chart.series for y in series.y if y is not None])
    if not chart.frame:
        axes.set_axis_off()
    axes.set_title(_plain(chart.title), wrap=True, fontsize=9, pad=16 if chart.x_lines else None)
    if any(series.name for series in chart.series):
        axes.legend(fontsize=7)


def _draw_series(axes: "Axes", series: Series) -> None:
    look: dict[str, Any] = {"color": _colour(series.colour), "label": _plain(series.name) or None}
    if series.kind == "histogram":
        axes.stairs([y or 0 for y in series.y], series.x, fill=True, alpha=0.5, **look)
        return
    look["alpha"] = 0.4 if series.faint else 1.0
    if series.hollow:
        look["markerfacecolor"] = "white"
    if series.kind == "points":
        look |= {"marker": "o", "markersize": 4.5, "linestyle": ""}
    else:
        look |= {"marker": "." if series.markers else "", "linestyle": DASHES[series.style]}
    xs, ys, errors = zip(*series.points, strict=True) if series.points else ((), (), ())
    if series.error:
        axes.errorbar(xs, ys, errors, capsize=3, **look)
    else:
        axes.plot(xs, ys, **look)


def _draw_cells(axes: "Axes", chart: Chart) -> None:
    cells = np.array(chart.cells, dtype=float)  # None becomes NaN
    image: Any = axes.imshow(cells, aspect="auto")
    axes.figure.colorbar(image, ax=axes, label=chart.cells_label)
    for (i, j), value in np.ndenumerate(cells):
        if not np.isnan(value):
            colour = "white" if image.norm(value) < 0.5 else "black"
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour)


def _set_axis(axes: "Axes", name: str, axis: Axis, values: list[float]) -> None:
    options: dict[str, Any] = {f"{name}label": _plain(axis.label)}
    positive = [value for value in values if value > 0]
    if axis.log and positive:
        if name == "x" and len(positive) < len(values):
            axes.set_xscale("symlog", linthresh=min(positive))
        else:
            options[f"{name}scale"] = "log"
    if axis.names:
        options[f"{name}ticks"] = range(len(axis.names))
        options[f"{name}ticklabels"] = [_plain(word) for word in axis.names]
    axes.set(**options, **{f"{name}lim": axis.limits})


def _colour(number: int) -> str:
    return "grey" if number == GREY else COLOURS[number % len(COLOURS)]


def _plain(text: str) -> str:
    """The text as it is: matplotlib reads formulas between dollars, and SVG has no control characters."""
    shown = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)
    return shown.replace("$", r"\$")
