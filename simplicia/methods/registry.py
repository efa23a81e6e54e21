"""The registry of methods: ``@register("byol")`` next to a class makes it known everywhere."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from simplicia.methods.base import Bottleneck, Method
from simplicia.registry import Entry, Registry
from simplicia.sem import Temperature
from simplicia.settings import Option

_METHODS: Registry[type[Method]] = Registry("method", arguments=3)  # encoder, bottleneck, second_temperature
_RECOMMENDED: dict[str, dict[str, Any]] = {}


def register(name: str, recipe: Mapping[str, Any] | None = None) -> Callable[[Entry], Entry]:
    """Register a method, with the recipe settings it recommends, such as ``{"optim.lr": 0.5}``."""
    _RECOMMENDED[name] = dict(recipe or {})
    return _METHODS.register(name)


def names() -> list[str]:
    """The names of all methods."""
    return _METHODS.names()


def kind(name: str) -> type[Method]:
    """The class of a method."""
    return _METHODS.get(name)


def options(name: str) -> dict[str, Option]:
    """The options of a method; the defaults are the paper's."""
    return _METHODS.options(name)


def converted(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method from a file or a command line, typed and checked."""
    return _METHODS.converted(name, options)


def recommended(name: str) -> dict[str, Any]:
    """The recipe settings that a method recommends; empty for most."""
    _METHODS.get(name)
    return _RECOMMENDED[name]


def create(
    name: str,
    encoder: nn.Module,
    bottleneck: Bottleneck,
    second_temperature: Temperature | None = None,
    **options: Any,
) -> Method:
    """A method by name. ``second_temperature`` is the paper's tau' (None: the bottleneck's temperature)."""
    return _METHODS.create(name, encoder, bottleneck, second_temperature, **options)
