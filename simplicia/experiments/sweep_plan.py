"""What a sweep tries: a recipe, and values of some of its settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simplicia import methods
from simplicia.errors import UserError, unknown
from simplicia.evaluate.probe import ProbeSettings
from simplicia.settings import as_dict, convert, flat, from_dict, with_changes
from simplicia.train import recipes, run_dir
from simplicia.train.recipe import Recipe

HOLDOUT = 0.1
PROBE_EPOCHS = 30  # to rank trials; a final probe trains longer
Choice = str | int | float | bool | None


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; written ``"0.1..1:log"``."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True)
class Plan:
    """What a sweep does; stored with its trials, so that a resumed sweep is the same one."""

    recipe: Recipe
    grid: dict[str, list[Choice]]  # every combination is a trial
    search: dict[str, list[Choice] | Range]  # or: trials are drawn from these
    temperatures: tuple[float, ...]  # downstream ones, of the selection probe
    probe_epochs: int
    prune: bool

    @property
    def settings(self) -> dict[str, list[Choice] | Range]:
        """What is varied."""
        return {**self.grid, **self.search}

    @property
    def probe(self) -> ProbeSettings:
        """The probe that trials are ranked by."""
        return ProbeSettings(temperatures=self.temperatures, epochs=self.probe_epochs)

    def points(self) -> list[dict[str, Choice]]:
        """The trials of a grid, the last setting varying fastest."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]

    def check(self) -> None:
        """Raise a UserError for a value no run can have, before anything is trained."""
        for name, values in self.settings.items():
            for value in [values.low, values.high] if isinstance(values, Range) else values:
                with_changes(self.recipe, {name: value}).checked()
        if self.recipe.holdout == 0:
            raise UserError("holdout is 0; a sweep chooses on held-out training images; give a share of them")
        if self.recipe.data == "auto":
            raise UserError(
                f"recipe {self.recipe.name!r} is for your own images; give --data with a folder or a name"
            )
        self.probe.validate()

    def as_dict(self) -> dict[str, Any]:
        return as_dict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Plan":
        search = {k: _stored_range(v) if isinstance(v, dict) else v for k, v in values["search"].items()}
        recipe, temperatures = from_dict(values["recipe"], Recipe), tuple(values["temperatures"])
        return cls(**{**values, "recipe": recipe, "search": search, "temperatures": temperatures})


def _stored_range(values: dict[str, Any]) -> Range:
    integer = values.get("integer", values.get("whole", False))  # its name in version 0.1
    return Range(values["low"], values["high"], values["log"], integer)


def make_plan(
    recipe: Recipe | str,
    changes: dict[str, Any],
    *,
    grid: Mapping[str, Any] | None,
    search: Mapping[str, Any] | None,
    temperatures: Sequence[float] | None,
    probe_epochs: int | None,
    prune: bool | None,
) -> Plan:
    """The plan of a new sweep, checked."""
    base = recipes.get(recipe) if isinstance(recipe, str) else recipe
    base = run_dir.with_absolute_paths(with_changes(base, {"holdout": base.holdout or HOLDOUT, **changes}))
    if grid and search:
        raise UserError("both a grid and a search were given; give one of them")
    prune = bool(search) if prune is None else prune
    if prune and base.online_every == 0:
        base = with_changes(base, {"online_every": max(1, base.epochs // 10)})
    plan = Plan(
        recipe=base,
        grid=read_grid(base, grid or {}),
        search=read_search(base, search or {}),
        temperatures=tuple(temperatures or ProbeSettings().temperatures),
        probe_epochs=probe_epochs or PROBE_EPOCHS,
        prune=prune,
    )
    plan.check()
    return plan


def resume_plan(
    stored: Plan,
    recipe: Recipe | str,
    changes: dict[str, Any],
    folder: Path,
    *,
    grid: Mapping[str, Any] | None,
    search: Mapping[str, Any] | None,
    temperatures: Sequence[float] | None,
    probe_epochs: int | None,
    prune: bool | None,
) -> Plan:
    """The plan of the sweep in a folder; a UserError if something else is asked now."""
    name = recipe if isinstance(recipe, str) else recipe.name
    base = run_dir.with_absolute_paths(with_changes(stored.recipe, changes))
    asked = {
        "grid": read_grid(base, grid) if grid else None,
        "search": read_search(base, search) if search else None,
        "temperatures": tuple(temperatures) if temperatures else None,
        "probe_epochs": probe_epochs,
        "prune": prune,
    }
    differ = [key for key, value in asked.items() if value not in (None, getattr(stored, key))]
    if name != stored.recipe.name:
        differ.insert(0, f"recipe ({stored.recipe.name!r})")
    now, before = flat(as_dict(base)), flat(as_dict(stored.recipe))
    differ += [f"{key} ({before.get(key)!r})" for key in now if now[key] != before.get(key)]
    if differ:
        raise UserError(f"{folder} was begun with another {differ[0]}; give the same, or another --out")
    return stored


def read_grid(recipe: Recipe, grid: Mapping[str, str | Sequence[Any]]) -> dict[str, list[Choice]]:
    """Settings with the values each takes; as text, ``"16,64,256"``."""
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
            out[_setting(recipe, given)] = _read_range(recipe, given, values)
        elif isinstance(values, Range):
            out[_setting(recipe, given)] = values
        else:
            out |= read_grid(recipe, {given: values})
    return out


def _read_range(recipe: Recipe, given: str, text: str) -> Range:
    ends, _, scale = text.partition(":")
    name = _setting(recipe, given)
    low, high = (_typed(recipe, name, end) for end in ends.split("..", 1))
    if scale not in ("", "log") or not _is_number(low) or not _is_number(high):
        raise UserError(f"{given} is {text!r}; a range is two numbers, as in 0.1..1 or 0.1..1:log")
    assert isinstance(low, int | float) and isinstance(high, int | float)
    log = scale == "log"
    if not -math.inf < low < high < math.inf or (log and low <= 0):
        limits = "above 0 and rising" if log else "rising"
        raise UserError(f"{given} is {text!r}; the ends of that range must be finite, {limits}")
    return Range(low, high, log, isinstance(low, int) and isinstance(high, int))


def _is_number(value: Choice) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _setting(recipe: Recipe, given: str) -> str:
    """The name of a setting in recipes; ``byol.momentum`` is an option of the method."""
    name = given.replace("-", "_")
    head, _, tail = name.partition(".")
    if head == recipe.method and tail:
        if tail not in methods.options(recipe.method):
            raise unknown(f"option of method {recipe.method!r}:", tail, methods.options(recipe.method))
        return f"options.{tail}"
    if name in ("name", "holdout", "options"):
        raise UserError(f"{given} cannot be swept; sweep a setting of training, such as sem.simplices")
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
