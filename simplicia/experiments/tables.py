"""Markdown from stored results alone: the tables of an experiment."""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from simplicia.experiments.experiment import Column, Experiment
from simplicia.experiments.store import CellResult
from simplicia.result import paired_error

Pair = tuple[CellResult, CellResult]  # without SEM, with it
PROTOCOL = ("pretrained_on", "batch_size", "protocol", "probe")  # equal in these: comparable
UNKNOWN = {"pretrained_on": "unknown data", "batch_size": "of unknown size"}


def markdown(experiment: Experiment, rows: list[CellResult], link: str | None = None) -> str:
    """A table for each budget of pre-training, the longest first; cells lead to ``link``.

    With several budgets, a table of accuracies by epochs comes first. What SEM adds follows the first table,
    if there are cells with and without it.
    """
    rows = sorted(rows, key=lambda row: (experiment.index(row.cell), row.seed or 0))
    parts = []
    for comparable in _grouped(rows, *PROTOCOL):
        budgets = _grouped(comparable, *_budget(experiment), "device")
        measured = [row for row in comparable if row.accuracy is not None]
        with_epochs = [row for row in measured if row.epochs is not None]
        several = len({row.epochs for row in with_epochs}) > 1 and not experiment.mixes_epochs
        tables = [_overview(experiment, with_epochs, link)] if several else []
        tables += [_budget_table(experiment, group, link) for group in sorted(budgets, key=_longest_first)]
        parts += [tables[0], *_differences(experiment, measured, link), *tables[1:]]
    return "\n".join(parts)


def every_pair(experiment: Experiment, rows: list[CellResult]) -> dict[str, list[Pair]]:
    """The pairs of all budgets of an experiment whose cells set their own."""
    groups = _grouped([row for row in rows if row.accuracy is not None], *PROTOCOL)
    return {name: pairs for group in groups for name, pairs in _pairs(experiment, group).items()}


def longest_pairs(experiment: Experiment, rows: list[CellResult]) -> dict[str, list[Pair]]:
    """The pairs of the budget with most of them; of several such, the one with most epochs."""
    measured = [row for row in rows if row.accuracy is not None]
    budgets = sorted(_grouped(measured, *PROTOCOL, *_budget(experiment)), key=_longest_first)
    return max((_pairs(experiment, group) for group in budgets), key=len, default={})


def _pairs(experiment: Experiment, rows: list[CellResult]) -> dict[str, list[Pair]]:
    """Results without and with SEM by the cell with it, one pair for each seed; the rows share a budget."""
    by_seed = {(row.cell, row.seed): row for row in rows}
    pairs: dict[str, list[Pair]] = {}
    for cell in experiment.cells:
        for (name, seed), row in by_seed.items():
            part = f", {row.part}" if row.part else ""
            if name == f"{cell.baseline}{part}" and (cell.name + part, seed) in by_seed:
                pairs.setdefault(cell.name + part, []).append((row, by_seed[cell.name + part, seed]))
    return pairs


def difference(pairs: list[Pair]) -> tuple[str, str]:
    """What SEM adds, the mean over seeds with the error of one, and whether the error is paired."""
    errors, are_paired = zip(*(_error_of_difference(*pair) for pair in pairs), strict=True)
    added = statistics.mean(_added(*pair) for pair in pairs)
    return f"{added:+.1f} ± {statistics.mean(errors):.1f}", "paired" if all(are_paired) else "unpaired"


def _added(one: CellResult, two: CellResult) -> float:
    return (two.accuracy or 0) - (one.accuracy or 0)


def _error_of_difference(one: CellResult, two: CellResult) -> tuple[float, bool]:
    """Standard error of the difference of two accuracies, and whether it pairs their test images."""
    stored = (one.get("correct_images"), two.get("correct_images"))
    paired = paired_error(*stored) if one.dataset == two.dataset else None
    independent = math.hypot(one.standard_error or 0, two.standard_error or 0)
    return (independent, False) if paired is None else (paired, True)


def _budget(experiment: Experiment) -> list[str]:
    """The fields, apart from protocol and device, in which all rows of a table agree."""
    return [] if experiment.mixes_epochs else ["epochs"]


def _grouped(rows: Iterable[CellResult], *keys: str) -> list[list[CellResult]]:
    groups = defaultdict[tuple[Any, ...], list[CellResult]](list)
    for row in rows:
        groups[tuple(row.get(key) for key in keys)].append(row)
    return list(groups.values())


def _longest_first(group: list[CellResult]) -> int:
    return -(group[0].epochs or 0)


def table(caption: str, titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table under a bold caption."""
    head, *rows = (f"| {' | '.join(row)} |" for row in (titles, *lines))
    return "\n".join([f"**{_escape(caption)}.**\n", head, "|" + "---|" * len(titles), *rows]) + "\n"


def _overview(experiment: Experiment, rows: list[CellResult], link: str | None) -> str:
    """Accuracies by epochs of pre-training, means where there are several seeds."""
    row, budgets = rows[0], sorted({row.epochs or 0 for row in rows})
    own = row.pretrained_on == experiment.data
    titles = ["cell", *(f"{epochs} epochs" for epochs in budgets)]
    titles += [f"paper, {experiment.epochs} epochs"] if own else []
    means = "; mean if several seeds" if len({row.seed for row in rows}) > 1 else ""
    title = f"{experiment.title}, by epochs of pre-training on {_known(row, 'pretrained_on')}"
    lines = []
    for cell in _grouped(rows, "cell"):
        by_epochs = [[r.accuracy or 0 for r in cell if r.epochs == epochs] for epochs in budgets]
        line = [row_name(cell[0].cell, link), *(f"{statistics.mean(a):.1f}" if a else "-" for a in by_epochs)]
        lines.append(line + ([_text(experiment, cell[0], "paper", "")] if own else []))
    return table(f"{title}; {_protocol(row)}; in percent{means}", titles, lines)


def _differences(experiment: Experiment, rows: list[CellResult], link: str | None) -> list[str]:
    """A table of what SEM adds to the accuracy, if there are cells with and without it."""
    with_error = [row for row in rows if row.standard_error is not None]
    lines = []
    for group in sorted(_grouped(with_error, *_budget(experiment)), key=_longest_first):
        for pairs in _pairs(experiment, group).values():
            papers = [row.paper for row in pairs[0] if row.paper is not None]
            paper = f"{papers[1] - papers[0]:+.1f}" if len(papers) == 2 else "-"
            each = ", ".join(f"{a.get('seed', '-')}: {_added(a, b):+.1f}" for a, b in pairs)
            epochs = str(pairs[0][1].get("epochs", "-"))
            lines.append([row_name(pairs[0][1].cell, link), epochs, *difference(pairs), paper, each])
    titles = ["cell", "epochs", "ours", "±", f"paper, {experiment.epochs} epochs", "seed by seed"]
    error = "±: standard error of the test images of one seed, paired if both results say which are correct"
    title = f"{experiment.title}: what SEM adds, in percent"
    return [table(f"{title}; {_protocol(rows[0])}; {error}", titles, lines)] if lines else []


def _budget_table(experiment: Experiment, rows: list[CellResult], link: str | None) -> str:
    columns: list[Column] = []
    if any(row.accuracy is not None or row.failed is not None for row in rows):
        own = any(row.pretrained_on == experiment.data for row in rows)  # the paper has no other data
        columns += [("paper, %", "paper", "")] if own and experiment.in_paper else []
        columns.append(("ours, %", "accuracy", ".1f"))
    columns += [c for c in experiment.columns if any(row.get(c[1]) is not None for row in rows)]
    # a note that all rows share is in the caption
    columns += [(key, key, "") for key in ("seed", "note") if len({row.get(key) for row in rows}) > 1]
    lines = [
        [row_name(row.cell, link), *(_text(experiment, row, key, form) for _, key, form in columns)]
        for cell in _grouped(rows, "cell")
        for row in (*cell, *_mean_of_seeds(cell))
    ]
    return table(_caption(experiment, rows), ["cell", *(title for title, _, _ in columns)], lines)


def mean_and_error(rows: Sequence[CellResult]) -> tuple[float, float | None]:
    """The mean accuracy of seeds and their standard deviation; of one seed the standard error of its test."""
    accuracies = [row.accuracy or 0.0 for row in rows]
    error = statistics.stdev(accuracies) if len(rows) > 1 else rows[0].standard_error
    return statistics.mean(accuracies), error


def _mean_of_seeds(rows: list[CellResult]) -> list[CellResult]:
    """The mean of a cell with several seeds, with their standard deviation."""
    seeds = [row for row in rows if row.accuracy is not None]
    if len(seeds) < 2:
        return []
    values = dict(zip(("accuracy", "standard_error"), mean_and_error(seeds), strict=True))
    about = {"paper": rows[-1].paper, "pretrained_on": rows[-1].pretrained_on}
    return [CellResult.make(cell=f"{rows[0].cell}, mean of {len(seeds)} seeds", **about, **values)]


def _caption(experiment: Experiment, rows: list[CellResult]) -> str:
    """Describe the protocol and budget of all rows."""
    row = rows[0]
    words = [experiment.title, _protocol(row)]
    if encoders := list(dict.fromkeys(row.encoder for row in rows if row.encoder is not None)):
        words.append(f"encoder: {', '.join(encoders)}")
    if row.epochs is not None:
        data, batch = _known(row, "pretrained_on"), _known(row, "batch_size")
        budget = f"{_range(rows, 'epochs', 'epochs')} on {data}, batch {batch}"
        words.append(f"pre-training: {budget}, {_known(row, 'device')}, {_range(rows, 'seconds', 's')} each")
    if any(row.probe_seconds is not None for row in rows):
        words.append(f"measuring: {_range(rows, 'probe_seconds', 's')}")
    if any(row.standard_error is not None for row in rows):
        several = any(_mean_of_seeds(cell) for cell in _grouped(rows, "cell"))
        means = ", of a mean the standard deviation of its seeds" if several else ""
        words.append(f"±: standard error of the test images{means}")
    if row.note is not None and len({row.note for row in rows}) == 1:
        words.append(row.note)
    return "; ".join(words)


def _protocol(row: CellResult) -> str:
    protocol = _known(row, "protocol")
    return f"{protocol}, settings: {row.probe}" if row.probe is not None else protocol


def _known(row: CellResult, key: str) -> str:
    """A field as a caption shows it; files of strangers may lack it."""
    return str(row.get(key, UNKNOWN.get(key, f"unknown {key}")))


def row_name(cell: str, link: str | None) -> str:
    """A cell's name, which leads to the file."""
    name = _escape(cell)
    return name if link is None else f"[{name}]({link})"


def _range(rows: list[CellResult], key: str, unit: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return "time unknown"
    return f"{' to '.join(dict.fromkeys(f'{value:.0f}' for value in (min(values), max(values))))} {unit}"


def _text(experiment: Experiment, row: CellResult, key: str, form: str) -> str:
    """A field of a row as a table shows it."""
    value = row.get(key)
    if key == "accuracy" and row.failed is not None:
        return "diverged" if row.protocol == "diverged" else "failed"
    if key == "paper" and value is None and row.pretrained_on == experiment.data:
        index = experiment.index(row.cell)
        if index < len(experiment.cells) and not experiment.cells[index].in_paper:
            return "not in the paper"
        return "figure only" if experiment.figure else "-"
    if value is None:
        return "-"
    text = f"{value:{form}}" if isinstance(value, int | float) else _escape(str(value))
    has_error = key == "accuracy" and row.standard_error is not None
    return f"{text} ± {row.standard_error:.1f}" if has_error else text


def _escape(text: str) -> str:
    """Text without meaning to Markdown or HTML."""
    text = re.sub(r"([\\|`\[\]])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;")
