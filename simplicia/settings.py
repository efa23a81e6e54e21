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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union

from simplicia.errors import UserError, unknown

T = TypeVar("T")
Entry = TypeVar("Entry")
LARGEST_COUNT, LARGEST_NUMBER = 2**31 - 1, 1e30  # products of larger ones overflow int64 or float32
# names in other tools, by the last part of the setting's name here
_NAMES_ELSEWHERE = {
    "lr": "learning-rate base-lr",
    "weight-decay": "wd",
    "temperature": "tau",
    "epochs": "n e num-epochs max-epochs",
    "batch-size": "b bs batch",
    "out": "o output output-dir",
    "data": "d dataset",
    "simplices": "l num-simplices",
    "vertices": "v num-vertices",
    "encoder": "arch model backbone",
    "optim.name": "opt optimizer optimiser",
    "image-size": "resolution img-size",
    "device": "gpu gpus",
    "warmup-epochs": "warmup",
}
SYNONYMS = {other: name for name, others in _NAMES_ELSEWHERE.items() for other in others.split()}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


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
        names = {"low": "at least", "above": "above", "high": "at most", "below": "below"}
        bounds = [f"{words} {getattr(self, name):g}" for name, words in names.items()]
        return " and ".join(words for words in bounds if not words.endswith("inf")) or "finite"


class Formerly(str):
    """The name a setting had in an earlier version; it still loads."""


class Option(NamedTuple):
    """A setting as its annotation describes it."""

    name: str
    type: Any  # without the annotation
    default: Any
    help: str = ""
    range: Range | None = None
    formerly: tuple[str, ...] = ()

    def convert(self, value: Any, path: str) -> Any:
        """Convert a plain value, or a command line's string, to the setting's type, and check its range."""
        converted = convert(value, self.type, path)
        self.check(converted, path)
        return converted

    def check(self, value: Any, path: str) -> None:
        """Raise a UserError if a choice is unknown or a number is out of range."""
        if typing.get_origin(self.type) is Literal:
            convert(value, self.type, path)
        if value == () and self.range is not None and not self.range.empty:
            raise UserError(f"{path} is empty; give at least one number")
        for number in value if isinstance(value, tuple | list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{path} is {value}; it must be finite")
            if self.range is not None and number not in self.range:
                raise UserError(f"{path} is {value}; it must be {self.range}")
            most = LARGEST_COUNT if isinstance(number, int) else LARGEST_NUMBER
            if abs(number) > most and (self.range is None or self.range.high == math.inf):
                raise UserError(f"{path} is {value}; it must be at most {most:g}")


def options_of(source: Any) -> dict[str, Option]:
    """Return the settings of a dataclass, or the parameters of a function or class."""
    annotated: Any = source
    if dataclasses.is_dataclass(source):
        defaults = {
            f.name: f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            for f in dataclasses.fields(source)
        }
    else:
        defaults = {name: p.default for name, p in inspect.signature(source).parameters.items()}
        annotated = annotated.__init__ if isinstance(source, type) else source
    hints = typing.get_type_hints(annotated, include_extras=True)
    options = {}
    for name, default in defaults.items():
        hint = hints.get(name, Any)
        hint, *marks = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        about = {type(mark): mark for mark in marks}
        formerly = tuple(mark for mark in marks if isinstance(mark, Formerly))
        options[name] = Option(name, hint, default, about.get(str, ""), about.get(Range), formerly)
    return options


def current_name(
    name: Any, options: Mapping[str, Option], kind: str = "setting", prefix: str = "", nested: Any = None
) -> str:
    """Return the name a setting has now, given that or an earlier one; a UserError for an unknown name.

    The error also looks among the ``nested`` settings: it names optim.lr for lr.
    """
    for option in options.values():
        if name == option.name or name in option.formerly:
            return option.name
    shown = f"{prefix}{name}"
    if nested is not None and (meant := meant_by(str(name), [path for path, _, _ in walk(nested, prefix)])):
        raise UserError(f"unknown {kind} {shown!r}; did you mean {' or '.join(map(repr, meant))}?")
    raise unknown(kind, shown, [f"{prefix}{known}" for known in options])


def meant_by(name: str, known: Iterable[str]) -> list[str]:
    """The known names that an unknown one stands for in other tools, or that end in it.

    >>> meant_by("learning_rate", ["epochs", "optim.lr"]), meant_by("epochs", ["epochs", "a.epochs"])
    (['optim.lr'], ['epochs'])
    """
    word = name.lower().replace("_", "-")
    word = SYNONYMS.get(word, word)
    dashed = {path.replace("_", "-"): path for path in known}
    ending = [path for shown, path in dashed.items() if shown.rpartition(".")[2] == word]
    return [dashed[word]] if word in dashed else ending


def walk(settings: Any, prefix: str = "") -> Iterator[tuple[str, Option, Any]]:
    """Yield every setting of a dataclass with its dotted name and value, nested ones included."""
    for name, option in options_of(type(settings)).items():
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", option, value


def check(settings: Any) -> None:
    """Raise a UserError for the first setting that is out of its range."""
    for path, option, value in walk(settings):
        option.check(value, path)


def as_dict(settings: Any) -> Any:
    """Return settings as plain dicts, lists, numbers and strings."""
    if dataclasses.is_dataclass(settings):
        settings = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    if isinstance(settings, dict):
        return {name: as_dict(value) for name, value in settings.items()}
    return [as_dict(value) for value in settings] if isinstance(settings, list | tuple) else settings


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level, with dots in their names."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def from_dict(values: Any, cls: type[T], prefix: str = "") -> T:
    """Build settings from what ``as_dict`` returned; a UserError for an unknown name or a wrong type."""
    values = convert(values, dict, prefix.rstrip(".") or "the recipe")
    options = options_of(cls)
    default = options["method"].default if "method" in options else None
    values = _spelled(cls, values, values.get("method", default))
    named = {current_name(name, options, prefix=prefix): value for name, value in values.items()}
    return cls(**{name: convert(value, options[name].type, prefix + name) for name, value in named.items()})


def with_changes(settings: T, changes: Mapping[str, Any], prefix: str = "") -> T:
    """Copy settings and change some: ``{"epochs": 5, "sem.vertices": 13, "byol": {"hidden": 64}}``."""
    options = options_of(type(settings))
    after: Any = settings
    if "method" in options and changes.get("method", after.method) != after.method:
        after = dataclasses.replace(after, options={})  # options belong to the method they were given for
    changes = _spelled(type(settings), changes, changes.get("method", getattr(after, "method", None)))
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        name = current_name(head, options, prefix=prefix, nested=settings)
        before, full_name = getattr(after, name), f"{prefix}{name}"
        if rest:
            if not dataclasses.is_dataclass(before) and not isinstance(before, dict):
                raise unknown("setting", f"{prefix}{path}", [f"{prefix}{known}" for known in options])
            value = {rest: value}
        if dataclasses.is_dataclass(before) and isinstance(value, dict):
            value = with_changes(before, value, f"{full_name}.")
        value = convert(value, options[name].type, full_name)
        value = {**before, **value} if isinstance(before, dict) else value
        after = dataclasses.replace(after, **{name: value})
    return after


def _spelled(cls: Any, values: Mapping[str, Any], method: Any) -> Mapping[str, Any]:
    """The settings as the class spells them, if it says so: "byol.hidden" is "options.hidden"."""
    return cls.spelled(values, method) if hasattr(cls, "spelled") else values


def convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a plain value, or a command line's string, to the type a setting has."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(value, hint, f"{name}.")  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return convert(value, next(a for a in arguments if a is not type(None)), name)
    if origin is Literal:
        if str(value) not in arguments:
            raise UserError(f"{name} is {value!r}; choose {', '.join(map(repr, arguments))}")
        return str(value)
    if origin is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        items = items if isinstance(items, list | tuple) else [items]
        if arguments[-1] is Ellipsis:
            items = [] if [str(item).lower() for item in items] == ["none"] else items
            arguments = (arguments[0],) * len(items)
        if len(items) != len(arguments):
            raise UserError(f"{name} is {value!r}; it takes {len(arguments)} values")
        return tuple(convert(item, kind, name) for item, kind in zip(items, arguments, strict=True))
    if hint is dict or origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{name} is {value!r}; it must be a mapping of settings")
        return value
    return _scalar(value, hint, name)


def _scalar(value: Any, hint: type, name: str) -> Any:
    given = value
    try:
        if hint is bool:
            return _FLAGS[str(value).lower()]
        if hint is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, bool) or (hint is str and not isinstance(value, str)):
            raise TypeError
        converted = hint(value)
        is_cut = hint is int and isinstance(value, float) and converted != value
        if is_cut or converted != converted:  # 2.5 for a whole number, or NaN
            raise ValueError
        return converted
    except (KeyError, TypeError, ValueError, OverflowError):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise UserError(f"{name} is {given!r}; it must be {words[hint]}") from None


class Registry(Generic[T]):
    """Classes by name, registered by a decorator next to their code.

        METHODS: Registry[Method] = Registry("method", arguments=3)

        @METHODS.register("byol")
        class BYOL(TargetMethod): ...

    The first ``arguments`` parameters of a class are arguments of ``create``; the others are its options.
    """

    def __init__(self, kind: str, arguments: int):
        self.kind, self.arguments = kind, arguments
        self._classes: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorate a class to register it under ``name``."""

        def add(cls: Entry) -> Entry:
            present = self._classes.get(name, cls)
            if present.__module__ != cls.__module__:
                raise ValueError(
                    f"{self.kind} {name!r} is taken by {present.__module__}; choose another name"
                )
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """Return the registered names, sorted.

        >>> simplicia.methods.names()
        ['barlow', 'byol', 'dino', 'moco', 'simclr', 'swav', 'vicreg']
        """
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """Return the class registered under ``name``; a UserError suggests the nearest name."""
        if name not in self._classes:
            raise unknown(self.kind, name, self.names())
        return self._classes[name]

    def options(self, name: str) -> dict[str, Option]:
        """Return the options of a class with their types, defaults, help texts and ranges.

        >>> simplicia.methods.options("byol")["hidden"].default
        4096
        """
        return dict(list(options_of(self.get(name)).items())[self.arguments :])

    def create(self, name: str, *arguments: Any, **options: Any) -> T:
        """Build an instance from its arguments and options; option names and ranges are checked."""
        known, kind = self.options(name), f"option of {self.kind} {name!r}:"
        options = {current_name(option, known, kind): value for option, value in options.items()}
        for option, value in options.items():
            known[option].check(value, f"{name}.{option}")
        return self.get(name)(*arguments, **options)

    def converted(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Convert options from a file or a command line to their current names and types, in range.

        >>> simplicia.methods.converted("byol", {"hidden": "64"})
        {'hidden': 64}
        """
        known, kind = self.options(name), f"option of {self.kind} {name!r}:"
        named = {current_name(option, known, kind): value for option, value in options.items()}
        return {option: known[option].convert(value, f"{name}.{option}") for option, value in named.items()}
