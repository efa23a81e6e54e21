"""The paper's figures, and what SEM adds in its tables, drawn from stored results alone."""

import re
import statistics
from itertools import pairwise
from pathlib import Path

from simplicia.errors import UserError
from simplicia.experiments.experiment import Experiment, Figure
from simplicia.experiments.store import CellResult
from simplicia.experiments.tables import longest_pairs, mean_and_error
from simplicia.report.plots import Axis, Chart, Note, Series, check_suffix, save
from simplicia.report.plots.chart import GREY
from simplicia.result import is_number

BUDGET = {
    "epochs": ", {} epochs",
    "batch_size": ", batch {}",
    "probe": ", probe {}",
    "protocol": ", {}",
}  # in a line's name


def draw(experiment: Experiment, rows: list[CellResult], path: Path) -> None:
    """A figure of the paper, or what SEM adds to each method of a table; .svg, .png or .pdf."""
    check_suffix(path)
    if experiment.figure is None and not any(cell.baseline for cell in experiment.cells):
        raise UserError(f"{experiment.name} is a table, not a figure; reproduce without --figure shows it")
    chart = (
        line_chart(experiment, experiment.figure, rows) if experiment.figure else pair_chart(experiment, rows)
    )
    if not chart.series:
        raise UserError(f"nothing that {experiment.name} draws has been measured yet")
    save(chart, path)


def line_chart(experiment: Experiment, figure: Figure, rows: list[CellResult]) -> Chart:
    """A line for each series of cells, or for each cell that is a curve itself; mean over seeds."""
    lines: dict[str, dict[float, list[float]]] = {}
    differ = {key: text for key, text in BUDGET.items() if len({row[key] for row in rows} - {None}) > 1}
    if experiment.mixes_epochs:
        differ.pop("epochs", None)
    for row in rows:
        match = re.search(figure.cell, row.cell)
        x = row.get(figure.field) if figure.field else match and float(match[1])
        y = row.get(figure.y_field)
        if x is None or y is None:
            continue
        name = row.cell.replace(match[0], "") if match else row.cell
        name += "".join(text.format(row[key]) for key, text in differ.items() if row[key] is not None)
        if not isinstance(x, list):
            x, y = [x], [y]
        if not isinstance(y, list) or len(x) - len(y) not in (0, 1) or not all(map(is_number, [*x, *y])):
            fields = f"{figure.field} and {figure.y_field}" if figure.field else figure.y_field
            raise UserError(
                f"the result {row.cell!r} cannot be drawn: {fields} must be numbers, as many of each"
            )
        if len(x) == len(y) + 1:  # a histogram, drawn at the middle of its bins
            x = [(low + high) / 2 for low, high in pairwise(x)]
        for left, up in zip(x, y, strict=True):
            lines.setdefault(name, {}).setdefault(left + figure.offset, []).append(up)
    series = [
        Series(
            name, sorted(line), [statistics.mean(line[x]) for x in sorted(line)], i, markers=len(line) < 40
        )
        for i, (name, line) in enumerate(lines.items())
    ]
    x_axis, y_axis = Axis(figure.x_label, "x" in figure.log), Axis(figure.y_label, "y" in figure.log)
    return Chart(experiment.title, x_axis, y_axis, series, size=(7, 4.5))


def pair_chart(experiment: Experiment, rows: list[CellResult]) -> Chart:
    """For each method a bar from its accuracy without SEM to that with it; the paper's below it, in grey."""
    methods = longest_pairs(experiment, rows)
    names = [str(cell.baseline) for cell in experiment.cells if cell.name in methods]
    x_axis = Axis("test accuracy, %; open: without SEM, filled: with SEM; ticks: ± error")
    y_axis = Axis(names=names, limits=(len(methods) - 0.4, -0.6))  # the first on top
    chart = Chart(experiment.title, x_axis, y_axis, [], size=(7, 1.2 + 0.5 * len(methods)))
    several = ", mean if several seeds" if any(len(pairs) > 1 for pairs in methods.values()) else ""
    labels = {GREY: f"the paper, {experiment.epochs} epochs"}  # of the first bar of each colour
    for y, pairs in enumerate(methods.values()):
        labels.setdefault(0, f"{pairs[0][0].epochs} epochs{several}")
        both = [mean_and_error(seeds) for seeds in zip(*pairs, strict=True)]
        means, errors = [mean for mean, _ in both], [error or 0.0 for _, error in both]
        papers = [row.paper for row in pairs[0] if row.paper is not None]
        bars = [(means, errors, y - (0.15 if experiment.in_paper else 0), 0)]
        bars += [(papers, [0.0, 0.0], y + 0.2, GREY)] if len(papers) == 2 else []
        for ends, spreads, height, colour in bars:
            label, labels[colour] = labels[colour], ""
            chart.series.append(Series(label, ends, [height, height], colour))
            rises = ends[1] >= ends[0]
            for x, spread, hollow in zip(ends, spreads, (True, False), strict=True):
                for tick in sorted({x - spread, x + spread} - {x}):
                    chart.series.append(Series("", [tick, tick], [height - 0.1, height + 0.1], colour))
                chart.series.append(Series("", [x], [height], colour, kind="points", hollow=hollow))
                left = hollow == rises
                at = x - spread if left else x + spread
                chart.notes.append(Note(at, height, f"{x:.1f}", "left" if left else "right", colour))
    return chart
