"""The verbs of the command line, each registered next to its code."""

from collections.abc import Callable
from typing import NamedTuple

from simplicia.cli.options import Parser

Function = Callable[[Parser, list[str]], None]


class Verb(NamedTuple):
    """A verb; its function adds its options to the parser, parses the arguments and does the work."""

    usage: str
    summary: str
    function: Function


VERBS: dict[str, Verb] = {}


def verb(usage: str, summary: str) -> Callable[[Function], Function]:
    """Register a verb: ``usage`` is its name and arguments, the function's docstring its description."""

    def register(function: Function) -> Function:
        VERBS[usage.split()[0]] = Verb(usage, summary, function)
        return function

    return register
