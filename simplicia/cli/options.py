"""Command-line options: one-line errors, the options that verbs share, an option for every setting."""

import argparse
import difflib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from simplicia.errors import UserError
from simplicia.settings import Option, walk


def amount(text: str) -> float:
    """A number from 0 up, such as a temperature or minutes."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return number


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def seed(text: str) -> int:
    """A whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def output_file(text: str) -> Path:
    """The path of a file to write."""
    if not text or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file")
    return Path(text)


SHARED: dict[str, dict[str, Any]] = {
    "run": {"metavar": "RUN", "help": "folder of a run"},
    "runs": {"metavar": "RUN", "nargs": "+", "help": "folder of a run"},
    "--data": {"help": "data set or folder of images (default: the run's)"},
    "--data-dir": {"help": "folder of the standard data sets (default: the run's)"},
    "--device": {"default": "auto", "help": "auto, cpu, cuda, cuda:1 or mps (default: auto)"},
    "--download": {"action": "store_true", "help": "download a standard data set that is missing"},
    "--engine": {"default": "auto", "help": "auto, eager, compiled or captured (default: auto)"},
    "--json": {"type": output_file, "metavar": "PATH", "help": "file for the numbers (default: in the run)"},
    "--layer": {"help": "encoder, embedder, sem, codes, … (default: sem if the run has it)"},
    "--network": {"default": "online", "help": "online or target (default: online)"},
    "--quiet": {"action": "store_true", "help": "hide progress"},
    "--temperature": {"type": amount, "help": "temperature of SEM (default: the run's)"},
}
MEASURE = ("run", "--data", "--data-dir", "--layer", "--network", "--device", "--json")


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, which suggest the nearest option, and options for settings."""

    def __init__(self, usage: str, description: str | None = None, **kwargs: Any):
        """``usage``: the verb and its arguments, such as "encode RUN IMAGES"."""
        name = f"simplicia {usage.split()[0]}"
        usage = f"simplicia {usage} [--option …]"
        super().__init__(name, usage, description, allow_abbrev=False, **kwargs)
        self.settings: dict[str, tuple[str, Option]] = {}  # by dotted name, with the name users see

    def add(self, *names: str, **changes: Any) -> None:
        """Add options that several verbs share, with some of their descriptions changed."""
        for name in names:
            self.add_argument(name, **SHARED[name] | changes)

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
        several = typing.get_origin(option.type) is tuple
        common = {"dest": path, "nargs": "+" if several else None, "metavar": _metavar(option.type)}
        default = " ".join(map(str, value)) if several else value
        text = f"{option.help} (default: {'none' if default in (None, '') else default})"
        group.add_argument(_flag(shown), **common, help=text.strip().replace("%", "%%"))
        if option.formerly:
            former = shown.removesuffix(option.name) + option.formerly
            group.add_argument(_flag(former), **common, help=argparse.SUPPRESS)
        self.settings[path] = shown, option

    def peek(self, arguments: Sequence[str], option: str, default: str | None = None) -> Any:
        """The value of an option that decides which other options there are."""
        first = Parser(self.prog.removeprefix("simplicia "), add_help=False)
        first.add_argument(option, dest="value", default=default)
        return first.parse_known_args(arguments)[0].value

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments; options may be written with dashes or underscores."""
        args, rest = self.parse_known_intermixed_args([_dashed(word) for word in arguments])
        for word in rest:
            if word.startswith("--"):
                option = word.split("=")[0]
                near = difflib.get_close_matches(option, self._visible(), n=2, cutoff=0.6)
                hint = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help"
                raise UserError(f"unknown option {option}; {hint}")
        if rest:
            self.error(f"unexpected {rest[0]!r}")
        return args

    def changes(self, args: argparse.Namespace) -> dict[str, Any]:
        """The settings that were given, converted to their types."""
        values = {path: getattr(args, path) for path in self.settings}
        return {
            path: self.settings[path][1].convert(value, self.settings[path][0])
            for path, value in values.items()
            if value is not None
        }

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def _visible(self) -> list[str]:
        actions = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [option for action in actions for option in action.option_strings if option[:2] == "--"]


def _flag(path: str) -> str:
    return f"--{path.replace('_', '-')}"


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint))
    kinds = [kind for kind in typing.get_args(hint) if kind not in (type(None), Ellipsis)]
    if kinds:  # a tuple, or a type that may be None
        return _metavar(kinds[0])
    return {int: "N", float: "X", bool: "true|false"}.get(hint, "TEXT")
