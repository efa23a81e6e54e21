"""The plan of a sweep: a recipe, and values of some of its settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


Values = dict[str, list[Choice] | Range]  # by setting


@dataclass(frozen=True)
class Plan:
    """The inputs of a sweep; stored with its trials, so that a resumed sweep is the same one."""

    recipe: Recipe
    grid: dict[str, list[Choice]]  # every combination is a trial
    search: Values  # or: trials are drawn from these
    temperatures: tuple[float, ...]  # downstream ones, of the selection probe
    probe_epochs: int
    prune: bool

    @property
    def settings(self) -> Values:
        """The settings that vary."""
        return {**self.grid, **self.search}

    @property
    def probe(self) -> ProbeSettings:
        """The probe that trials are ranked by."""
        return ProbeSettings(temperatures=self.temperatures, epochs=self.probe_epochs)

    def points(self) -> list[dict[str, Choice]]:
        """The trials of a grid, the last setting varying fastest."""
        return [dict(zip(self.grid, point, strict=True)) for point in itertools.product(*self.grid.values())]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Plan":
        """The plan that ``as_dict`` gave; in version 0.1 ``integer`` was ``whole``."""

        def stored_range(
            low: float, high: float, log: bool, integer: bool = False, whole: bool = False
        ) -> Range:
            return Range(low, high, log, integer or whole)

        search = {k: stored_range(**v) if isinstance(v, dict) else v for k, v in values["search"].items()}
        recipe, temperatures = from_dict(values["recipe"], Recipe), tuple(values["temperatures"])
        return cls(**{**values, "recipe": recipe, "search": search, "temperatures": temperatures})


def make_plan(
    recipe: Recipe | str, changes: dict[str, Any], asked: dict[str, Any], stored: Plan | None = None
) -> Plan:
    """Make and check the plan of a sweep; fields not asked for come from the stored plan, or are the default.

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
    for name in ("grid", "search"):
        if asked[name]:
            values[name] = read_values(base, asked[name], ranges=name == "search")
    if values["prune"] and base.online_every == 0:
        base = with_changes(base, {"online_every": max(1, base.epochs // 10)})
    plan = Plan(**values | {"recipe": base, "temperatures": tuple(values["temperatures"])})
    for name, tried in plan.settings.items():
        for value in [tried.low, tried.high] if isinstance(tried, Range) else tried:
            with_changes(base, {name: value}).checked()
    if base.holdout == 0:
        raise UserError("holdout is 0; a sweep chooses on held-out training images; give a share of them")
    if base.data == "auto":
        raise UserError(f"recipe {base.name!r} is for your own images; give --data with a folder or a name")
    plan.probe.validate()
    return plan


def first_difference(plan: Plan, stored: Plan, name: str) -> str | None:
    """How a stored plan differs from the one asked for, such as "epochs 2, not 3"; None if it does not."""
    if name != stored.recipe.name:
        return f"recipe {stored.recipe.name!r}, not {name!r}"
    before, now = as_dict(stored), as_dict(plan)
    if field := next((key for key in before if key != "recipe" and before[key] != now[key]), None):
        is_long = field in ("grid", "search")
        return f"another {field}" if is_long else f"{field} {before[field]!r}, not {now[field]!r}"
    before, now = flat(before["recipe"]), flat(now["recipe"])
    key = next((key for key in before | now if before.get(key) != now.get(key)), None)
    return key and f"{key} {before.get(key)!r}, not {now.get(key)!r}"


def read_values(
    recipe: Recipe, given: Mapping[str, str | Sequence[Any] | Range], ranges: bool = False
) -> Values:
    """Settings with the values each takes, ``"16,64,256"``, or in a search with ranges, ``"0.1..1:log"``."""
    out: Values = {}
    for word, values in given.items():
        name = _setting(recipe, word)
        if ranges and isinstance(values, Range):
            out[name] = values
        elif ranges and isinstance(values, str) and ".." in values:
            out[name] = _read_range(recipe, name, word, values)
        else:
            items = values.split(",") if isinstance(values, str) else list(values)  # type: ignore[arg-type]
            typed = list(dict.fromkeys(_typed(recipe, name, item) for item in items))
            if name in out or not typed or "" in typed:
                raise UserError(
                    f"{word} is {values!r}; give each setting once, with values such as 16,64,256"
                )
            out[name] = typed
    return out


def _read_range(recipe: Recipe, name: str, word: str, text: str) -> Range:
    ends, _, scale = text.partition(":")
    low, high = (_typed(recipe, name, end) for end in ends.split("..", 1))
    types, log = {type(low), type(high)}, scale == "log"
    if scale not in ("", "log") or not types <= {int, float}:
        raise UserError(f"{word} is {text!r}; a range is two numbers, as in 0.1..1 or 0.1..1:log")
    if not -math.inf < low < high < math.inf or (log and low <= 0):
        limits = "above 0 and rising" if log else "rising"
        raise UserError(f"{word} is {text!r}; the ends of that range must be finite, {limits}")
    return Range(low, high, log, types == {int})


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
    former = {path.removesuffix(o.name) + f: path for path, o, _ in walk(recipe) for f in o.formerly}
    return former.get(name, name)


def _typed(recipe: Recipe, name: str, value: Any) -> Any:
    """A value as the type its setting has."""
    if name.startswith("options."):
        option = name.removeprefix("options.")
        return convert(value, methods.options(recipe.method)[option].type, name)
    typed = flat(as_dict(with_changes(recipe, {name: value}))).get(name, [])
    if isinstance(typed, list):
        raise UserError(f"{name} has several values; only settings of one value can be swept")
    return typed
