"""Typed settings: one annotation per setting gives its type, help text, range, ``--help`` line and YAML.

A setting is a field of a dataclass, or a keyword parameter of a registered class:

    epochs: Annotated[int, "passes over the images", Range(low=1)] = 1000
    jitter_prob: Annotated[float, "probability of colour jitter", Range(0, 1), Formerly("jitter")] = 0.8

Names and types are strict: an unknown name suggests the nearest one, a value of the wrong type or out of its
range is a UserError of one sentence.
"""

import dataclasses
import inspect
import math
import os
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, Union

from simplicia.errors import UserError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers a setting takes; ``above`` and ``below`` are not among them."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    empty: bool = True  # whether a tuple may have no numbers

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below

    def __str__(self) -> str:
        low = f"at least {self.low:g}" if self.low > -math.inf else ""
        low = f"above {self.above:g}" if self.above > -math.inf else low
        high = f"at most {self.high:g}" if self.high < math.inf else ""
        high = f"below {self.below:g}" if self.below < math.inf else high
        return " and ".join(words for words in (low, high) if words) or "finite"


class Formerly(str):
    """The name a setting had in an earlier version; it still loads."""


class Option(NamedTuple):
    """A setting as its annotation describes it."""

    name: str
    type: Any  # without the annotation
    default: Any
    help: str = ""
    range: Range | None = None
    formerly: str | None = None

    def convert(self, value: Any, path: str) -> Any:
        """A plain value, or a command line's string, as this setting's type and within its range."""
        found = convert(value, self.type, path)
        self.check(found, path)
        return found

    def check(self, value: Any, path: str) -> None:
        """A UserError if a choice is unknown or a number is out of range; each of several is checked."""
        if typing.get_origin(self.type) is Literal:
            convert(value, self.type, path)
        if value == () and self.range is not None and not self.range.empty:
            raise UserError(f"{path} is empty; give at least one number")
        for number in value if isinstance(value, tuple | list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if not math.isfinite(number):
                raise UserError(f"{path} is {value}; it must be finite")
            if self.range is not None and number not in self.range:
                raise UserError(f"{path} is {value}; it must be {self.range}")


def options_of(source: Any, skip: int = 0) -> dict[str, Option]:
    """The settings of a dataclass, or the keyword parameters of a callable after the first ``skip``."""
    is_class = isinstance(source, type) and not dataclasses.is_dataclass(source)
    target: Any = source.__init__ if is_class else source
    hints = typing.get_type_hints(target, include_extras=True)
    if dataclasses.is_dataclass(source):
        defaults = {f.name: _default(f) for f in dataclasses.fields(source)}
    else:
        parameters = list(inspect.signature(source).parameters.values())[skip:]
        defaults = {p.name: p.default for p in parameters}
    return {name: _option(name, hints.get(name, Any), default) for name, default in defaults.items()}


def walk(settings: Any, prefix: str = "") -> Iterator[tuple[str, Option, Any]]:
    """Every setting of a dataclass with its dotted name and value, nested ones included."""
    for name, option in options_of(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", option, value


def check(settings: Any) -> None:
    """A UserError for the first setting that is out of its range."""
    for path, option, value in walk(settings):
        option.check(value, path)


def as_dict(settings: Any) -> dict[str, Any]:
    """Settings as plain dicts, lists, numbers and strings."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    return plain(dataclasses.asdict(settings))


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, with dots in their names."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def from_dict(values: Any, cls: type[T], prefix: str = "") -> T:
    """The settings that ``as_dict`` gave; an unknown name or a value of the wrong type is a UserError."""
    if not isinstance(values, dict):
        raise UserError(f"{prefix or 'the recipe'} is {values!r}; it must be a mapping of settings")
    options = options_of(cls)
    out = {}
    for given, value in values.items():
        name = current_name(given, options)
        if name is None:
            raise unknown("setting", f"{prefix}{given}", [f"{prefix}{n}" for n in options])
        out[name] = convert(value, options[name].type, f"{prefix}{name}")
    return cls(**out)


def current_name(name: Any, options: dict[str, Option]) -> str | None:
    """The name a setting has now, given that or an earlier one; None if there is no such setting."""
    if name in options:
        return name
    return next((option.name for option in options.values() if option.formerly == name), None)


def with_changes(settings: T, changes: dict[str, Any]) -> T:
    """A copy with some settings changed: ``{"epochs": 5, "sem.vertices": 13, "sem": {"blocks": 8}}``."""
    method = getattr(settings, "method", None)
    if changes.get("method", method) != method:  # options belong to the method they were given for
        settings = dataclasses.replace(settings, options={})  # type: ignore[type-var]
    for path, value in changes.items():
        settings = _with_change(settings, path, value, "")
    return settings


def _with_change(settings: Any, path: str, value: Any, prefix: str) -> Any:
    head, _, rest = path.partition(".")
    options = options_of(type(settings))
    name = current_name(head, options)
    before: Any = None if name is None else getattr(settings, name)
    nested = dataclasses.is_dataclass(before)
    if name is None or (rest and not nested and not isinstance(before, dict)):
        raise unknown("setting", f"{prefix}{path}", [f"{prefix}{n}" for n in options])
    full_name = f"{prefix}{name}"
    if not nested and not isinstance(before, dict):
        after = convert(value, options[name].type, full_name)
    elif nested and not rest and isinstance(value, type(before)):
        after = value
    else:
        inner = {rest: value} if rest else convert(value, dict, full_name)
        after = before if nested else {**before, **inner}
        for inner_path, inner_value in inner.items() if nested else ():
            after = _with_change(after, inner_path, inner_value, f"{full_name}.")
    return dataclasses.replace(settings, **{name: after})


def convert(value: Any, hint: Any, name: str) -> Any:
    """A plain value (or a command line's string) as the type a setting has."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(value, hint, prefix=f"{name}.")  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return convert(value, next(a for a in arguments if a is not type(None)), name)
    if origin is Literal:
        if str(value) not in arguments:
            raise UserError(f"{name} is {value!r}; choose {', '.join(map(repr, arguments))}")
        return str(value)
    if origin is tuple:
        return _tuple(value, arguments, name)
    if hint is dict or origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{name} is {value!r}; it must be a mapping of settings")
        return value
    return _scalar(value, hint, name)


def check_seed(seed: int) -> None:
    """A UserError for a seed that torch does not take."""
    if not -(2**63) <= seed < 2**63:
        raise UserError(f"seed is {seed}; it must be a whole number of at most 63 bits")


def _tuple(value: Any, arguments: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        items = [items]
    if arguments[-1] is Ellipsis and [str(item).lower() for item in items] == ["none"]:
        items = []
    if arguments[-1] is not Ellipsis and len(items) != len(arguments):
        raise UserError(f"{name} is {value!r}; it takes {len(arguments)} values")
    kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else arguments
    return tuple(convert(item, kind, name) for item, kind in zip(items, kinds, strict=True))


def _scalar(value: Any, hint: type, name: str) -> Any:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    wrong = UserError(f"{name} is {value!r}; it must be {words[hint]}")
    if hint is bool:
        flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in flags:
            raise wrong
        return flags[str(value).lower()]
    if hint is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bool) or (hint is str and not isinstance(value, str)):
        raise wrong
    try:
        number = hint(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if hint is int and isinstance(value, float) and number != value:
        raise wrong
    if hint is float and number != number:
        raise wrong
    return number


def _default(f: dataclasses.Field) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _option(name: str, hint: Any, default: Any) -> Option:
    hint, *marks = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    words = next((mark for mark in marks if type(mark) is str), "")
    bounds = next((mark for mark in marks if isinstance(mark, Range)), None)
    former = next((str(mark) for mark in marks if isinstance(mark, Formerly)), None)
    return Option(name, hint, default, words, bounds, former)
