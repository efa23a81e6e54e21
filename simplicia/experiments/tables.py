"""Markdown built from what was measured, and from nothing else: a table of an experiment, a page of all."""

import math
import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simplicia.errors import UserError
from simplicia.experiments import EXPERIMENTS, store
from simplicia.experiments.experiment import Column, Experiment
from simplicia.experiments.pairs import Pair, pairs

Row = dict[str, Any]
HEAD = """# Results

The paper's tables and figures beside what this code measured. The page is written by
`simplicia reproduce --page docs/results.md` from the JSON files it links to; no number in its tables is typed
in. The paragraphs above some of them are written by hand.
[reproduce.md](reproduce.md) says how to measure them.
"""
PAPER = """## On the paper's data, measured by its rules

On the paper's data set with the paper's protocol of measuring. Pre-training follows this code's recipes,
which differ from the paper's in three defaults: the first convolution has padding 1 (the authors' code: 2),
the projector is handed p - 1/V instead of p, and the learning rate moves at every step instead of once per
epoch. SwAV's prototypes have length 1, as in its own paper; the authors' code trains their lengths. The
budget of each table stands above it: where it is less than the paper's (1000 epochs on CIFAR-100, 200 on
ImageNet), the numbers are those of a shorter training.
"""
OTHER = """## On other data, or by other rules

**These are not the paper's experiments**: they are the same cells on another data set, or measured with a
shorter probe. They show that the machinery works, and are not to be compared with the paper's numbers.
"""
NOTHING = "Nothing has been measured yet.\n"


def page(results: Path, path: Path) -> str:
    """All results as one page that is to lie at a path: its links lead from there to the JSON files."""
    if not results.is_dir():
        raise UserError(f"there is no folder of results {str(results)!r}; give --results")
    parts = [HEAD]
    for folder, words in (("paper", PAPER), ("other", OTHER)):
        parts.append(words)
        sections = [
            _section(experiment, results / folder / f"{name}.json", path)
            for name, experiment in EXPERIMENTS.items()
            if (results / folder / f"{name}.json").exists()
        ]
        parts += sections or [NOTHING]
        if folder == "paper" and sections:
            parts.append(_missing(results / folder))
    return "\n".join(parts)


def _missing(folder: Path) -> str:
    """What of the paper is still to be measured, at the budget that most cells were measured with."""
    left = []
    for name, experiment in EXPERIMENTS.items():
        rows = [row for row in store.read(folder / f"{name}.json") if "failed" not in row]
        count = len(experiment.cells)
        cells: dict[int | None, set[int]] = {}  # those measured, by epochs; None: not a matter of these
        for row in rows:
            budget = None if experiment.own_budgets else row.get("epochs")
            cells.setdefault(budget, set()).add(experiment.place(row["cell"]))
        always = cells.pop(None, set())
        most = max(cells, key=lambda epochs: (len(cells[epochs]), epochs or 0), default=None)
        done = (always | cells.get(most, set())) & set(range(count))
        if len(done) < count:
            at = f" at {most} epochs" if most is not None else ""
            left.append(f"{name} ({count - len(done)} of {count} cells{at})" if done else name)
    return f"### Not measured yet\n\n{', '.join(left)}.\n" if left else ""


def _section(experiment: Experiment, file: Path, page: Path) -> str:
    link = quote(Path(os.path.relpath(file.resolve(), page.resolve().parent)).as_posix())
    note = file.with_suffix(".md")
    try:
        words = note.read_text(encoding="utf-8").strip() + "\n\n" if note.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{note} cannot be read as text: {error}") from error
    return f"### {experiment.name}\n\n{words}{markdown(experiment, store.read(file), link)}"


def markdown(experiment: Experiment, rows: list[Row], link: str | None = None) -> str:
    """A table for each budget that rows were measured with, the longest first; each cell leads to ``link``.

    Where there are several budgets, a table of accuracies by epochs comes before them. The first table is
    followed by what SEM adds, if there are cells with and without it.
    """
    rows = sorted(rows, key=lambda row: (experiment.place(row["cell"]), row.get("seed") or 0))
    parts = []
    for alike in _grouped(rows, "pretrained_on", "batch_size", "protocol", "probe"):
        budgets = _grouped(alike, *(["device"] if experiment.own_budgets else ["epochs", "device"]))
        budgets.sort(key=lambda group: -(group[0].get("epochs") or 0))
        measured = [row for row in alike if row.get("accuracy") is not None]
        several = len({row.get("epochs") for row in measured}) > 1 and not experiment.own_budgets
        tables = [_overview(experiment, measured, link)] if several else []
        tables += [_table(experiment, group, link) for group in budgets]
        parts += [tables[0], *_differences(experiment, measured, link), *tables[1:]]
    return "\n".join(parts)


def _grouped(rows: list[Row], *keys: str) -> list[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return list(groups.values())


def _overview(experiment: Experiment, rows: list[Row], link: str | None) -> str:
    """Accuracies by epochs of pre-training, means where there are several seeds."""
    row, budgets = rows[0], sorted({row["epochs"] for row in rows})
    own = row.get("pretrained_on") == experiment.data
    titles = ["cell", *(f"{epochs} epochs" for epochs in budgets)]
    titles += [f"paper, {experiment.epochs} epochs"] if own else []
    about = f"{experiment.title}, by epochs of pre-training on {row.get('pretrained_on')}"
    means = "; of several seeds the mean" if len({row.get("seed") for row in rows}) > 1 else ""
    lines = [f"**{_plain(f'{about}; {_protocol(row)}; in percent{means}')}.**\n"]
    lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for cell in _grouped(rows, "cell"):
        found = {e: [row["accuracy"] for row in cell if row["epochs"] == e] for e in budgets}
        shown = [_linked(cell[0], link)]
        shown += [f"{statistics.mean(a):.1f}" if a else "-" for a in found.values()]
        shown += [_shown(experiment, cell[0], "paper", "")] if own else []
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _differences(experiment: Experiment, rows: list[Row], link: str | None) -> list[str]:
    """A table of what cells with SEM have more than those without, if there are such pairs."""
    lines = []
    for epochs in sorted({row.get("epochs") or 0 for row in rows}, reverse=True):
        alike = [row for row in rows if row.get("epochs") == epochs and row.get("standard_error") is not None]
        for both in pairs(experiment, alike).values():
            shown = [_linked(both[0][1], link), str(epochs), *_difference(both)]
            lines.append("| " + " | ".join(shown) + " |")
    if not lines:
        return []
    titles = ["cell", "epochs", "ours", f"paper, {experiment.epochs} epochs", "seed by seed"]
    errors = "±: standard error of the test images of one seed"
    about = f"{experiment.title}: what SEM adds, in percent; {_protocol(rows[0])}; {errors}"
    head = [f"**{_plain(about)}.**\n", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return ["\n".join(head + lines) + "\n"]


def _difference(both: list[Pair]) -> tuple[str, str, str]:
    """Between two cells, seed by seed: the mean with its error, the paper's, and each."""
    found = [b["accuracy"] - a["accuracy"] for a, b in both]
    error = statistics.mean(math.hypot(a["standard_error"], b["standard_error"]) for a, b in both)
    papers = [row["paper"] for row in both[0] if row.get("paper") is not None]
    paper = f"{papers[1] - papers[0]:+.1f}" if len(papers) == 2 else "-"
    each = ", ".join(f"{a['seed']}: {x:+.1f}" for (a, _), x in zip(both, found, strict=True))
    return f"{statistics.mean(found):+.1f} ± {error:.1f}", paper, each


def _table(experiment: Experiment, rows: list[Row], link: str | None) -> str:
    columns: list[Column] = [("cell", "cell", "")]
    accuracies = any(row.get("accuracy") is not None or "failed" in row for row in rows)
    beside = any(row.get("pretrained_on") == experiment.data for row in rows)  # of other data it says nothing
    if accuracies:
        columns += [("paper, %", "paper", "")] if beside and not experiment.is_ours else []
        columns.append(("ours, %", "accuracy", ".1f"))
    columns += [c for c in experiment.columns if any(row.get(c[1]) is not None for row in rows)]
    if len({row.get("seed") for row in rows}) > 1:
        columns.append(("seed", "seed", ""))
    if len({row.get("note") for row in rows}) > 1:  # one that all have is in the caption
        columns.append(("note", "note", ""))
    lines = [f"{_caption(experiment, rows)}\n"]
    lines.append("| " + " | ".join(title for title, _, _ in columns) + " |")
    lines.append("|" + "---|" * len(columns))
    for row in _with_means(rows):
        shown = [_shown(experiment, row, key, form) for _, key, form in columns]
        shown[0] = _linked(row, link)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _with_means(rows: list[Row]) -> list[Row]:
    """The rows, and after the last seed of a cell the mean of its seeds with their standard deviation."""
    shown: list[Row] = []
    left = Counter(row["cell"] for row in rows)
    for row in rows:
        shown.append(row)
        left[row["cell"]] -= 1
        seeds = [r for r in rows if r["cell"] == row["cell"] and r.get("accuracy") is not None]
        if left[row["cell"]] or len(seeds) < 2:
            continue
        found = [r["accuracy"] for r in seeds]
        mean = {"accuracy": statistics.mean(found), "standard_error": statistics.stdev(found)}
        common = {key: row.get(key) for key in ("paper", "pretrained_on")}
        shown.append({"cell": f"{row['cell']}, mean of {len(found)} seeds", **common, **mean})
    return shown


def _caption(experiment: Experiment, rows: list[Row]) -> str:
    """What all rows have in common: protocol and budget."""
    row = rows[0]
    words = [experiment.title]
    words.append(_protocol(row))
    encoders = list(dict.fromkeys(str(row["encoder"]) for row in rows if row.get("encoder") is not None))
    if encoders:
        words.append(f"encoder: {', '.join(encoders)}")
    if row.get("epochs") is not None:
        budget = f"{_range(rows, 'epochs')} epochs on {row['pretrained_on']}, batch {row['batch_size']}"
        device = row.get("device") or "unknown device"
        words.append(f"pre-training: {budget}, {device}, {_seconds(rows, 'seconds')} each")
    if any(row.get("probe_seconds") is not None for row in rows):
        words.append(f"measuring: {_seconds(rows, 'probe_seconds')}")
    if any(row.get("standard_error") is not None for row in rows):
        several = len(_with_means(rows)) > len(rows)
        means = ", of a mean the standard deviation of its seeds" if several else ""
        words.append(f"±: standard error of the test images{means}")
    if len({row.get("note") for row in rows}) == 1 and row.get("note") is not None:
        words.append(row["note"])
    return f"**{_plain('; '.join(words))}.**"


def _protocol(row: Row) -> str:
    how = str(row.get("protocol"))
    return f"{how}, settings: {row['probe']}" if row.get("probe") is not None else how


def _linked(row: Row, link: str | None) -> str:
    name = _plain(str(row["cell"]))
    return name if link is None else f"[{name}]({link})"


def _range(rows: list[Row], key: str) -> str:
    values = sorted(row[key] for row in rows if row.get(key) is not None)
    shown = dict.fromkeys(f"{value:.0f}" for value in (*values[:1], *values[-1:]))
    return " to ".join(shown)


def _seconds(rows: list[Row], key: str) -> str:
    return f"{found} s" if (found := _range(rows, key)) else "time unknown"


def _shown(experiment: Experiment, row: Row, key: str, form: str) -> str:
    value = row.get(key)
    if key == "accuracy" and "failed" in row:
        return "diverged" if row.get("protocol") == "diverged" else "failed"
    if key == "paper" and value is None and row.get("pretrained_on") == experiment.data:
        place = experiment.place(row["cell"])
        if place < len(experiment.cells) and experiment.cells[place].ours:
            return "not in the paper"
        return "figure only" if experiment.figure else "-"
    if value is None:
        return "-"
    text = f"{value:{form}}" if isinstance(value, int | float) else _plain(str(value))
    if key == "accuracy" and row.get("standard_error") is not None:
        text += f" ± {row['standard_error']:.1f}"
    return text


def _plain(text: str) -> str:
    """Text that means nothing to Markdown or HTML."""
    text = " ".join(text.split())
    for character in ("\\", "|", "`", "[", "]"):
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
