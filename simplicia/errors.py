"""Errors that are the user's to mend: one sentence with what was given and what would be right."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What the user gave cannot be used. The command line prints it and leaves with status 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest ones that do."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        hint = f"choose {', '.join(map(repr, known[:20]))}{', …' if len(known) > 20 else ''}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


class Busy(UserError):
    """Another process trains the run."""


class Diverged(RuntimeError):
    """The loss or the weights are no longer finite."""


class Failed(RuntimeError):
    """Some of the work could not be done; the rest is."""


class Interrupted(RuntimeError):
    """Work was told to stop, and what is done is kept."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal  # 0: its time was up


class Unfinished(RuntimeError):
    """The time that was given is up, and there is more to do: the same command goes on."""
