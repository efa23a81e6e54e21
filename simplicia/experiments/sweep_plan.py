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
from simplicia.settings import as_dict, convert, flat, from_dict, walk, with_changes
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
    recipe: Recipe | str, changes: dict[str, Any], asked: dict[str, Any], stored: Plan | None = None
) -> Plan:
    """The plan of a sweep, checked; what is not asked is as in the stored plan, or the default.

    ``asked`` are the fields of the plan apart from the recipe; None: not asked.
    """
    base = stored.recipe if stored else recipes.get(recipe) if isinstance(recipe, str) else recipe
    base = with_changes(base, {"holdout": base.holdout or HOLDOUT, **changes})
    base = run_dir.with_absolute_paths(base)
    if asked["grid"] and asked["search"]:
        raise UserError("both a grid and a search were given; give one of them")
    values: dict[str, Any] = {"grid": {}, "search": {}, "temperatures": ProbeSettings().temperatures}
    values |= {"probe_epochs": PROBE_EPOCHS, "prune": bool(asked["search"])}
    values |= vars(stored) if stored else {}
    values |= {name: value for name, value in asked.items() if value or value is False}
    for name, read in (("grid", read_grid), ("search", read_search)):
        if asked[name]:
            values[name] = read(base, asked[name])
    if values["prune"] and base.online_every == 0:
        base = with_changes(base, {"online_every": max(1, base.epochs // 10)})
    plan = Plan(**values | {"recipe": base, "temperatures": tuple(values["temperatures"])})
    plan.check()
    return plan


def check_same(plan: Plan, stored: Plan, recipe: Recipe | str, folder: Path) -> None:
    """Raise a UserError if a sweep is resumed with another plan."""
    name = recipe if isinstance(recipe, str) else recipe.name
    before, now = flat(stored.as_dict()), flat(plan.as_dict())
    differ = sorted(
        (key for key in before | now if before.get(key) != now.get(key)),
        key=lambda key: key.startswith("recipe."),
    )
    shown = [
        f"{key.removeprefix('recipe.')} ({before.get(key)!r})" if "recipe." in key else key.split(".")[0]
        for key in differ
    ]
    if name != stored.recipe.name:
        shown.insert(0, f"recipe ({stored.recipe.name!r})")
    if shown:
        raise UserError(f"{folder} was begun with another {shown[0]}; give the same, or another --out")


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
    if scale not in ("", "log") or not (is_number(low) and is_number(high)):
        raise UserError(f"{given} is {text!r}; a range is two numbers, as in 0.1..1 or 0.1..1:log")
    log = scale == "log"
    if not -math.inf < low < high < math.inf or (log and low <= 0):
        limits = "above 0 and rising" if log else "rising"
        raise UserError(f"{given} is {text!r}; the ends of that range must be finite, {limits}")
    return Range(low, high, log, isinstance(low, int) and isinstance(high, int))


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
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
    former = {path.removesuffix(o.name) + o.formerly: path for path, o, _ in walk(recipe) if o.formerly}
    return former.get(name, name)


def _typed(recipe: Recipe, name: str, value: Any) -> Any:
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
