"""Command-line options: errors of one line, and an option for every setting of a dataclass."""

import argparse
import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from simplicia.errors import UserError
from simplicia.settings import options_of

_BESIDE = re.compile(r"^ +(\w+): .*\S  # (.+)$", re.MULTILINE)


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and the nearest option for one that does not exist."""

    def __init__(self, words: str, **kwargs: Any):
        """``words``: the verb and what it takes, such as "encode RUN IMAGES"."""
        prog, usage = f"simplicia {words.split()[0]}", f"simplicia {words} [--option …]"
        super().__init__(prog=prog, usage=usage, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        known, rest = self.parse_known_intermixed_args(arguments)
        for word in rest:
            if word.startswith("--"):
                option = word.split("=")[0]
                options = [o for action in self._actions for o in action.option_strings if o.startswith("--")]
                near = difflib.get_close_matches(option, options, n=2, cutoff=0.6)
                hint = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help"
                raise UserError(f"unknown option {option}; {hint}")
        if rest:
            self.error(f"unexpected {rest[0]!r}")
        return known


def add_settings(
    parser: argparse.ArgumentParser, settings: Any, skip: tuple[str, ...] = ()
) -> dict[str, str]:
    """An option for every field of a dataclass, nested ones with dots; maps options to settings."""
    setters: dict[str, str] = {}

    def add(group: Any, values: Any, prefix: str) -> None:
        hints, said = typing.get_type_hints(type(values)), remarks(type(values))
        options = options_of(type(values))
        for field in dataclasses.fields(values):
            value, path = getattr(values, field.name), f"{prefix}{field.name}"
            if path in skip:
                continue
            if dataclasses.is_dataclass(value):
                add(parser.add_argument_group(path, type(value).__doc__), value, f"{path}.")
                continue
            hint = hints[field.name]
            several = typing.get_origin(hint) is tuple
            words: dict[str, Any] = {"dest": path, "nargs": "+" if several else None, "metavar": _kind(hint)}
            shown = " ".join(map(str, value)) if several else value
            flag = f"--{path.replace('_', '-')}"
            group.add_argument(
                flag, **words, help=described(options[field.name].help or said.get(field.name), shown)
            )
            former = options[field.name].formerly
            for alias in (field.name, former, former and former.replace("_", "-")):  # as the YAML file has it
                if alias and f"--{prefix}{alias}" not in parser._option_string_actions:
                    group.add_argument(f"--{prefix}{alias}", **words, help=argparse.SUPPRESS)
            setters[path] = path

    add(parser.add_argument_group("settings"), settings, "")
    return setters


def remarks(source: Any) -> dict[str, str]:
    """The comments beside a class's fields or a function's parameters, where sources are installed."""
    try:
        found = _BESIDE.findall(inspect.getsource(source))
    except OSError:
        return {}
    return dict(reversed(found))  # a field comes before a variable of the same name


def described(remark: str | None, default: Any) -> str:
    """An option's line of help."""
    shown = "none" if default in (None, "", ()) else default
    return f"{remark or ''} (default: {shown})".strip().replace("%", "%%")


def _kind(hint: Any) -> str:
    """What a setting of this type takes, in a word."""
    if typing.get_origin(hint) is typing.Literal:
        return "|".join(typing.get_args(hint))
    kinds = [kind for kind in typing.get_args(hint) if kind not in (type(None), Ellipsis)]
    if kinds:  # of a tuple or of one that may be None
        return _kind(kinds[0])
    return {int: "N", float: "X", bool: "true|false"}.get(hint, "WORD")


def amount(word: str) -> float:
    """A number from 0 up, such as a temperature or minutes."""
    try:
        number = float(word)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0 up")
    return number


def target(word: str) -> str:
    """The path of a file to be written."""
    if not word or Path(word).is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is not the path of a file")
    return word


def positive(word: str) -> int:
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number above 0")
    return number


def measuring(verb: str, description: str, layer: str = "sem if trained with it") -> Parser:
    """The options every verb that measures a run has; ``layer``: which one it takes by default."""
    parser = Parser(f"{verb} RUN", description=description)
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--data", help="a labelled data set or folder (default: the run's own)")
    parser.add_argument("--data-dir", help="where standard data sets lie (default: as in the run)")
    parser.add_argument("--layer", help=f"encoder, embedder, sem, codes, … (default: {layer})")
    parser.add_argument("--network", default="online", help="online or target (default: online)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument(
        "--json", type=target, metavar="PATH", help="where the result goes (default: with the run)"
    )
    return parser
