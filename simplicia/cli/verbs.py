"""Verbs: a typed function is a verb, its parameters are arguments and options.

    @verb("export RUN FILE")
    def export(run: RunFolder, file: Annotated[str, "file to write"], *, layer: Layer = None) -> None:

The docstring is the description, its first line the summary of ``simplicia --help``. Parameters before the
star are arguments, those after it options. A parameter whose type is a dataclass stands for its fields: those
without a default are arguments. A ``Settings`` parameter gets the settings of a recipe or a protocol, whose
defaults the second argument of ``verb`` makes or names. A ``Words`` parameter gets the words of the command.
"""

import argparse
import dataclasses
import difflib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NewType, NoReturn

from simplicia.errors import UserError
from simplicia.settings import LARGEST_COUNT, LARGEST_NUMBER, Option, Range, options_of, walk, with_changes

POSITIVE, NOT_NEGATIVE = Range(above=0), Range(low=0)
OutputFile = NewType("OutputFile", Path)
Words = NewType("Words", list[str])

# options that several verbs share
RunFolder = Annotated[str, "folder of a run"]
DataDir = Annotated[str | None, "folder of the standard data sets (default: the run's)"]
Device = Annotated[str, "auto, cpu, cuda, cuda:1 or mps"]
Json = Annotated[OutputFile | None, "file for the numbers"]
LAYERS = "encoder, embedder, sem, codes, … (default: sem if the run has it)"
Layer = Annotated[str | None, LAYERS]
Network = Annotated[str, "online or target"]
Quiet = Annotated[bool, "hide progress"]
Temperature = Annotated[float | None, "temperature of SEM (default: the run's)", NOT_NEGATIVE]


@dataclass(kw_only=True)
class Images:
    """Options of verbs that read images."""

    data: Annotated[str | None, "data set or folder of images (default: the run's)"] = None
    data_dir: DataDir = None
    device: Device = "auto"


class Settings(NamedTuple):
    """Settings by default, and the changes that were given."""

    defaults: Any
    changes: dict[str, Any]

    def checked(self) -> Any:
        """The settings with their changes, validated."""
        settings = with_changes(self.defaults, self.changes)
        settings.validate()
        return settings


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, which suggest the nearest option, and options for settings."""

    def __init__(self, usage: str, description: str | None = None, add_help: bool = True):
        name, usage = f"simplicia {usage.split()[0]}", f"simplicia {usage} [--option …]"
        super().__init__(name, usage, description, add_help=add_help, allow_abbrev=False)
        self.settings: dict[str, tuple[str, Option]] = {}  # by dotted name, with the name users see

    def add(self, option: Option, positional: bool) -> None:
        """Add an argument or an option of a verb as its annotation describes it.

        A ``tuple`` takes several values; a ``list`` also collects them when the option is repeated.
        """
        *others, kind = _kinds(option.type)
        required = option.default in (inspect.Parameter.empty, dataclasses.MISSING)
        default, several = None if required else option.default, _several(option.type)
        shown = "" if default in (None, False, (), []) else f" (default: {_words(default)})"
        about: dict[str, Any] = {"default": default, "help": (option.help + shown).replace("%", "%%")}
        if typing.get_origin(kind) is Literal:
            about["choices"] = typing.get_args(kind)
        elif kind is bool:
            about["action"] = "store_true" if default is False else argparse.BooleanOptionalAction
        else:
            about |= {"type": _reader(kind, option.range), "metavar": _metavar(option.type)}
        if positional:
            about["metavar"] = option.name.upper().removesuffix("S" if several else "")
            about["nargs"] = ("+" if required else "*") if several else (None if required else "?")
            self.add_argument(option.name, **about)
            return
        if several:
            about |= {"nargs": "+", "action": "extend" if several is list else "store"}
        if bool in others:  # with or without a value
            about |= {"nargs": "?", "const": True}
        self.add_argument(_flag(option.name.rstrip("_")), dest=option.name, required=required, **about)

    def add_settings(self, settings: Any) -> None:
        """Add an option for every field of a dataclass; the fields of nested ones have dotted names."""
        groups = {"": self.add_argument_group("settings")}
        for path, option, value in walk(settings):
            if path == "name" or isinstance(value, dict):
                continue
            section = path.rpartition(".")[0]
            if section not in groups:
                about = type(getattr(settings, section)).__doc__
                groups[section] = self.add_argument_group(section, about)
            self.add_setting(groups[section], path, option, value)

    def add_setting(self, group: Any, path: str, option: Option, value: Any, shown: str = "") -> None:
        """Add the option of one setting; ``shown`` is the name users see, if it is not ``path``."""
        shown = shown or path
        text = f"{option.help} (default: {'none' if value in (None, '', ()) else _words(value)})"
        names = {shown: text.strip().replace("%", "%%")}
        for former in option.formerly:
            names[shown.removesuffix(option.name) + former] = argparse.SUPPRESS
        nargs, metavar = "+" if _several(option.type) else None, _metavar(option.type)
        for name, about in names.items():
            group.add_argument(_flag(name), dest=path, nargs=nargs, metavar=metavar, help=about)
        self.settings[path] = shown, option

    def peek(self, words: Sequence[str], option: str, default: str | None = None) -> Any:
        """The value of an option that decides which other options there are."""
        first = Parser(self.prog.removeprefix("simplicia "), add_help=False)
        first.add_argument(option, dest="value", default=default)
        return first.parse_known_args(words)[0].value

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """Parse arguments; options may be written with dashes or underscores."""
        dashed = [_flag(word[2:]) if word.startswith("--") else word for word in words]
        args, rest = self.parse_known_intermixed_args(dashed)
        for option in (word.split("=")[0] for word in rest if word.startswith("--")):
            visible = [action for action in self._actions if action.help != argparse.SUPPRESS]
            names = [name for action in visible for name in action.option_strings if name[:2] == "--"]
            near = difflib.get_close_matches(option, names, n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help"
            raise UserError(f"unknown option {option}; {hint}")
        if rest:
            self.error(f"unexpected {rest[0]!r}")
        return vars(args)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


class Verb(NamedTuple):
    """A verb of the command line."""

    usage: str
    function: Callable[..., None]
    defaults: Callable[[Parser, list[str]], Any] | str | None = None  # a str names a class of settings

    @property
    def summary(self) -> str:
        line = (self.function.__doc__ or " ").splitlines()[0].removesuffix(".")
        return line[0].lower() + line[1:]

    def run(self, words: list[str]) -> None:
        """Parse the words into the function's parameters, and call it."""
        parser = Parser(self.usage, self.function.__doc__)
        options, only_by_name = options_of(self.function), inspect.getfullargspec(self.function).kwonlyargs
        groups = {n: options_of(o.type) for n, o in options.items() if dataclasses.is_dataclass(o.type)}
        for name, option in options.items():
            if name in groups:
                for field in groups[name].values():
                    parser.add(field, positional=field.default is dataclasses.MISSING)
            elif option.type not in (Settings, Words):
                parser.add(option, positional=name not in only_by_name)
        defaults: Any = self.defaults
        if defaults is not None:
            is_name = isinstance(defaults, str)
            defaults = pkgutil.resolve_name(f"simplicia.{defaults}")() if is_name else defaults(parser, words)
            parser.add_settings(defaults)
        values = parser.parse(words)
        for name, fields in groups.items():
            values[name] = options[name].type(**{field: values[field] for field in fields})
        given = {path: about for path, about in parser.settings.items() if values[path] is not None}
        changes = {path: option.convert(values[path], shown) for path, (shown, option) in given.items()}
        special = {Settings: Settings(defaults, changes), Words: words}
        self.function(**{n: special[o.type] if o.type in special else values[n] for n, o in options.items()})


VERBS: dict[str, Verb] = {}


def verb(usage: str, defaults: Any = None) -> Callable[[Any], Any]:
    """Register a verb: ``usage`` is its name and arguments."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        VERBS[usage.split()[0]] = Verb(usage, function, defaults)
        return function

    return register


def _flag(path: str) -> str:
    name, equals, value = path.partition("=")
    return f"--{name.replace('_', '-')}{equals}{value}"


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _several(hint: Any) -> Any:
    """``list`` or ``tuple`` if a hint stands for several values, which may be None."""
    origins = map(typing.get_origin, (hint, *typing.get_args(hint)))
    return next((origin for origin in origins if origin in (list, tuple)), None)


def _kinds(hint: Any) -> list[Any]:
    """The types of single values in a hint, without None."""
    if typing.get_origin(hint) is Literal or not typing.get_args(hint):
        return [hint]
    return [k for h in typing.get_args(hint) for k in _kinds(h) if k not in (NoneType, Ellipsis)]


def _metavar(hint: Any) -> str:
    kind = _kinds(hint)[-1]
    if typing.get_origin(kind) is Literal:
        return "|".join(typing.get_args(kind))
    return {int: "N", float: "X", bool: "true|false", Path: "PATH", OutputFile: "PATH"}.get(kind, "TEXT")


def _reader(kind: Any, bounds: Range | None) -> Callable[[str], Any]:
    """A function from a word to a value; argparse shows the message of its ArgumentTypeError."""

    def read(text: str) -> Any:
        if kind is OutputFile and (not text or Path(text).is_dir()):
            raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file")
        if kind not in (int, float):
            return Path(text) if kind is OutputFile else kind(text)
        with suppress(ValueError):
            value = kind(text)
            most = LARGEST_COUNT if kind is int else LARGEST_NUMBER
            if abs(value) > most:
                raise argparse.ArgumentTypeError(f"{text!r} is too large; the largest is {most:g}")
            if bounds is None or value in bounds:
                return value
        where = "" if bounds is None else f" {bounds}".replace("at least 0", "from 0 up")
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}{where}")

    return read
