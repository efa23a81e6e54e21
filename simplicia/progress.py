"""Progress for people: one bar on a terminal, a line now and then elsewhere."""

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar

from simplicia.errors import printable
from simplicia.signals import handled

# seconds: outside of a terminal, the first line comes after FIRST, and the gaps double up to LONGEST
FIRST, LONGEST = 5.0, 60.0
# whether ``tracked`` draws: the command line asks
SHOWN: ContextVar[bool] = ContextVar("shown", default=False)


class Progress:
    """A bar on a terminal; elsewhere lines that follow the clock, also while nothing is updated.

    There is one at a time: one that begins while another is live becomes the words of that one.
    """

    live: ClassVar["Progress | None"] = None

    def __init__(self, label: str, total: int, done: int = 0, quiet: bool = False):
        self.label, self.total, self.first, self.quiet = printable(label), total, done, quiet
        self.step, self.words, self.start = done, "", time.monotonic()
        self.words_at = self.start - FIRST
        self.parent = Progress.live
        self.words_before = "" if self.parent is None else self.parent.words
        self.bar: Any = None
        self.closed = threading.Event()
        if quiet or self.parent is not None:
            return
        if sys.stderr.isatty() and not console().is_dumb_terminal:
            self.bar = _bar()
            self.task = self.bar.add_task(self.label, total=total, completed=done, words="")
            Progress.live = self  # first: a signal may arrive while the bar starts
            with _undisturbed():
                self.bar.start()
        else:
            Progress.live = self
            threading.Thread(target=self._follow_the_clock, daemon=True).start()

    @property
    def needs_words(self) -> bool:
        """Whether the words are some seconds old, so that making new ones is worth the time."""
        return not self.quiet and time.monotonic() - self.words_at >= FIRST

    def update(self, step: int, words: str | None = None) -> None:
        self.step = step
        if words is not None:
            self.words, self.words_at = printable(words), time.monotonic()
        if self.quiet:
            return
        if self.parent is not None:
            self.parent.update(self.parent.step, f"{self.label} {step:,}/{self.total:,}")
        elif self.bar is not None:
            self.bar.update(self.task, completed=step, words=self.words)

    def say(self, words: str, style: str | None = None) -> None:
        """Print a line of its own, above the bar."""
        say([words], self.quiet, style)

    def close(self) -> None:
        """Remove the bar, and show the cursor again."""
        if self.parent is not None and not (self.quiet or self.closed.is_set()):
            self.parent.update(self.parent.step, self.words_before)
        if Progress.live is self:
            Progress.live = None
        self.closed.set()
        if self.bar is not None:
            with _undisturbed():
                self.bar.stop()

    def _follow_the_clock(self) -> None:
        gap = FIRST
        while not self.closed.wait(gap):
            with suppress(OSError, ValueError):  # the reader of our output left, or it is closed
                self.say(self.line())
            gap = min(2 * gap, LONGEST)

    def line(self) -> str:
        """The progress as a line: "byol: 20/400, loss 1.623, 12 min left"."""
        passed, steps = time.monotonic() - self.start, self.step - self.first
        left = f"{duration(passed * (self.total - self.step) / steps)} left" if steps else ""
        parts = [
            f"{self.label}: {self.step:,}/{self.total:,}",
            self.words,
            left or f"{duration(passed)} so far",
        ]
        return ", ".join(filter(None, parts))


class Counter:
    """A bar that begins with the first call of ``update(done, total)``."""

    def __init__(self, label: str, quiet: bool = False):
        self.label, self.quiet = label, quiet
        self.bar: Progress | None = None

    def update(self, done: int, total: int) -> None:
        self.bar = self.bar or Progress(self.label, total, 0, self.quiet)
        self.bar.update(done)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def tracked(batches: Iterable[Any], label: str, total: int) -> Iterator[Any]:
    """Yield batches, with a bar that counts their rows if a command runs that shows progress."""
    done = 0
    with closing(Progress(label, total, 0, not SHOWN.get())) as bar:
        for batch in batches:
            yield batch
            done += len(batch)
            bar.update(done)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until something is drawn: in the middle they would leave half a bar."""
    received: list[int] = []
    try:
        with handled((signal.SIGINT, signal.SIGTERM), lambda number, _: received.append(number)):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


def close_live() -> None:
    """Remove the bar that an error or a signal left."""
    if Progress.live is not None:
        Progress.live.close()


def say(lines: list[str], quiet: bool = False, style: str | None = None) -> None:
    """Print lines to standard error, above the bar if there is one."""
    if quiet:
        return
    # words stay together on a terminal; elsewhere a line is a line
    options: Any = {"highlight": False, "markup": False, "soft_wrap": not sys.stderr.isatty()}
    for line in lines:
        console().print(printable(line), style=style, **options)


def duration(seconds: float) -> str:
    """Format seconds for people: "45 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def plural(number: int, word: str) -> str:
    """A number with its noun: "1 image", "5,000 images", "2 classes"."""
    return f"{number:,} {word}" + ("" if number == 1 else "es" if word.endswith("s") else "s")


@cache
def console() -> Any:
    """The one console for standard error: a line goes above a bar only if both have the same console."""
    from rich.console import Console

    return Console(stderr=True)


def _bar() -> Any:
    """A bar of one line, whatever the width of the terminal: the numbers come first, then name and words."""
    from rich import progress as bars
    from rich.text import Text

    class Bar(bars.Progress):
        def get_renderable(self) -> Any:
            if not self.tasks:
                return Text("")
            task = self.tasks[0]
            # room for the ^C that a terminal prints: in a full line it would move the bar
            room = max(10, console().width - 4)
            seconds = task.time_remaining
            left = "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))
            numbers = f"{int(task.completed)}/{int(task.total or 0)}"
            free = room - len(numbers) - len(left) - 2
            label = _cut(task.description, max(free // 2, 4))
            words = _cut(task.fields["words"], free - len(label) - 2)
            width = min(40, free - len(label) - len(words) - 2)
            line = Text(f"{label} ", no_wrap=True)
            if width > 3:
                full = int(width * task.completed / max(task.total or 1, 1))
                line.append("━" * full, "bar.complete").append("━" * (width - full) + " ", "bar.back")
            line.append(numbers, "progress.download").append(f" {words}" if words else "")
            line.append(f" {left}", "progress.remaining")
            line.truncate(room)
            return line

    # output into a file must not go to the terminal
    return Bar(console=console(), transient=True, redirect_stdout=sys.stdout.isatty())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…" if width > 3 else ""
