"""Typed settings from and to plain values: dataclasses in, dicts out, strict about names and types."""

import dataclasses
import os
import types
import typing
from typing import Any, Literal, TypeVar, Union

from simplicia.errors import UserError, unknown

T = TypeVar("T")


def as_dict(settings: Any) -> dict[str, Any]:
    """A recipe as plain dicts, lists, numbers and strings."""

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


def from_dict(values: Any, cls: type, prefix: str = "") -> Any:
    """The settings that ``as_dict`` gave; an unknown name or a value of the wrong type is an error."""
    if not isinstance(values, dict):
        raise UserError(f"{prefix or 'the recipe'} is {values!r}; it must be a mapping of settings")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    out = {}
    for name, value in values.items():
        if name not in names:
            raise unknown("setting", f"{prefix}{name}", [f"{prefix}{n}" for n in names])
        out[name] = convert(value, hints[name], f"{prefix}{name}")
    return cls(**out)


def with_changes(settings: T, changes: dict[str, Any]) -> T:
    """A copy with some settings changed: ``{"epochs": 5, "sem.vertices": 13, "sem": {"blocks": 8}}``."""
    values = as_dict(settings)
    if changes.get("method", values.get("method")) != values.get("method"):
        values["options"] = {}  # they are of the method before

    def put(target: dict[str, Any], name: str, value: Any, path: str) -> None:
        if name not in target:
            raise unknown("setting", path + name, [path + known for known in target])
        if isinstance(value, dict) and isinstance(target[name], dict) and name != "options":
            for inner, inner_value in value.items():
                put(target[name], inner, inner_value, f"{path}{name}.")
        elif name == "options" and isinstance(value, dict):
            target[name] = {**target[name], **value}
        else:
            target[name] = value

    for name, value in changes.items():
        target, path = values, ""
        *parents, last = name.split(".")
        for parent in parents:
            if not isinstance(target.get(parent), dict):
                raise unknown("setting", name, values)
            target, path = target[parent], f"{path}{parent}."
        if path == "options.":
            target[last] = value
        else:
            put(target, last, value, path)
    return from_dict(values, type(settings))


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
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            items = [items]
        if arguments[-1] is Ellipsis and [str(item).lower() for item in items] == ["none"]:
            items = []
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise UserError(f"{name} is {value!r}; it takes {len(arguments)} values")
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else arguments
        return tuple(convert(item, kind, name) for item, kind in zip(items, kinds, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"{name} is {value!r}; it must be a mapping of settings")
        return value
    return _scalar(value, hint, name)


def check_seed(seed: int) -> None:
    """A UserError for a seed that torch does not take."""
    if not -(2**63) <= seed < 2**63:
        raise UserError(f"seed is {seed}; it must be a whole number of at most 63 bits")


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
