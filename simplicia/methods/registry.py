"""The registry of methods: ``@register("byol")`` next to a class makes it known everywhere."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from simplicia.methods.base import Bottleneck, Method
from simplicia.registry import Entry, Registry
from simplicia.sem import Temperature

_METHODS: Registry[type[Method]] = Registry("method", arguments=3)  # encoder, bottleneck, second_temperature
_RECOMMENDED: dict[str, dict[str, Any]] = {}

names = _METHODS.names
kind = _METHODS.get
options = _METHODS.options  # the defaults are the paper's
converted = _METHODS.converted


def register(name: str, recipe: Mapping[str, Any] | None = None) -> Callable[[Entry], Entry]:
    """Register a method, with the recipe settings it recommends, such as ``{"optim.lr": 0.5}``."""
    _RECOMMENDED[name] = dict(recipe or {})
    return _METHODS.register(name)


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
