"""Find the verb, run it, and turn its errors into one line and an exit status."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import simplicia
from simplicia import errors
from simplicia.cli.verbs import VERBS
from simplicia.errors import (
    Diverged,
    Failed,
    Interrupted,
    Unfinished,
    UserError,
    is_out_of_memory,
    printable,
    unknown,
)
from simplicia.progress import close_live
from simplicia.signals import handled

# in the order of the help; each registers one verb or a few
MODULES = (
    "demo pretrain pack evaluate predict encode codes analyze reproduce bound bench cost lists completion"
)
TASKS = {  # the verbs of ``simplicia --help`` by what one wants to do
    "First steps": "demo recipes datasets methods completion",
    "Train": "pretrain sweep pack",
    "Measure": "probe knn transfer finetune semi robustness compare",
    "Look inside": "analyze report bound",
    "Use": "encode index search dedup predict export",
    "Repeat the paper": "reproduce",
    "Costs": "cost bench",
}
SMALLER = {  # what to make smaller when a verb runs out of memory
    **dict.fromkeys(
        ("pretrain", "sweep", "bench", "cost"),
        "a smaller --batch-size, --process-batch-size or --sem.simplices",
    ),
    **dict.fromkeys(("reproduce", "probe", "finetune", "semi", "robustness"), "a smaller --batch-size"),
    **dict.fromkeys(("analyze", "report"), "fewer --images"),
    "bound": "fewer --samples",
}
STATUS = {UserError: 2, Diverged: 1, Failed: 1, Unfinished: 75}  # 75 is EX_TEMPFAIL: try again


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status.

    0: done. 1: training diverged, or some of the work failed. 2: the input was wrong. 75: time is up, the
    same command continues. 130, 143: interrupted, terminated.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _options_in_messages():
        status = _run(words)
        return _flush() or status


def _run(words: list[str]) -> int:
    try:
        with _raise_on_sigterm():
            try:
                _dispatch(words)
            finally:
                close_live()
            return 0
    except tuple(STATUS) as error:
        return _complain(error, next(STATUS[kind] for kind in STATUS if isinstance(error, kind)))
    except Interrupted as stop:
        from simplicia.distributed import rank  # with torch, which what was interrupted has imported

        status = 128 + stop.signal
        return status if rank() else _complain(stop, status)  # once for all processes
    except KeyboardInterrupt as stop:
        return _complain("terminated", 143) if stop.args else _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        return 0
    except Exception as error:
        if is_out_of_memory(error):
            less = SMALLER.get(words[0], "fewer images or another layer")
            return _complain(f"the device is out of memory; use {less}", 2)
        if isinstance(error, OSError):
            if error.filename is None and (status := _flush()):
                return status
            return _complain(f"{error.filename or 'the output, or a file'}: {error.strerror or error}", 2)
        raise


def _flush() -> int:
    """Flush the output; returns the exit status. Python would complain at its exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            return _complain(f"the output cannot be written: {error.strerror}", 2)
    return 0


@contextmanager
def _options_in_messages() -> Iterator[None]:
    """Let errors name options as the command line does; elsewhere they name Python's keywords."""
    before, errors.at_terminal = errors.at_terminal, True
    try:
        yield
    finally:
        errors.at_terminal = before


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that context managers clean up, unless the work has its own handler."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt("terminated")

    with handled([signal.SIGTERM], stop):
        yield


def _dispatch(words: list[str]) -> None:
    name, *rest = words or ["--help"]
    if any("\0" in word for word in words):
        raise UserError("an argument has a NUL character; no file or setting can have one")
    if name == "--version":
        print(f"simplicia {simplicia.__version__}")
        return
    for module in MODULES.split():
        importlib.import_module(f"simplicia.cli.{module}")
    if name in ("-h", "--help", "help"):
        print("usage: simplicia VERB …   (options of a verb: simplicia VERB --help)")
        named = " ".join(TASKS.values()).split()
        others = " ".join(name for name in VERBS if name not in named)
        for task, verbs in (TASKS | ({"Others": others} if others else {})).items():
            print(f"\n{task}")
            for verb in verbs.split():
                print(f"  {verb:11} {VERBS[verb].summary}")
        return
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    VERBS[name].run(rest)


def _complain(message: object, status: int) -> int:
    print(f"simplicia: {printable(' '.join(str(message).split()))}", file=sys.stderr)
    return status
