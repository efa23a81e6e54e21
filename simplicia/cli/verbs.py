"""Verbs: a typed function is a verb, its parameters are arguments and options.

    @verb("export RUN FILE", "export the encoder …")
    def export(run: RunFolder, file: Annotated[str, "file to write"], *, layer: Layer = None) -> None:

Parameters before the star are arguments, those after it options. A parameter whose type is a dataclass stands
for its fields: those without a default are arguments. A parameter of type ``Settings`` gets the settings of a
recipe or a protocol, whose defaults the third argument of ``verb`` makes from the words given. A parameter of
type ``Words`` gets those words.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, NewType

from simplicia.cli.options import Parser
from simplicia.settings import options_of, with_changes

Words = NewType("Words", list[str])
Defaults = Callable[[Parser, list[str]], Any]


class Settings(NamedTuple):
    """Settings by default, and the changes that were given."""

    defaults: Any
    changes: dict[str, Any]

    def checked(self) -> Any:
        """The settings with their changes, validated."""
        settings = with_changes(self.defaults, self.changes)
        settings.validate()
        return settings


class Verb(NamedTuple):
    """A verb of the command line."""

    usage: str
    summary: str
    function: Callable[..., None]
    defaults: Defaults | None

    def run(self, words: list[str]) -> None:
        """Parse the words into the function's parameters, and call it."""
        parser = Parser(self.usage, self.function.__doc__)
        parameters, options = inspect.signature(self.function).parameters, options_of(self.function)
        groups = {n: options_of(o.type) for n, o in options.items() if dataclasses.is_dataclass(o.type)}
        for name, option in options.items():
            if name in groups:
                for field in groups[name].values():
                    parser.add(field, positional=field.default is dataclasses.MISSING)
            elif option.type not in (Settings, Words):
                parser.add(option, positional=parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY)
        defaults = None
        if self.defaults is not None:
            defaults = self.defaults(parser, words)
            parser.add_settings(defaults)
        values = parser.parse(words)
        for name, option in options.items():
            if name in groups:
                values[name] = option.type(**{field: values[field] for field in groups[name]})
            elif option.type is Settings:
                values[name] = Settings(defaults, parser.changes(values))
            elif option.type is Words:
                values[name] = words
        self.function(**{name: values[name] for name in options})


VERBS: dict[str, Verb] = {}


def verb(usage: str, summary: str, defaults: Defaults | None = None) -> Callable[[Any], Any]:
    """Register a verb: ``usage`` is its name and arguments, the function's docstring its description."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        VERBS[usage.split()[0]] = Verb(usage, summary, function, defaults)
        return function

    return register


def defaults_of(module: str, name: str) -> Defaults:
    """Defaults of a dataclass that is imported when its verb is used."""
    return lambda parser, words: getattr(importlib.import_module(f"simplicia.{module}"), name)()
