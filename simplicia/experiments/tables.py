"""Markdown from stored results alone: the tables of an experiment, and the page of all."""

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simplicia.errors import UserError
from simplicia.experiments import store
from simplicia.experiments.experiment import EXPERIMENTS, Column, Experiment
from simplicia.experiments.store import CellResult

Pair = tuple[CellResult, CellResult]  # without SEM, with it
PROTOCOL = ("pretrained_on", "batch_size", "protocol", "probe")  # equal in these: comparable
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
NOTHING = "Nothing has been measured yet.\n"


def page(results: Path, path: Path) -> str:
    """All results as one page; its links lead from its path to the JSON files."""
    if not results.is_dir():
        raise UserError(f"there is no folder of results {str(results)!r}; give --results")
    parts = [HEAD]
    for folder, introduction in (("paper", PAPER), ("other", OTHER)):
        files = {name: results / folder / f"{name}.json" for name in EXPERIMENTS}
        sections = [_section(EXPERIMENTS[name], file, path) for name, file in files.items() if file.exists()]
        parts += [introduction, *(sections or [NOTHING])]
        if folder == "paper" and sections:
            parts.append(_missing(results / folder))
    return "\n".join(parts)


def _missing(folder: Path) -> str:
    """What is not measured, at the number of epochs that most cells were measured with."""
    left = []
    for name, experiment in EXPERIMENTS.items():
        count = len(experiment.cells)
        cells: dict[int | None, set[int]] = {}  # measured cells by epochs; None: regardless of epochs
        for row in store.read(folder / f"{name}.json"):
            if row.failed is None:
                epochs = None if experiment.mixes_epochs else row.epochs
                cells.setdefault(epochs, set()).add(experiment.index(row.cell))
        always = cells.pop(None, set())
        most = max(cells, key=lambda epochs: (len(cells[epochs]), epochs or 0), default=None)
        done = len((always | cells.get(most, set())) & set(range(count)))
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
        budgets = _grouped(comparable, *(["device"] if experiment.mixes_epochs else ["epochs", "device"]))
        budgets.sort(key=lambda group: -(group[0].epochs or 0))
        measured = [row for row in comparable if row.accuracy is not None]
        several = len({row.epochs for row in measured}) > 1 and not experiment.mixes_epochs
        tables = [_overview(experiment, measured, link)] if several else []
        tables += [_budget_table(experiment, group, link) for group in budgets]
        parts += [tables[0], *_differences(experiment, measured, link), *tables[1:]]
    return "\n".join(parts)


def pairs(experiment: Experiment, rows: list[CellResult]) -> dict[str, list[Pair]]:
    """Results without and with SEM by the cell with it, one pair for each seed; the rows share a budget."""
    cells = {}
    for cell in experiment.cells:
        without, with_sem = (
            {row.seed: row for row in rows if row.cell == name} for name in (cell.baseline, cell.name)
        )
        if both := [(without[seed], with_sem[seed]) for seed in without if seed in with_sem]:
            cells[cell.name] = both
    return cells


def longest_pairs(experiment: Experiment, rows: list[CellResult]) -> dict[str, list[Pair]]:
    """The pairs of the budget with most of them; of several such, the one with most epochs."""
    measured = [row for row in rows if row.accuracy is not None]
    budgets = sorted(_grouped(measured, *PROTOCOL, "epochs"), key=lambda group: -(group[0].epochs or 0))
    return max((pairs(experiment, group) for group in budgets), key=len, default={})


def _grouped(rows: Iterable[CellResult], *keys: str) -> list[list[CellResult]]:
    groups: dict[tuple[Any, ...], list[CellResult]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return list(groups.values())


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
    title = f"{experiment.title}, by epochs of pre-training on {row.pretrained_on}"
    lines = []
    for cell in _grouped(rows, "cell"):
        by_epochs = [[r.accuracy for r in cell if r.epochs == epochs] for epochs in budgets]
        line = [_name(cell[0], link)]
        line += [f"{statistics.mean(a):.1f}" if a else "-" for a in by_epochs]  # type: ignore[type-var]
        lines.append(line + ([_text(experiment, cell[0], "paper", "")] if own else []))
    return _table(f"{title}; {_protocol(row)}; in percent{means}", titles, lines)


def _differences(experiment: Experiment, rows: list[CellResult], link: str | None) -> list[str]:
    """A table of what SEM adds to the accuracy, if there are cells with and without it."""
    lines = []
    for epochs in sorted({row.epochs or 0 for row in rows}, reverse=True):
        alike = [row for row in rows if row.epochs == epochs and row.standard_error is not None]
        for both in pairs(experiment, alike).values():
            lines.append([_name(both[0][1], link), str(epochs), *_difference(both)])
    if not lines:
        return []
    titles = ["cell", "epochs", "ours", f"paper, {experiment.epochs} epochs", "seed by seed"]
    errors = "±: standard error of the test images of one seed"
    caption = f"{experiment.title}: what SEM adds, in percent; {_protocol(rows[0])}; {errors}"
    return [_table(caption, titles, lines)]


def _difference(both: list[Pair]) -> tuple[str, str, str]:
    """The mean difference over seeds with its error, the paper's, and that of each seed."""
    differences = [(b.accuracy or 0) - (a.accuracy or 0) for a, b in both]
    error = statistics.mean(math.hypot(a.standard_error or 0, b.standard_error or 0) for a, b in both)
    papers = [row.paper for row in both[0] if row.paper is not None]
    paper = f"{papers[1] - papers[0]:+.1f}" if len(papers) == 2 else "-"
    each = ", ".join(f"{a.seed}: {x:+.1f}" for (a, _), x in zip(both, differences, strict=True))
    return f"{statistics.mean(differences):+.1f} ± {error:.1f}", paper, each


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
        for row in _with_means(rows)
    ]
    return _table(_caption(experiment, rows), ["cell", *(title for title, _, _ in columns)], lines)


def _with_means(rows: list[CellResult]) -> list[CellResult]:
    """The rows, and after the last seed of a cell the mean of its seeds with their standard deviation."""
    out: list[CellResult] = []
    left = Counter(row.cell for row in rows)
    for row in rows:
        out.append(row)
        left[row.cell] -= 1
        seeds = [r.accuracy for r in rows if r.cell == row.cell and r.accuracy is not None]
        if not left[row.cell] and len(seeds) > 1:
            out.append(
                CellResult(
                    f"{row.cell}, mean of {len(seeds)} seeds",
                    paper=row.paper,
                    pretrained_on=row.pretrained_on,
                    accuracy=statistics.mean(seeds),
                    standard_error=statistics.stdev(seeds),
                )
            )
    return out


def _caption(experiment: Experiment, rows: list[CellResult]) -> str:
    """What all rows have in common: protocol and budget."""
    row = rows[0]
    words = [experiment.title, _protocol(row)]
    if encoders := list(dict.fromkeys(row.encoder for row in rows if row.encoder is not None)):
        words.append(f"encoder: {', '.join(encoders)}")
    if row.epochs is not None:
        budget = f"{_range(rows, 'epochs')} epochs on {row.pretrained_on}, batch {row.batch_size}"
        device = row.device or "unknown device"
        words.append(f"pre-training: {budget}, {device}, {_seconds(rows, 'seconds')} each")
    if any(row.probe_seconds is not None for row in rows):
        words.append(f"measuring: {_seconds(rows, 'probe_seconds')}")
    if any(row.standard_error is not None for row in rows):
        several = len(_with_means(rows)) > len(rows)
        means = ", of a mean the standard deviation of its seeds" if several else ""
        words.append(f"±: standard error of the test images{means}")
    if row.note is not None and len({row.note for row in rows}) == 1:
        words.append(row.note)
    return "; ".join(words)


def _protocol(row: CellResult) -> str:
    return f"{row.protocol}, settings: {row.probe}" if row.probe is not None else str(row.protocol)


def _name(row: CellResult, link: str | None) -> str:
    name = _escape(row.cell)
    return name if link is None else f"[{name}]({link})"


def _range(rows: list[CellResult], key: str) -> str:
    values = sorted(row[key] for row in rows if row[key] is not None)
    return " to ".join(dict.fromkeys(f"{value:.0f}" for value in (*values[:1], *values[-1:])))


def _seconds(rows: list[CellResult], key: str) -> str:
    return f"{seconds} s" if (seconds := _range(rows, key)) else "time unknown"


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
    text = " ".join(text.split())
    for character in ("\\", "|", "`", "[", "]"):
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
