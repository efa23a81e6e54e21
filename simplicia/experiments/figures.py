"""The paper's figures, and what SEM adds in its tables, drawn from stored results alone."""

import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.experiments.experiment import Experiment
from simplicia.experiments.store import CellResult
from simplicia.experiments.tables import longest_pairs
from simplicia.report.plots import Axis, Chart, Note, Series, check_suffix, save
from simplicia.report.plots.chart import GREY

Line = list[tuple[float, float]]
BUDGET = {"epochs": ", {} epochs", "batch_size": ", batch {}", "probe": ", probe {}"}  # in a line's name


def draw(experiment: Experiment, rows: list[CellResult], path: Path) -> None:
    """A figure of the paper, or what SEM adds to each method of a table; .svg, .png or .pdf."""
    check_suffix(path)
    if experiment.figure is None and not any(cell.baseline for cell in experiment.cells):
        raise UserError(f"{experiment.name} is a table, not a figure; reproduce without --figure shows it")
    chart = line_chart(experiment, rows) if experiment.figure else pair_chart(experiment, rows)
    if not chart.series:
        raise UserError(f"nothing that {experiment.name} draws has been measured yet")
    save(chart, path)


def line_chart(experiment: Experiment, rows: list[CellResult]) -> Chart:
    """A line for each series of cells, or for each cell that is a curve itself."""
    figure = experiment.figure
    assert figure is not None
    series = [
        Series(name, [x for x, _ in line], [y for _, y in line], i, markers=len(line) < 40)
        for i, (name, line) in enumerate(lines(experiment, rows).items())
    ]
    x, y = Axis(figure.x_label, "x" in figure.log), Axis(figure.y_label, "y" in figure.log)
    return Chart(experiment.title, x, y, series, size=(7, 4.5))


def lines(experiment: Experiment, rows: list[CellResult]) -> dict[str, Line]:
    """The points of each line by its name, from left to right; of several seeds the mean."""
    figure = experiment.figure
    assert figure is not None
    points: dict[str, dict[float, list[float]]] = {}
    differ = {key: text for key, text in BUDGET.items() if len({row[key] for row in rows} - {None}) > 1}
    for row in rows:
        match = re.search(figure.cell, row.cell)
        x = row.get(figure.field) if figure.field else match and float(match[1])
        y = row.get(figure.y_field)
        if x is None or y is None:
            continue
        name = row.cell.replace(match[0], "") if match else row.cell
        name += "".join(text.format(row[key]) for key, text in differ.items() if row[key] is not None)
        for left, up in zip(*_curve(x, y), strict=True):
            points.setdefault(name, {}).setdefault(left + figure.offset, []).append(up)
    return {
        name: [(x, statistics.mean(ys)) for x, ys in sorted(line.items())] for name, line in points.items()
    }


def _curve(x: Any, y: Any) -> tuple[list[float], list[float]]:
    """The points of a cell: one, a curve, or a histogram at the middle of its bins."""
    if not isinstance(x, list):
        return [x], [y]
    return ([(low + high) / 2 for low, high in pairwise(x)] if len(x) == len(y) + 1 else x), y


def pair_chart(experiment: Experiment, rows: list[CellResult]) -> Chart:
    """For each method a bar from its accuracy without SEM to that with it; the paper's below it, in grey."""
    methods = longest_pairs(experiment, rows)
    chart = Chart(
        experiment.title,
        Axis("test accuracy, %; the open end is without SEM, the full one with it"),
        Axis(
            names=[str(cell.baseline) for cell in experiment.cells if cell.name in methods],
            limits=(len(methods) - 0.4, -0.6),  # the first on top
        ),
        [],
        size=(7, 1.2 + 0.5 * len(methods)),
    )
    for y, both in enumerate(methods.values()):
        means = [statistics.mean(r.accuracy or 0 for r in seeds) for seeds in zip(*both, strict=True)]
        several = ", of several seeds the mean" if any(len(seeds) > 1 for seeds in methods.values()) else ""
        label = "" if y else f"{both[0][0].epochs} epochs{several}"
        _add_bar(chart, means, y - (0.15 if experiment.in_paper else 0), 0, label)
        papers = [row.paper for row in both[0] if row.paper is not None]
        if len(papers) == 2:
            first = all(series.colour != GREY for series in chart.series)
            _add_bar(chart, papers, y + 0.2, GREY, f"the paper, {experiment.epochs} epochs" if first else "")
    return chart


def _add_bar(chart: Chart, ends: list[float], y: float, colour: int, label: str) -> None:
    """A line from the accuracy without SEM, an open point, to that with it, with their numbers."""
    right = ends[1] >= ends[0]
    chart.series.append(Series(label, ends, [y, y], colour))
    for x, hollow in zip(ends, (True, False), strict=True):
        chart.series.append(Series("", [x], [y], colour, kind="points", hollow=hollow))
        chart.notes.append(Note(x, y, f"{x:.1f}", "right" if hollow != right else "left", colour))
