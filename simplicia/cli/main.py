"""Find the verb, run it, and turn its errors into one line and an exit status."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simplicia.cli.verbs import VERBS
from simplicia.errors import Diverged, Failed, Interrupted, Unfinished, UserError, is_out_of_memory, unknown

# in the order of the help; each registers one verb or a few
MODULES = "demo pretrain evaluate encode analyze reproduce sweep bound bench cost lists"
SMALLER = {  # what to make smaller when a verb runs out of memory
    **dict.fromkeys(
        ("pretrain", "sweep", "bench", "cost"),
        "a smaller --batch-size, --micro-batch-size or --sem.simplices",
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
    try:
        with _raise_on_sigterm():
            _dispatch(words)
            return 0
    except tuple(STATUS) as error:
        return _complain(error, next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS))
    except Interrupted as stop:
        return _complain(stop, 128 + stop.signal)
    except _Terminated:
        return _complain("terminated", 143)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if is_out_of_memory(error):
            less = SMALLER.get(words[0], "fewer images or another layer")
            return _complain(f"the device is out of memory; use {less}", 2)
        if isinstance(error, OSError):
            return _complain(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
        raise


class _Terminated(KeyboardInterrupt):
    """SIGTERM arrived; like Ctrl-C it lets context managers clean up."""


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raise ``_Terminated`` on SIGTERM, unless the work installs a handler of its own."""

    def stop(number: int, frame: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # others cannot install handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(words: list[str]) -> None:
    name, *rest = words or ["--help"]
    if name == "--version":
        from simplicia import __version__

        print(f"simplicia {__version__}")
        return
    for module in MODULES.split():
        importlib.import_module(f"simplicia.cli.{module}")
    if name in ("-h", "--help", "help"):
        print("usage: simplicia VERB …   (options of a verb: simplicia VERB --help)\n")
        for name, verb in VERBS.items():
            print(f"  {name:10} {verb.summary}")
        return
    if name not in VERBS:
        raise unknown("verb", name, VERBS)
    VERBS[name].run(rest)


def _complain(message: object, status: int) -> int:
    print(f"simplicia: {' '.join(str(message).split())}", file=sys.stderr)
    return status
