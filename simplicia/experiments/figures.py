"""The paper's figures, and what SEM adds in its tables, drawn from what was measured and nothing else."""

import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simplicia.errors import UserError
from simplicia.experiments.experiment import Experiment
from simplicia.experiments.experiment import Figure as Shape
from simplicia.experiments.pairs import Pair, longest
from simplicia.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
Line = list[tuple[float, float]]
ENDINGS = (".svg", ".png", ".pdf")
ALIKE = {"epochs": ", {} epochs", "batch_size": ", batch {}", "probe": ", probe {}"}  # of one line
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same numbers give the same file


def draw(experiment: Experiment, rows: list[Row], path: Path) -> None:
    """A figure of the paper, or what SEM adds to each method of a table; .svg, .png or .pdf."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"the figure is to be {path.name!r}; its name must end in .svg, .png or .pdf")
    if experiment.figure is None and not any(cell.beside for cell in experiment.cells):
        raise UserError(f"{experiment.name} is a table, not a figure; reproduce without --figure shows it")
    series = lines(experiment, rows) if experiment.figure else {}
    found = {} if experiment.figure else longest(experiment, rows)
    if not series and not found:
        raise UserError(f"nothing that {experiment.name} draws has been measured yet")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure((7, 4.5 if series else 1.2 + 0.5 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    if experiment.figure:
        _draw_lines(axes, series, experiment.figure)
    else:
        _draw_pairs(axes, found, experiment)
    axes.set_title(experiment.title, wrap=True, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.suffix[1:].lower()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "simplicia"}), atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=150, format=ending, metadata=UNDATED.get(ending))


def _draw_lines(axes: "Axes", found: dict[str, Line], shape: Shape) -> None:
    """A line for each series of cells, or for each cell that is a curve itself."""
    for name, line in found.items():
        axes.plot(*zip(*line, strict=True), marker="." if len(line) < 40 else "", label=name)
    axes.set(xlabel=shape.across, ylabel=shape.title)
    if "x" in shape.log:
        places = {x for line in found.values() for x, _ in line}
        if 0 in places:  # temperature 0: beside the lowest
            axes.set_xscale("symlog", linthresh=min(places - {0}, default=1))
        else:
            axes.set_xscale("log")
    if "y" in shape.log:
        axes.set_yscale("log")
    axes.legend(fontsize=7)


def _draw_pairs(axes: "Axes", found: dict[str, list[Pair]], experiment: Experiment) -> None:
    """For each method a bar from its accuracy without SEM to that with it; the paper's below, in grey."""
    beside = {cell.name: cell.beside for cell in experiment.cells}
    for place, both in enumerate(found.values()):
        without, with_sem = (statistics.mean(r["accuracy"] for r in rows) for rows in zip(*both, strict=True))
        _draw_bar(axes, without, with_sem, place - (0 if experiment.is_ours else 0.15), "C0")
        base, sem = (row.get("paper") for row in both[0])
        if base is not None and sem is not None:
            _draw_bar(axes, base, sem, place + 0.2, "grey")
    several = ", of several seeds the mean" if any(len(both) > 1 for both in found.values()) else ""
    epochs = next(iter(found.values()))[0][0].get("epochs")
    axes.plot([], color="C0", label=f"{epochs} epochs{several}")
    if any(row.get("paper") is not None for both in found.values() for row in both[0]):
        axes.plot([], color="grey", label=f"the paper, {experiment.epochs} epochs")
    axes.set_yticks(range(len(found)), [str(beside[name]) for name in found])
    axes.set_ylim(len(found) - 0.4, -0.6)  # the first on top
    axes.margins(x=0.1)
    axes.set_xlabel("test accuracy, %; the open end is without SEM, the full one with it")
    axes.legend(fontsize=7)


def _draw_bar(axes: "Axes", without: float, with_sem: float, y: float, color: str) -> None:
    axes.plot([without, with_sem], [y, y], color=color, linewidth=1.5, zorder=1)
    right = 1 if with_sem >= without else -1
    for x, fill, side in ((without, "white", -right), (with_sem, color, right)):
        axes.scatter([x], [y], s=22, edgecolors=color, facecolors=fill, zorder=2)
        ha = "left" if side > 0 else "right"
        style: dict[str, Any] = {"color": color, "fontsize": 7, "ha": ha, "va": "center"}
        axes.annotate(f"{x:.1f}", (x, y), (6 * side, 0), textcoords="offset points", **style)


def lines(experiment: Experiment, rows: list[Row]) -> dict[str, Line]:
    """The points of each line by its name, from left to right; of several seeds the mean."""
    shape = experiment.figure
    assert shape is not None
    points: dict[str, dict[float, list[float]]] = {}
    differ = {key: words for key, words in ALIKE.items() if len({row.get(key) for row in rows} - {None}) > 1}
    for row in rows:
        match = re.search(shape.cell, row["cell"])
        x, y = row.get(shape.field) if shape.field else match and float(match[1]), row.get(shape.up)
        if x is None or y is None:
            continue
        name = row["cell"].replace(match[0], "") if match else row["cell"]
        name += "".join(words.format(row[key]) for key, words in differ.items() if row.get(key) is not None)
        for left, up in zip(*_curve(x, y), strict=True):
            points.setdefault(name, {}).setdefault(left + shape.start, []).append(up)
    return {
        name: [(x, statistics.mean(ys)) for x, ys in sorted(line.items())] for name, line in points.items()
    }


def _curve(x: Any, y: Any) -> tuple[list[float], list[float]]:
    """Numbers along both axes: a cell is a point, a curve, or a histogram, whose bins have their middle."""
    if not isinstance(x, list):
        return [x], [y]
    if len(x) == len(y) + 1:
        x = [(low + high) / 2 for low, high in pairwise(x)]
    return x, y
