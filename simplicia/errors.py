"""Exceptions. A user error is one sentence: what was given and what would be right."""

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """Wrong input. The command line prints the message and exits with status 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name; it suggests the nearest known ones."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        hint = f"choose {', '.join(map(repr, known[:20]))}{', …' if len(known) > 20 else ''}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


def printable(text: object) -> str:
    """Escape what a file name could do to a terminal: control characters, forged lines, lone surrogates."""
    unsafe = r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    return re.sub(unsafe, lambda match: ascii(match.group())[1:-1], str(text))


class Busy(UserError):
    """Another process is training the run."""


class Diverged(RuntimeError):
    """The loss or the weights are no longer finite."""


class Failed(RuntimeError):
    """Some of the work failed; the rest is done."""


class Interrupted(RuntimeError):
    """A signal or a deadline stopped the work; finished work is saved."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal  # 0: the deadline


class Unfinished(RuntimeError):
    """The time limit was reached with work left; the same command continues."""
