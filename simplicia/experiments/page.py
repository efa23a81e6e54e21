"""The page of all results: a summary, then every experiment."""

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from simplicia.errors import UserError
from simplicia.experiments import store
from simplicia.experiments.budget import Budgets
from simplicia.experiments.experiment import EXPERIMENTS, Cell
from simplicia.experiments.store import CellResult
from simplicia.experiments.tables import (
    Pair,
    difference,
    every_pair,
    longest_pairs,
    markdown,
    mean_and_error,
    row_name,
    table,
)

HEAD = """# Results

The paper's tables and figures next to what this code measured. `simplicia reproduce --page docs/results.md`
writes the page from the JSON files it links to; no number in its tables is typed in. The paragraphs above
some tables are written by hand. [Reproduce](reproduce.md) says how to measure them.
"""
PAPER = """## On the paper's data, measured by its rules

On the paper's data set with the paper's protocol of measuring. Pre-training follows this code's recipes,
which differ from the paper's in three defaults: the first convolution has padding 1 (the authors' code: 2),
the projector receives p - 1/V instead of p, and the learning rate moves at every step instead of once per
epoch. p - 1/V equals p only where BatchNorm follows the projector's first layer (BYOL, Barlow Twins, SwAV,
VICReg); in SimCLR, MoCo and DINO it changes training. SwAV's prototypes have length 1, as in its own paper;
the authors' code trains their lengths. Each table states its budget: where it is less than the paper's (1000
epochs on CIFAR-100, 200 on ImageNet), the numbers are those of a shorter training.
"""
OTHER = """## On other data, or by other rules

**These are not the paper's experiments**: they are the same cells on another data set, or measured with a
shorter probe. They show that the machinery works; do not compare them with the paper's numbers.
"""


SECONDS = """
Seconds are estimates of training alone, from the step times in `bench/step.json`; a probe takes one to four
minutes more. Runs that several commands share count in each.
"""
CONTROLS = ("dino-short", "hard-discretisation", "centred", "learning-rate", "embed-control")


@dataclass(frozen=True)
class Planned:
    """Cells to measure by one command."""

    experiment: str
    only: tuple[str, ...] = ()
    epochs: int | None = None
    seeds: tuple[int, ...] = (0,)

    @property
    def command(self) -> str:
        words = ["reproduce", self.experiment]
        words += ["--only", *self.only] if self.only else []
        words += ["--epochs", str(self.epochs)] if self.epochs is not None else []
        words += ["--seeds", *map(str, self.seeds)] if self.seeds != (0,) else []
        return shlex.join(words)


PLANNED = (  # the cheapest decisive ones first
    Planned("equal-time", ("time of 200",)),
    Planned("embed-control"),
    Planned("centred"),
    Planned("learning-rate"),
    Planned("gain"),
    Planned("elsewhere"),
    Planned("paper-budget"),
    Planned("hard-discretisation", ("gumbel", "vq"), 200),
    Planned("cost", ("resnet18 BYOL + SEM/8, accuracy",), 200),
    Planned("encoder-scaling", ("=RN-50 BYOL", "=RN-50 BYOL + SEM"), 100),
    *(
        Planned(name, (), 100)
        for name in ("tau-pretrain", "L-sweep", "V-sweep", "embedder-type", "embedder-bn")
    ),
    Planned("equal-time", ("time of 100",)),
    Planned("dino-scout"),
    Planned("table1", ("byol", "vicreg"), 200, (1, 2)),
    Planned("speedrun", ("held-out",)),
    Planned("speedrun", ("record A: ",), None, (0, 1, 2)),
    Planned("speedrun-cifar10", (), None, (0, 1, 2)),
)


def page(results: Path, path: Path) -> str:
    """All results as one page; its links lead from its path to the JSON files."""
    if not results.is_dir():
        raise UserError(f"there is no folder of results {str(results)!r}; give --results")
    parts = [HEAD, *_front(results, path)]
    for folder, introduction in (("paper", PAPER), ("other", OTHER)):
        files = {name: results / folder / f"{name}.json" for name in EXPERIMENTS}
        sections = [
            f"### {name}\n\n{_note(file)}{markdown(EXPERIMENTS[name], store.read(file), _link(file, path))}"
            for name, file in files.items()
            if file.exists()
        ]
        parts += [introduction, *(sections or ["Nothing has been measured yet.\n"])]
        if folder == "paper" and sections:
            parts.append(_unmeasured(results / folder))
    return "\n".join(parts)


def _unmeasured(folder: Path) -> str:
    """List the cells without results, at the number of epochs that most cells were measured with."""
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


def _note(file: Path) -> str:
    """The text written by hand that belongs to a file of results."""
    note = file.with_suffix(".md")
    try:
        return note.read_text(encoding="utf-8").strip() + "\n\n" if note.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{note} cannot be read as text: {error}") from error


def _link(file: Path, page: Path) -> str:
    return quote(Path(os.path.relpath(file.resolve(), page.resolve().parent)).as_posix())


def _front(results: Path, page: Path) -> list[str]:
    """The summary: Table 1, equal time, 1000 epochs, the controls, and the measurements left to do."""
    folder = results / "paper"
    parts = [_note(folder / "front.json"), _table1(folder, page), _equal_time(folder, page)]
    parts.append(_accuracies("The paper's 1000 epochs, or the most that fit", ["paper-budget"], folder, page))
    parts += [_accuracies("Controls", CONTROLS, folder, page), _left(folder, results / "bench" / "step.json")]
    return ["## At a glance\n", *(part.rstrip("\n") + "\n" for part in parts if part)]


def _table1(folder: Path, page: Path) -> str:
    experiment, file = EXPERIMENTS["table1"], folder / "table1.json"
    link, methods, lines = _link(file, page), longest_pairs(experiment, store.read(file)), []
    for pairs in methods.values():
        papers = ["-" if row.paper is None else f"{row.paper:.1f}" for row in pairs[0]]
        name = row_name(pairs[0][0].cell, link)
        lines.append([name, *_means(pairs), *difference(pairs), _seeds([a for a, _ in pairs]), *papers])
    if not lines:
        return ""
    epochs = next(iter(methods.values()))[0][0].get("epochs", "unknown")
    titles = ["method", "alone, %", "with SEM, %", "SEM adds", "±", "seeds", "paper, alone", "with SEM"]
    return table(f"{experiment.title}, {epochs} epochs; the paper: {experiment.epochs}", titles, lines)


def _equal_time(folder: Path, page: Path) -> str:
    experiment, file = EXPERIMENTS["equal-time"], folder / "equal-time.json"
    link, lines = _link(file, page), []
    for name, pairs in every_pair(experiment, store.read(file)).items():
        epochs = " and ".join(str(row.epochs) for row in pairs[0])
        seeds = _seeds([a for a, _ in pairs])
        lines.append([row_name(name, link), *_means(pairs), *difference(pairs), epochs, seeds])
    titles = ["cell", "alone, %", "with SEM, %", "SEM adds", "±", "epochs", "seeds"]
    return table(experiment.title, titles, lines) if lines else ""


def _accuracies(title: str, names: Iterable[str], folder: Path, page: Path) -> str:
    """The measured cells of experiments, each after its longest training."""
    lines = []
    for name in names:
        experiment, file = EXPERIMENTS[name], folder / f"{name}.json"
        measured = [row for row in store.read(file) if row.accuracy is not None and row.failed is None]
        measured.sort(
            key=lambda row: (experiment.index(row.cell), row.cell, -(row.epochs or 0), row.seed or 0)
        )
        for cell, rows in groupby(measured, key=lambda row: row.cell):
            epochs, longest = next(groupby(rows, key=lambda row: row.epochs))
            same = list(longest)
            named = row_name(cell, _link(file, page))
            paper = "-" if same[0].paper is None else f"{same[0].paper:.1f}"
            lines.append([name, named, _mean(same), paper, str(epochs or "-"), _seeds(same)])
    titles = ["experiment", "cell", "ours, %", "paper, %", "epochs", "seeds"]
    return table(title, titles, lines) if lines else ""


def _seeds(rows: list[CellResult]) -> str:
    return ", ".join("-" if row.seed is None else str(row.seed) for row in rows)


def _mean(rows: list[CellResult]) -> str:
    accuracy, error = mean_and_error(rows)
    return f"{accuracy:.1f}" + ("" if error is None else f" ± {error:.1f}")


def _means(pairs: list[Pair]) -> list[str]:
    return [_mean([pair[i] for pair in pairs]) for i in (0, 1)]


def _left(folder: Path, step_times: Path) -> str:
    """Planned measurements without results, with the seconds that their training takes."""
    budgets, lines = Budgets(step_times), []
    for planned in PLANNED:
        experiment = EXPERIMENTS[planned.experiment]
        for seeds, cells in _missing(planned, store.read(folder / f"{planned.experiment}.json")):
            some = replace(experiment, cells=cells)
            hours = budgets.of(some, planned.epochs).hours if budgets.step_times else None
            needs = "unknown" if hours is None else f"{3600 * hours * seeds:,.0f}"
            lines.append([f"`{planned.command}`", str(seeds * len(cells)), needs])
    titles = ["simplicia …", "cells left", "GPU seconds of training"]
    return table("Not measured yet", titles, lines) + SECONDS if lines else ""


def _missing(planned: Planned, rows: list[CellResult]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
    """How many seeds lack which of the planned cells."""
    experiment = EXPERIMENTS[planned.experiment]
    wanted = [experiment.cells.index(cell) for cell in experiment.select(list(planned.only))]
    left = Counter[tuple[int, ...]]()
    for seed in planned.seeds:
        of_seed = [row for row in rows if row.failed is None and row.seed in (None, seed)]
        measured = {experiment.index(row.cell) for row in of_seed if planned.epochs in (None, row.epochs)}
        left[tuple(i for i in wanted if i not in measured)] += 1
    for indices, seeds in left.items():
        if indices:
            yield seeds, tuple(experiment.cells[i] for i in indices)
