"""What a run says: a JSONL file for programs, a progress bar for people, TensorBoard and W&B if asked."""

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.files import whole


class Log:
    """Appends to ``log.jsonl``; drops the lines after ``step``, which a resumed run will write again."""

    def __init__(self, path: Path, step: int, loggers: tuple[str, ...] = (), name: str = ""):
        kept = [line for line in lines_of(path) if line["step"] <= step]
        with whole(path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.path, self.file = path, path.open("a", buffering=1)
        self.sinks = [_sink(logger, path.parent, name) for logger in loggers]

    def write(self, step: int, **values: Any) -> None:
        try:
            self.file.write(json.dumps({"step": step, **values}) + "\n")
        except OSError as error:
            error.filename = str(self.path)  # that of a full disk names no file
            raise
        for write, _ in self.sinks:
            write(step, {k: v for k, v in values.items() if isinstance(v, int | float)})

    def close(self) -> None:
        self.file.close()
        for _, close in self.sinks:
            close()


class Progress:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, label: str, total: int, done: int, quiet: bool = False):
        from rich.console import Console

        self.console = Console(stderr=True, quiet=quiet)
        self.label, self.total, self.first, self.start = label, total, done, time.monotonic()
        self.last_line = self.start
        self.bar: Any = None
        if self.console.is_terminal and not quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[words]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(label, total=total, completed=done, words="")
            self.bar.start()

    def update(self, step: int, words: str | None = None) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=step, **({} if words is None else {"words": words}))
        elif words is not None and (time.monotonic() - self.last_line > 15 or step == self.total):
            self.last_line = time.monotonic()
            left = (self.last_line - self.start) * (self.total - step) / max(1, step - self.first)
            self.say(f"{self.label}: step {step}/{self.total}, {words}, {duration(left)} left")

    def say(self, words: str, style: str | None = None) -> None:
        """A line of its own, above the bar."""
        self.console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def duration(seconds: float) -> str:
    """Seconds for people: "45 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's log that are whole; none if it has no log."""
    lines = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # the torn last line of a killed process
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def check_loggers(loggers: tuple[str, ...]) -> None:
    """A UserError if a logger's package is not there."""
    for logger in loggers:
        if importlib.util.find_spec(logger) is None:
            raise UserError(
                f"logger {logger!r} needs its package; pip install {logger}, or give --loggers none"
            )


def _sink(logger: str, folder: Path, name: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """What hands the numbers of a step to another logger, ``write(step, values)``, and what ends that."""
    if logger == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"))

        def write(step: int, values: dict[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)

        return write, writer.close
    import wandb

    run = wandb.init(project="simplicia", name=name, dir=str(folder))
    return lambda step, values: run.log(values, step=step), run.finish
