"""The paper's figures, drawn from what was measured and from nothing else."""

import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.files import whole
from simplicia.reproduce.experiment import Experiment

Row = dict[str, Any]
Line = list[tuple[float, float]]
ENDINGS = (".svg", ".png", ".pdf")


def draw(experiment: Experiment, rows: list[Row], path: Path) -> None:
    """A line for each series of cells, or for each cell that is a curve itself; .svg, .png or .pdf."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"the figure is to be {path.name!r}; its name must end in .svg, .png or .pdf")
    if experiment.figure is None:
        raise UserError(f"{experiment.name} is a table, not a figure; reproduce without --figure shows it")
    found = lines(experiment, rows)
    if not found:
        raise UserError(f"nothing that {experiment.name} draws has been measured yet")
    from matplotlib.figure import Figure

    figure = Figure((7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, line in found.items():
        axes.plot(*zip(*line, strict=True), marker="." if len(line) < 40 else "", label=name)
    shape = experiment.figure
    axes.set(xlabel=shape.across, ylabel=shape.title, title=experiment.title)
    axes.title.set(wrap=True, fontsize=9)
    if "x" in shape.log:
        axes.set_xscale("log")
    if "y" in shape.log:
        axes.set_yscale("log")
    axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:].lower())


def lines(experiment: Experiment, rows: list[Row]) -> dict[str, Line]:
    """The points of each line by its name, from left to right; of several seeds the mean."""
    shape = experiment.figure
    assert shape is not None
    points: dict[str, dict[float, list[float]]] = {}
    budgets = {row.get("epochs") for row in rows} - {None}
    for row in rows:
        match = re.search(shape.cell, row["cell"])
        x, y = row.get(shape.field) if shape.field else match and float(match[1]), row.get(shape.up)
        if x is None or y is None:
            continue
        name = row["cell"].replace(match[0], "") if match else row["cell"]
        if len(budgets) > 1 and row.get("epochs") is not None:
            name += f", {row['epochs']} epochs"
        for left, up in zip(*_curve(x, y), strict=True):
            points.setdefault(name, {}).setdefault(left, []).append(up)
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
