"""Progress for people: a bar on a terminal, a line now and then elsewhere."""

import time
from typing import Any

from simplicia.errors import printable


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, label: str, total: int, done: int, quiet: bool = False):
        from rich.console import Console

        self.console = Console(stderr=True, quiet=quiet)
        self.label, self.total, self.first, self.start = printable(label), total, done, time.monotonic()
        self.last_line = self.start
        self.bar: Any = None
        if self.console.is_terminal and not quiet:
            from rich import progress as bars

            self.bar = bars.Progress(
                bars.TextColumn("{task.description}", markup=False),
                bars.BarColumn(),
                bars.MofNCompleteColumn(),
                bars.TextColumn("{task.fields[words]}", markup=False),
                bars.TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(self.label, total=total, completed=done, words="")
            self.bar.start()

    def update(self, step: int, words: str | None = None) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=step, **({} if words is None else {"words": words}))
        elif words is not None and (time.monotonic() - self.last_line > 15 or step == self.total):
            self.last_line = time.monotonic()
            left = (self.last_line - self.start) * (self.total - step) / max(1, step - self.first)
            self.say(f"{self.label}: step {step}/{self.total}, {words}, {duration(left)} left")

    def say(self, words: str, style: str | None = None) -> None:
        """Print a line of its own, above the bar."""
        self.console.print(printable(words), style=style, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def duration(seconds: float) -> str:
    """Format seconds for people: "45 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def say(lines: list[str], quiet: bool = False) -> None:
    """Print lines to standard error, without a bar."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    for line in lines:
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
