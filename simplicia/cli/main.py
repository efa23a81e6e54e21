"""The command line: one verb per task. Each lives in ``simplicia.cli`` and is imported when asked for."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simplicia.errors import Diverged, Failed, Interrupted, Unfinished, UserError, unknown

VERBS = {  # name: (module of simplicia.cli, what it does)
    "demo": (
        "training",
        "pre-train with and without SEM on the built-in set, look, and measure: a few minutes",
    ),
    "pretrain": ("training", "train a recipe: simplicia pretrain cifar100-byol-sem --epochs 200"),
    "probe": ("evaluating", "offline linear probe of a run"),
    "knn": ("evaluating", "nearest-neighbour accuracy of a run"),
    "compare": ("evaluating", "all results of runs side by side: simplicia compare RUN RUN …"),
    "transfer": ("transferring", "logistic regression on another data set's frozen features or codes"),
    "finetune": ("transferring", "train the encoder on with the labels of another data set"),
    "semi": ("transferring", "train the encoder on with a small share of the labels"),
    "robustness": ("transferring", "a linear probe on other test sets and corrupted images"),
    "encode": (
        "evaluating",
        "representations or codes of images: simplicia encode RUN images/ --out codes.npz",
    ),
    "export": ("exporting", "the encoder, or all up to a layer, as a file: simplicia export RUN model.onnx"),
    "analyze": ("analysing", "look inside: entropy, coherence, spectrum, what simplices fire on, retrieval"),
    "reproduce": (
        "reproducing",
        "a table or figure of the paper, measured: simplicia reproduce table1 --only byol",
    ),
    "sweep": (
        "searching",
        "try many settings: simplicia sweep shapes-byol-sem --grid sem.simplices=16,64,256",
    ),
    "bound": ("searching", "what Theorem 1 says, in theory or of a run: simplicia bound [RUN]"),
    "report": ("reporting", "one HTML page of a run, or of several: simplicia report RUN [RUN …]"),
    "bench": ("timing", "how fast a step is: simplicia bench step cifar100-byol-sem"),
    "cost": ("costing", "parameters, FLOPs and memory of recipes: simplicia cost cifar100-byol-sem"),
    "recipes": ("listing", "the named recipes"),
    "datasets": ("listing", "the data sets"),
    "methods": ("listing", "the methods and their options"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its status is 0 when done, 2 when what was given was wrong, 75 when more is to do."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _ended_in_order():
            return _dispatch(words)
    except UserError as error:
        return _complain(str(error), 2)
    except (Diverged, Failed) as error:
        return _complain(str(error), 1)
    except Interrupted as stop:
        return _complain(str(stop), 128 + stop.signal)
    except Unfinished as stop:
        return _complain(str(stop), 75)  # EX_TEMPFAIL: try again
    except _Terminated:
        return _complain("terminated", 143)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'a file'}: {error.strerror or error}", 2)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            less = "fewer images or another layer need less"
            if words[0] == "pretrain":
                less = "a smaller --batch-size or --sem.simplices needs less"
            return _complain(f"the device is out of memory; {less}", 2)
        raise


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: as Ctrl-C, so that what was begun is cleared away."""


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM raises here, unless what is under way handles it itself; only the main thread can have that."""

    def end(number: int, _: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = [f"  {name:10} {words}" for name, (_, words) in VERBS.items()]
        print("usage: simplicia VERB …   (simplicia VERB --help says more)\n\n" + "\n".join(lines))
        return 0
    if arguments[0] == "--version":
        from simplicia import __version__

        print(f"simplicia {__version__}")
        return 0
    if arguments[0] not in VERBS:
        raise unknown("verb", arguments[0], VERBS)
    module = importlib.import_module(f"simplicia.cli.{VERBS[arguments[0]][0]}")
    getattr(module, arguments[0])(arguments[1:])
    return 0


def _complain(message: str, status: int) -> int:
    print(f"simplicia: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
