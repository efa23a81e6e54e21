"""What a sweep tries: the recipe, and which values of which settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simplicia import methods
from simplicia.errors import UserError, unknown
from simplicia.settings import as_dict, convert, from_dict, with_changes
from simplicia.train.recipe import Recipe

Choice = str | int | float | bool | None


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; ``"0.1..1:log"`` in words."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Plan:
    """What a sweep does. It is kept with its trials, so that a sweep taken up again is the same one."""

    recipe: Recipe
    grid: dict[str, list[Choice]]  # every combination is a trial
    search: dict[str, list[Choice] | Range]  # or: trials are drawn from these
    temperatures: tuple[float, ...]  # downstream ones, of the selection probe
    probe_epochs: int
    prune: bool

    def points(self) -> list[dict[str, Choice]]:
        """The trials of a grid, the last setting varying fastest."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]

    def check(self) -> None:
        """Raise a UserError for a value no run can have, before anything is trained."""
        corners = {
            name: [values.low, values.high] if isinstance(values, Range) else values
            for name, values in {**self.grid, **self.search}.items()
        }
        for name, values in corners.items():
            for value in values:
                with_changes(self.recipe, {name: value}).checked()
        if self.recipe.holdout == 0:
            raise UserError(
                "holdout is 0; a sweep chooses on training images that were held out; give a share"
            )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recipe": as_dict(self.recipe), "temperatures": list(self.temperatures)}


def from_stored(values: dict[str, Any]) -> Plan:
    search = {k: Range(**v) if isinstance(v, dict) else v for k, v in values["search"].items()}
    recipe, temperatures = from_dict(values["recipe"], Recipe), tuple(values["temperatures"])
    return Plan(**{**values, "recipe": recipe, "search": search, "temperatures": temperatures})


def read_grid(recipe: Recipe, grid: Mapping[str, str | Sequence[Any]]) -> dict[str, list[Choice]]:
    """Settings with the values each is to have; words are ``"16,64,256"``."""
    out: dict[str, list[Choice]] = {}
    for given, values in grid.items():
        name = _setting(recipe, given)
        items = values.split(",") if isinstance(values, str) else list(values)
        typed = list(dict.fromkeys(_typed(recipe, name, item) for item in items))
        if name in out or not typed or "" in typed:
            raise UserError(f"{given} is {values!r}; give each setting once, with values such as 16,64,256")
        out[name] = typed
    return out


def read_search(
    recipe: Recipe, search: Mapping[str, str | Sequence[Any] | Range]
) -> dict[str, list[Choice] | Range]:
    """Settings with what each is drawn from: ``"0.1..1"``, ``"0.1..1:log"``, or values to choose among."""
    out: dict[str, list[Choice] | Range] = {}
    for given, values in search.items():
        if isinstance(values, str) and ".." in values:
            words, _, scale = values.partition(":")
            name = _setting(recipe, given)
            low, high = (_typed(recipe, name, word) for word in words.split("..", 1))
            numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (low, high))
            if scale not in ("", "log") or not numbers:
                raise UserError(f"{given} is {values!r}; a range is two numbers, as in 0.1..1 or 0.1..1:log")
            log = scale == "log"
            whole = isinstance(low, int) and isinstance(high, int)
            if not -math.inf < low < high < math.inf or (log and low <= 0):  # type: ignore[operator]
                limits = "above 0 and rising" if log else "rising"
                raise UserError(f"{given} is {values!r}; the ends of that range must be finite, {limits}")
            out[name] = Range(low, high, log, whole)  # type: ignore[arg-type]
        elif isinstance(values, Range):
            out[_setting(recipe, given)] = values
        else:
            out |= read_grid(recipe, {given: values})
    return out


def _setting(recipe: Recipe, given: str) -> str:
    """The name of a setting as recipes have it; ``byol.momentum`` is an option of the method."""
    name = given.replace("-", "_")
    head, _, tail = name.partition(".")
    if head == recipe.method and tail:
        if tail not in methods.options(recipe.method):
            raise unknown(f"option of method {recipe.method!r}:", tail, methods.options(recipe.method))
        return f"options.{tail}"
    if name in ("name", "holdout", "options"):
        raise UserError(f"{given} cannot be swept; sweep what a run is trained with, such as sem.simplices")
    return name


def _typed(recipe: Recipe, name: str, value: Any) -> Choice:
    """A value as the type its setting has."""
    if name.startswith("options."):
        option = name.removeprefix("options.")
        return convert(value, methods.options(recipe.method)[option].type, name)
    values = as_dict(with_changes(recipe, {name: value}))
    for part in name.split("."):
        values = values[part]
    if isinstance(values, dict | list):
        raise UserError(f"{name} has several values; only settings of one value can be swept")
    return values
