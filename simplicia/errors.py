"""Exceptions. A user error is one sentence: what was given and what would be right."""

import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# torch raises plain RuntimeErrors when the host, or a device behind another backend, has no memory left, and
# Python raises one for a thread and an ImportError for a library
NO_MEMORY = re.compile(
    "can(no|')t allocate memory|not enough memory|out of memory|bad_alloc|STATUS_ALLOC_FAILED"
    "|can't start new thread|failed to map segment|could not (create|execute) a primitive",  # of oneDNN
    re.I,
)
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
# libraries in Rust write "(os error 28)"; SQLite and the checks before a training have words of their own
DISK_TROUBLE = re.compile("disk is full|disk I/O error|readonly database|[GM]B free")


at_terminal = False  # whether the command line runs, whose messages name options as it does: --resume
FLAGS = ("resume", "overwrite", "download", "quiet", "allow-other-processes", "corrupt", "retry", "again")
# commands are left as they are: "simplicia pretrain --download fetches it"
OPTION = re.compile(
    r"simplicia [a-z]+[^;,]*"
    r"|(?<![\w-])--([a-z][a-z0-9-]*(?:\.[a-z0-9-]+)?)(?: (cpu|small|eager|encoder|none|resnet18|\d+)\b)?"
)


class _Spoken(Exception):
    def __str__(self) -> str:
        return spoken(super().__str__())


class UserError(_Spoken, ValueError):
    """Wrong input. The command line prints the message and exits with status 2.

    Messages name options as the command line does; called from Python, they name Python's keywords:

    >>> print(UserError("runs/a holds a run; add --resume to continue it, or give another --out"))
    runs/a holds a run; add resume=True to continue it, or give another out
    """


def spoken(message: str) -> str:
    """A message about options of the command line, with Python's keywords if Python was called.

    >>> spoken("give --batch-size 64 or less, or --device cpu")
    "give batch_size=64 or less, or device='cpu'"
    """
    if at_terminal:
        return message

    def keyword(match: re.Match[str]) -> str:
        option, value = match.groups()
        if option is None:
            return match.group()
        name = option.replace("-", "_")
        if value is None:
            return f"{name}=True" if option in FLAGS else name
        return f"{name}={'()' if value == 'none' else value if value.isdecimal() else repr(value)}"

    return OPTION.sub(keyword, message)


def unknown(kind: str, name: str, known: Iterable[str], listed_by: str = "") -> UserError:
    """The error for an unknown name; it suggests the nearest known ones, or a command that lists them."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    elif listed_by:
        hint = f"{listed_by} lists them"
    else:
        hint = f"choose {', '.join(map(repr, known[:20]))}{', …' if len(known) > 20 else ''}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


def reason(error: BaseException) -> str:
    """What an error says, in one line; its type if it says nothing.

    >>> reason(KeyError()), reason(ValueError("two\\nlines"))
    ('KeyError', 'two lines')
    """
    return " ".join(str(error).split())[:300] or type(error).__name__


def printable(text: object) -> str:
    """Escape what a file name could do to a terminal: control characters, forged lines, lone surrogates."""
    return UNSAFE.sub(lambda match: ascii(match.group())[1:-1], str(text))


class Busy(UserError):
    """Another process is training the run."""


class Diverged(_Spoken, RuntimeError):
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the host or the device has no memory left."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError | ImportError) and NO_MEMORY.search(str(error)) is not None


@contextmanager
def build_errors(what: str) -> Iterator[None]:
    """Turn the errors of building a model into a UserError; those of memory pass."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError, AssertionError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{what} cannot be built: {reason(error)}") from error


def is_disk_error(error: BaseException | None) -> bool:
    """Whether a disk that is full, broken or read-only caused an error: work can go on once it is not."""
    while error is not None:
        numbers = {getattr(error, "errno", None), *map(int, re.findall(r"os error (\d+)", str(error)))}
        if numbers & DISK or DISK_TROUBLE.search(str(error)):
            return True
        error = error.__cause__
    return False
