"""Verbs: a typed function is a verb, its parameters are arguments and options.

    @verb("export RUN FILE")
    def export(run: RunFolder, file: Annotated[str, "file to write"], *, layer: Layer = None) -> None:

The docstring is the description, its first line the summary of ``simplicia --help``. Parameters before the
star are arguments, those after it options. A parameter whose type is a dataclass stands for its fields: those
without a default are arguments. A ``Settings`` parameter gets the settings of a recipe or a protocol, whose
defaults the second argument of ``verb`` makes or names. A ``Words`` parameter gets the words of the command.
``--help`` shows the options that the third argument names, by default those that are not settings;
``--help-all`` shows all.
"""

import argparse
import dataclasses
import difflib
import inspect
import pkgutil
import re
import textwrap
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NewType, NoReturn

from simplicia.errors import UserError
from simplicia.progress import SHOWN, plural
from simplicia.settings import (
    LARGEST_COUNT,
    LARGEST_NUMBER,
    Option,
    Range,
    meant_by,
    options_of,
    walk,
    with_changes,
)

POSITIVE, NOT_NEGATIVE = Range(above=0), Range(low=0)
# groups of a recipe's settings in --help-all
GROUPS = {
    "images": (
        "data data_dir image_size view_size decode_size keep_aspect data_device data_threads max_unreadable"
    ),
    "model": "method bottleneck encoder stem stem_padding encoder_weights freeze frozen_views",
    "training": "epochs batch_size process_batch_size precision seed init holdout",
    "log, checkpoints and online probes": (
        "log_every checkpoint_minutes online_every online_temperatures loggers"
    ),
}
GROUP_OF = {name: title for title, names in GROUPS.items() for name in names.split()}
# what values of these options stand for in the help
METAVARS = {
    "out": "PATH",
    "data": "DATA",
    "data_dir": "FOLDER",
    "init": "RUN",
    "grid": "SETTING=VALUES",
    "search": "SETTING=RANGE",
    "only": "WORDS",
    "figures": "FOLDER",
    "encoder_weights": "FILE|pretrained",
    "vertex": "SIMPLEX:VERTEX",
    "add": "PATH",
    "remove": "NAME",
    "engines": "ENGINE",
}
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


class Formatter(argparse.HelpFormatter):
    """Lines that break at spaces only: names such as cifar100-byol-sem stay in one piece."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


class Help(argparse.Action):
    """--help and --help-all."""

    def __init__(self, option_strings: list[str], dest: str, help: str):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: Any, *_: Any) -> None:
        print(parser.format_help(everything=self.dest == "help_all").rstrip())
        parser.exit()


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, which suggest the nearest option, and options for settings."""

    def __init__(
        self,
        usage: str,
        description: str | None = None,
        add_help: bool = True,
        basics: str | None = None,
    ):
        name, usage = f"simplicia {usage.split()[0]}", f"simplicia {usage} [--option …]"
        super().__init__(
            name, usage, description, add_help=False, allow_abbrev=False, formatter_class=Formatter
        )
        self._positionals.title = "arguments"
        self.settings: dict[str, tuple[str, Option]] = {}  # by dotted name, with the name users see
        self.basics = None if basics is None else {"help", "help_all", *basics.split()}
        if add_help:
            self.add_argument("-h", "--help", action=Help, help="show this help")
            self.add_argument("--help-all", action=Help, help="show all options")

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
            about |= {"type": _reader(kind, option.range), "metavar": _metavar(option)}
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
        groups, is_recipe = dict[str, Any](), hasattr(settings, "optim")
        for path, option, value in walk(settings):
            if path == "name" or isinstance(value, dict):
                continue
            section = path.rpartition(".")[0]
            title = section or (GROUP_OF[path] if is_recipe else "settings")
            if title not in groups:
                about = type(getattr(settings, section)).__doc__ if section else None
                groups[title] = self.add_argument_group(title, about)
            self.add_setting(groups[title], path, option, value)

    def add_setting(self, group: Any, path: str, option: Option, value: Any, shown: str = "") -> None:
        """Add the option of one setting; ``shown`` is the name users see, if it is not ``path``."""
        shown = shown or path
        text = f"{option.help} (default: {'none' if value in (None, '', ()) else _words(value)})"
        names = {shown: text.strip().replace("%", "%%")}
        for former in option.formerly:
            names[shown.removesuffix(option.name) + former] = argparse.SUPPRESS
        nargs, metavar = "+" if _several(option.type) else None, _metavar(option)
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
        for option in (word.split("=")[0] for word in rest if re.match("--|-[a-zA-Z]", word)):
            near = self._nearest(option)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help-all"
            raise UserError(f"unknown option {option}; {hint}")
        if rest:
            self.error(f"unexpected {rest[0]!r}")
        return vars(args)

    def _nearest(self, option: str) -> list[str]:
        """The options that an unknown one may stand for: --optim.lr for --lr, or similar names."""
        visible = [action for action in self._actions if action.help != argparse.SUPPRESS]
        names = [name for action in visible for name in action.option_strings if name[:2] == "--"]
        same = meant_by(option.lstrip("-"), [name[2:] for name in names])
        return [f"--{name}" for name in same] or difflib.get_close_matches(option, names, n=2, cutoff=0.6)

    def format_help(self, everything: bool = True) -> str:
        """The help page with the most used options, or with everything."""
        formatter, hidden = self._get_formatter(), 0
        options = [action for action in self._actions if action.help != argparse.SUPPRESS]
        has_levels = any(action.option_strings and not self._is_basic(action.dest) for action in options)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            known = [a for a in group._group_actions if a in options and (has_levels or a.dest != "help_all")]
            shown = [a for a in known if everything or not a.option_strings or self._is_basic(a.dest)]
            hidden += len(known) - len(shown)
            if shown:
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(shown)
                formatter.end_section()
        if hidden:
            formatter.add_text(f"{self.prog} --help-all shows {plural(hidden, 'more option')}.")
        return formatter.format_help()

    def _is_basic(self, name: str) -> bool:
        return name not in self.settings if self.basics is None else name in self.basics

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


class Verb(NamedTuple):
    """A verb of the command line."""

    usage: str
    function: Callable[..., None]
    defaults: Callable[[Parser, list[str]], Any] | str | None = None  # a str names a class of settings
    basics: str | None = None

    @property
    def summary(self) -> str:
        line = (self.function.__doc__ or " ").splitlines()[0].removesuffix(".")
        return line[0].lower() + line[1:]

    def parser(self, words: list[str]) -> tuple[Parser, dict[str, Any], Any]:
        """A parser of these words, the fields of dataclass parameters, and the settings' defaults."""
        parser = Parser(self.usage, self.function.__doc__, basics=self.basics)
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
        return parser, groups, defaults

    def run(self, words: list[str]) -> None:
        """Parse the words into the function's parameters, and call it."""
        options = options_of(self.function)
        parser, groups, defaults = self.parser(words)
        values = parser.parse(words)
        for name, fields in groups.items():
            values[name] = options[name].type(**{field: values[field] for field in fields})
        given = {path: about for path, about in parser.settings.items() if values[path] is not None}
        changes = {path: option.convert(values[path], shown) for path, (shown, option) in given.items()}
        special = {Settings: Settings(defaults, changes), Words: words}
        arguments = {n: special[o.type] if o.type in special else values[n] for n, o in options.items()}
        quiet = values.get("quiet") or any(getattr(values[name], "quiet", False) for name in groups)
        token = SHOWN.set(not quiet)
        try:
            self.function(**arguments)
        finally:
            SHOWN.reset(token)


VERBS: dict[str, Verb] = {}


def verb(usage: str, defaults: Any = None, basics: str | None = None) -> Callable[[Any], Any]:
    """Register a verb: ``usage`` is its name and arguments."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        VERBS[usage.split()[0]] = Verb(usage, function, defaults, basics)
        return function

    return register


def _flag(path: str) -> str:
    name, equals, value = path.partition("=")
    return f"--{name.replace('_', '-')}{equals}{value}"


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
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


def _metavar(option: Option) -> str:
    kind = _kinds(option.type)[-1]
    if typing.get_origin(kind) is Literal:
        return "|".join(typing.get_args(kind))
    kinds: Any = {int: "N", float: "X", bool: "true|false", Path: "PATH", OutputFile: "PATH"}
    return kinds.get(kind) or METAVARS.get(option.name, option.name.rstrip("_").upper())


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
