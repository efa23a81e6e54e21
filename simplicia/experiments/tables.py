"""Markdown from stored results alone: the tables of an experiment, and the page of all."""

import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simplicia.errors import UserError
from simplicia.experiments import store
from simplicia.experiments.experiment import EXPERIMENTS, Column, Experiment
from simplicia.experiments.store import CellResult
from simplicia.result import paired_error

Pair = tuple[CellResult, CellResult]  # without SEM, with it
PROTOCOL = ("pretrained_on", "batch_size", "protocol", "probe")  # equal in these: comparable
UNKNOWN = {"pretrained_on": "unknown data", "batch_size": "of unknown size"}
HEAD = """# Results

The paper's tables and figures next to what this code measured. `simplicia reproduce --page docs/results.md`
writes the page from the JSON files it links to; no number in its tables is typed in. The paragraphs above
some tables are written by hand. [reproduce.md](reproduce.md) says how to measure them.
"""
PAPER = """## On the paper's data, measured by its rules

On the paper's data set with the paper's protocol of measuring. Pre-training follows this code's recipes,
which differ from the paper's in three defaults: the first convolution has padding 1 (the authors' code: 2),
the projector receives p - 1/V instead of p, and the learning rate moves at every step instead of once per
epoch. SwAV's prototypes have length 1, as in its own paper; the authors' code trains their lengths. Each
table states its budget: where it is less than the paper's (1000 epochs on CIFAR-100, 200 on ImageNet), the
numbers are those of a shorter training.
"""
OTHER = """## On other data, or by other rules

**These are not the paper's experiments**: they are the same cells on another data set, or measured with a
shorter probe. They show that the machinery works; do not compare them with the paper's numbers.
"""


def page(results: Path, path: Path) -> str:
    """All results as one page; its links lead from its path to the JSON files."""
    if not results.is_dir():
        raise UserError(f"there is no folder of results {str(results)!r}; give --results")
    parts = [HEAD]
    for folder, introduction in (("paper", PAPER), ("other", OTHER)):
        files = {name: results / folder / f"{name}.json" for name in EXPERIMENTS}
        sections = [_section(EXPERIMENTS[name], file, path) for name, file in files.items() if file.exists()]
        parts += [introduction, *(sections or ["Nothing has been measured yet.\n"])]
        if folder == "paper" and sections:
            parts.append(_missing(results / folder))
    return "\n".join(parts)


def _missing(folder: Path) -> str:
    """What is not measured, at the number of epochs that most cells were measured with."""
    left = []
    for name, experiment in EXPERIMENTS.items():
        count = len(experiment.cells)
        cells = defaultdict[int | None, set[int]](set)  # measured cells by epochs; None: regardless of epochs
        for row in store.read(folder / f"{name}.json"):
            if row.failed is None and (index := experiment.index(row.cell)) < count:
                cells[None if experiment.mixes_epochs else row.epochs].add(index)
        always = cells.pop(None, set())
        most = max(cells, key=lambda epochs: (len(cells[epochs]), epochs or 0), default=None)
        done = len(always | cells[most])
        if done < count:
            at = f" at {most} epochs" if most is not None else ""
            left.append(f"{name} ({count - done} of {count} cells{at})" if done else name)
    return f"### Not measured yet\n\n{', '.join(left)}.\n" if left else ""


def _section(experiment: Experiment, file: Path, page: Path) -> str:
    link = quote(Path(os.path.relpath(file.resolve(), page.resolve().parent)).as_posix())
    note = file.with_suffix(".md")
    try:
        text = note.read_text(encoding="utf-8").strip() + "\n\n" if note.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{note} cannot be read as text: {error}") from error
    return f"### {experiment.name}\n\n{text}{markdown(experiment, store.read(file), link)}"


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


def error_of_difference(one: CellResult, two: CellResult) -> tuple[float, bool]:
    """Standard error of the difference of two accuracies, and whether it pairs their test images."""
    stored = (one.get("correct_images"), two.get("correct_images"))
    paired = paired_error(*stored) if one.dataset == two.dataset else None
    independent = math.hypot(one.standard_error or 0, two.standard_error or 0)
    return (independent, False) if paired is None else (paired, True)


def _budget(experiment: Experiment) -> list[str]:
    """What rows of one table have in common, besides the protocol and the device."""
    return [] if experiment.mixes_epochs else ["epochs"]


def _grouped(rows: Iterable[CellResult], *keys: str) -> list[list[CellResult]]:
    groups = defaultdict[tuple[Any, ...], list[CellResult]](list)
    for row in rows:
        groups[tuple(row.get(key) for key in keys)].append(row)
    return list(groups.values())


def _longest_first(group: list[CellResult]) -> int:
    return -(group[0].epochs or 0)


def _table(caption: str, titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table under a bold caption."""
    head, *rows = (f"| {' | '.join(row)} |" for row in (titles, *lines))
    return "\n".join([f"**{_escape(caption)}.**\n", head, "|" + "---|" * len(titles), *rows]) + "\n"


def _overview(experiment: Experiment, rows: list[CellResult], link: str | None) -> str:
    """Accuracies by epochs of pre-training, means where there are several seeds."""
    row, budgets = rows[0], sorted({row.epochs or 0 for row in rows})
    own = row.pretrained_on == experiment.data
    titles = ["cell", *(f"{epochs} epochs" for epochs in budgets)]
    titles += [f"paper, {experiment.epochs} epochs"] if own else []
    means = "; of several seeds the mean" if len({row.seed for row in rows}) > 1 else ""
    title = f"{experiment.title}, by epochs of pre-training on {_known(row, 'pretrained_on')}"
    lines = []
    for cell in _grouped(rows, "cell"):
        by_epochs = [[r.accuracy or 0 for r in cell if r.epochs == epochs] for epochs in budgets]
        line = [_name(cell[0], link), *(f"{statistics.mean(a):.1f}" if a else "-" for a in by_epochs)]
        lines.append(line + ([_text(experiment, cell[0], "paper", "")] if own else []))
    return _table(f"{title}; {_protocol(row)}; in percent{means}", titles, lines)


def _differences(experiment: Experiment, rows: list[CellResult], link: str | None) -> list[str]:
    """A table of what SEM adds to the accuracy, if there are cells with and without it."""
    with_error = [row for row in rows if row.standard_error is not None]
    lines = []
    for group in sorted(_grouped(with_error, *_budget(experiment)), key=_longest_first):
        for pairs in _pairs(experiment, group).values():
            added = [(b.accuracy or 0) - (a.accuracy or 0) for a, b in pairs]
            errors, are_paired = zip(*(error_of_difference(a, b) for a, b in pairs), strict=True)
            papers = [row.paper for row in pairs[0] if row.paper is not None]
            ours = f"{statistics.mean(added):+.1f} ± {statistics.mean(errors):.1f}"
            paper = f"{papers[1] - papers[0]:+.1f}" if len(papers) == 2 else "-"
            each = ", ".join(
                f"{a.get('seed', '-')}: {x:+.1f}" for (a, _), x in zip(pairs, added, strict=True)
            )
            how = "paired" if all(are_paired) else "unpaired"
            epochs = str(pairs[0][1].get("epochs", "-"))
            lines.append([_name(pairs[0][1], link), epochs, ours, how, paper, each])
    titles = ["cell", "epochs", "ours", "±", f"paper, {experiment.epochs} epochs", "seed by seed"]
    error = "±: standard error of the test images of one seed, paired if both results say which are correct"
    title = f"{experiment.title}: what SEM adds, in percent"
    return [_table(f"{title}; {_protocol(rows[0])}; {error}", titles, lines)] if lines else []


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
        [_name(row, link), *(_text(experiment, row, key, form) for _, key, form in columns)]
        for cell in _grouped(rows, "cell")
        for row in (*cell, *_mean_of_seeds(cell))
    ]
    return _table(_caption(experiment, rows), ["cell", *(title for title, _, _ in columns)], lines)


def _mean_of_seeds(rows: list[CellResult]) -> list[CellResult]:
    """The mean of a cell with several seeds, with their standard deviation."""
    seeds = [row.accuracy for row in rows if row.accuracy is not None]
    if len(seeds) < 2:
        return []
    values = {"accuracy": statistics.mean(seeds), "standard_error": statistics.stdev(seeds)}
    about = {"paper": rows[-1].paper, "pretrained_on": rows[-1].pretrained_on}
    return [CellResult.make(cell=f"{rows[0].cell}, mean of {len(seeds)} seeds", **about, **values)]


def _caption(experiment: Experiment, rows: list[CellResult]) -> str:
    """What all rows have in common: protocol and budget."""
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


def _name(row: CellResult, link: str | None) -> str:
    name = _escape(row.cell)
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
