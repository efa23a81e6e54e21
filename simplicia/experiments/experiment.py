"""Experiments: cells, each a run (a recipe with changes) and a measurement of it; registered by a decorator.

@experiment("embedder-width", "Wider embedders")
def embedder_width() -> Iterator[Cell]:
    yield Cell("linear", options={"layer": "sem"}, paper=73.9)
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simplicia.data import datasets
from simplicia.errors import UserError, unknown
from simplicia.settings import as_dict, flat, with_changes
from simplicia.train import recipes
from simplicia.train.recipe import Recipe

CIFAR = ("cifar100", "cifar10")  # they share their recipes
Column = tuple[str, str, str]  # title, field of a result, format
TEMPERATURE, LAYER = ("temperature", "temperature", "g"), ("layer", "layer", "")


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one curve of a figure."""

    name: str
    recipe: str | None = "byol-sem"  # without the data set's name; None: nothing is trained
    changes: dict[str, Any] = field(default_factory=dict)  # of the recipe's settings
    cifar_changes: dict[str, Any] = field(default_factory=dict)  # only on CIFAR, such as its encoder
    measure: str = "probe"  # a function of measures.py
    options: dict[str, Any] = field(default_factory=dict)  # of that function
    paper: float | dict[str, float] | None = None  # the paper's accuracy, or one for each part
    in_paper: bool = True
    baseline: str | None = None  # the cell without SEM that this one is compared with
    as_long_as: str | None = None  # train for the time that this recipe takes for the cell's epochs

    @property
    def clock(self) -> "Cell":
        """The cell whose training time this one gets: itself, or the cell of recipe ``as_long_as``."""
        if self.as_long_as is None:
            return self
        return replace(self, recipe=self.as_long_as, changes={}, cifar_changes={})


@dataclass(frozen=True)
class Figure:
    """The axes of a figure, as fields of the results of its cells.

    The horizontal position is in ``field`` (a number, or the numbers of a curve), or else is the group of the
    pattern ``cell`` in the cell's name. The rest of that name is the name of the line.
    """

    x_label: str
    cell: str = "$"
    field: str = ""
    y_field: str = "accuracy"
    y_label: str = "test accuracy, %"
    log: str = "x"  # the logarithmic axes
    offset: int = 0  # added to x: an index counts from 0


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    data: str = "cifar100"
    epochs: int = 1000  # of the paper's pre-training
    columns: tuple[Column, ...] = ()  # of its table, after the common ones
    figure: Figure | None = None  # the paper shows a figure, without numbers

    @property
    def in_paper(self) -> bool:
        return any(cell.in_paper for cell in self.cells)

    @property
    def mixes_epochs(self) -> bool:
        """Whether its cells differ in their number of epochs and share one table."""
        return len({cell.changes.get("epochs") for cell in self.cells}) > 1

    def index(self, name: str) -> int:
        """The index of the cell that a result's name is, or starts with; ``len(cells)`` if there is none."""
        matches = [i for i, c in enumerate(self.cells) if f"{name}, ".startswith(f"{c.name}, ")]
        return max(matches, key=lambda i: len(self.cells[i].name), default=len(self.cells))

    def select(self, words: list[str]) -> list[Cell]:
        """The cells whose name contains one of the words, or equals one after "="; without words all."""

        def matches(word: str, name: str) -> bool:
            return word == f"={name}" if word.startswith("=") else word in name

        cells = [c for c in self.cells if not words or any(matches(w.lower(), c.name.lower()) for w in words)]
        if not cells:
            given, some = " or ".join(words), ", ".join(repr(cell.name) for cell in self.cells[:4])
            raise UserError(f"no cell of {self.name} has {given} in its name; they are {some}, …")
        return cells


EXPERIMENTS: dict[str, Experiment] = {}
Cells = Callable[[], Iterable[Cell]]


def experiment(
    name: str, title: str, columns: tuple[Column, ...] = (TEMPERATURE,), in_paper: bool = True, **options: Any
) -> Callable[[Cells], Cells]:
    """Register the experiment whose cells a function yields; ``in_paper``: some of them are in the paper."""

    def register(cells: Cells) -> Cells:
        every = tuple(cell if in_paper else replace(cell, in_paper=False) for cell in cells())
        EXPERIMENTS[name] = Experiment(name, title, every, columns=columns, **options)
        return cells

    return register


def get(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


@dataclass(frozen=True)
class Plan:
    """The run that a cell needs."""

    name: str  # of the recipe
    recipe: Recipe

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that differ from the named recipe's, apart from epochs, batch size, seed and data."""
        named, planned = (flat(as_dict(r)) for r in (recipes.get(self.name), self.recipe))
        apart = ("name", "data", "data_dir", "epochs", "batch_size", "seed")
        return {k: v for k, v in planned.items() if k not in apart and v != named.get(k)}

    @property
    def folder(self) -> str:
        """The name of the run's folder: cells that need the same run share it."""
        recipe = self.recipe
        words = [self.name, f"{recipe.epochs}-epochs", f"batch-{recipe.batch_size}", f"seed-{recipe.seed}"]
        if recipe.data not in datasets.names():
            path = Path(recipe.data).resolve()
            words.append(f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}")
        elif not self.name.startswith(f"{recipe.data}-"):  # a set without recipes
            words.append(recipe.data)
        words += [f"{name.replace('optim.', '')}-{value}" for name, value in sorted(self.changes.items())]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))


def plan(
    cell: Cell, data: str, seed: int = 0, epochs: int | None = None, share: float = 1.0, **given: Any
) -> Plan:
    """The run of a cell on a data set or a folder of images; ``given`` settings apply unless None.

    The run gets a ``share`` of the epochs (see ``Cell.as_long_as``).
    """
    assert cell.recipe is not None
    named = f"{data}-{cell.recipe}" in recipes.names()
    name = f"{data}-{cell.recipe}" if named else cell.recipe
    changes = {**cell.changes, **(cell.cifar_changes if data in CIFAR else {}), "seed": seed}
    changes |= {} if named else {"data": data}
    changes |= {k: v for k, v in {"epochs": epochs, **given}.items() if v is not None}
    recipe = with_changes(recipes.get(name), changes)
    if share != 1:
        recipe = with_changes(recipe, {"epochs": max(1, int(recipe.epochs * share))})
    return Plan(name, recipe.checked())
