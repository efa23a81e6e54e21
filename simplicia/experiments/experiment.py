"""What an experiment is: cells, each a run (a recipe with changes) and what is measured on it."""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.settings import as_dict, flat, with_changes
from simplicia.train import recipes
from simplicia.train.recipe import Recipe

CIFAR = ("cifar100", "cifar10")  # one recipe table is for both
Column = tuple[str, str, str]  # title, field of a row, format


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one curve of a figure."""

    name: str
    recipe: str | None = "byol-sem"  # what comes after the data set's name; None: nothing is trained
    changes: dict[str, Any] = field(default_factory=dict)  # what the cell is about
    setting: dict[str, Any] = field(default_factory=dict)  # changes that only CIFAR has, such as its encoder
    measure: str = "probe"  # one of measures.MEASURES
    options: dict[str, Any] = field(default_factory=dict)  # what the measure is told
    paper: float | dict[str, float] | None = None  # the paper's number, or those of a measure's parts
    ours: bool = False  # the paper has no such cell
    beside: str | None = None  # the cell without SEM that it is compared with


@dataclass(frozen=True)
class Figure:
    """What a figure of the paper has on its axes, by the fields of the rows of its cells.

    A point's place is what ``field`` holds, one number or those of a curve, or else the group of the pattern
    ``cell`` in its cell's name. The name without the pattern is that of the line.
    """

    across: str  # title of the horizontal axis
    cell: str = "$"
    field: str = ""
    up: str = "accuracy"
    title: str = "test accuracy, %"
    log: str = "x"  # axes that are logarithmic
    start: int = 0  # what is added to the places, where they are counted from 0


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    data: str = "cifar100"
    epochs: int = 1000  # of the paper's pre-training
    columns: tuple[Column, ...] = ()  # of its table besides the common ones
    figure: Figure | None = None  # the paper shows it as a figure, without numbers

    @property
    def is_ours(self) -> bool:
        """Whether the paper has nothing like it."""
        return all(cell.ours for cell in self.cells)

    @property
    def own_budgets(self) -> bool:
        """Whether its cells are about different numbers of epochs, so that they share one table."""
        return len({cell.changes.get("epochs") for cell in self.cells}) > 1

    def plan(self, cell: Cell, epochs: int | None = None) -> "Plan":
        """The run of a cell on the experiment's data, for as long as is asked, it says, or the paper has."""
        asked = epochs if epochs is not None or "epochs" in cell.changes else self.epochs
        return plan(cell, self.data, 0, asked)

    def place(self, name: str) -> int:
        """Where a row's cell is declared: it has that cell's name, or that followed by the name of a part."""
        declared = [
            (len(c.name), -i) for i, c in enumerate(self.cells) if f"{name}, ".startswith(f"{c.name}, ")
        ]
        return -max(declared)[1] if declared else len(self.cells)

    def chosen(self, words: list[str]) -> list[Cell]:
        """The cells whose name has one of the words in it, or is one of them after "="; all without words."""
        found = [c for c in self.cells if not words or any(_names(word.lower(), c) for word in words)]
        if not found:
            some = ", ".join(repr(cell.name) for cell in self.cells[:4])
            raise UserError(
                f"no cell of {self.name} has {' or '.join(words)} in its name; they are {some}, …"
            )
        return found


def _names(word: str, cell: Cell) -> bool:
    name = cell.name.lower()
    return word == f"={name}" if word.startswith("=") else word in name


@dataclass(frozen=True)
class Plan:
    """A run that is needed: its recipe's name, all that is changed, and the folder that follows from both."""

    recipe: str
    changes: dict[str, Any]
    complete: Recipe

    @property
    def differs(self) -> dict[str, Any]:
        """Settings other than the named recipe's, apart from its budget, its seed and its data."""
        named, own = (flat(as_dict(r)) for r in (recipes.get(self.recipe), self.complete))
        apart = ("name", "data", "epochs", "batch_size", "seed")
        return {k: v for k, v in own.items() if k not in apart and v != named.get(k)}

    @property
    def folder(self) -> str:
        """The name of the run's folder: the same for whoever needs the same run."""
        recipe = self.complete
        words = [self.recipe, f"{recipe.epochs}-epochs", f"batch-{recipe.batch_size}", f"seed-{recipe.seed}"]
        if recipe.data not in datasets.names():
            place = Path(recipe.data).resolve()
            words.append(f"{place.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}")
        elif not self.recipe.startswith(f"{recipe.data}-"):  # it has no recipes of its own
            words.append(recipe.data)
        words += [f"{name.replace('optim.', '')}-{value}" for name, value in sorted(self.differs.items())]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))


def plan(
    cell: Cell, data: str, seed: int = 0, epochs: int | None = None, batch_size: int | None = None
) -> Plan:
    """The run of a cell, on a data set with recipes of its own or on a folder of images."""
    assert cell.recipe is not None
    named = f"{data}-{cell.recipe}" in recipes.names()
    name = f"{data}-{cell.recipe}" if named else cell.recipe
    changes: dict[str, Any] = {**cell.changes, **(cell.setting if data in CIFAR else {}), "seed": seed}
    changes |= {} if named else {"data": data}
    changes |= {} if epochs is None else {"epochs": epochs}
    changes |= {} if batch_size is None else {"batch_size": batch_size}
    complete = with_changes(recipes.get(name), changes)
    complete = complete.checked()
    return Plan(name, changes, complete)
