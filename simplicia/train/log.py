"""What a run says: a JSONL file for programs, a progress bar for people, TensorBoard and W&B if asked."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.files import atomic_write


class Log:
    """Appends to ``log.jsonl``; drops the lines after ``step``, which a resumed run will write again."""

    def __init__(self, path: Path, step: int, loggers: tuple[str, ...] = (), name: str = ""):
        kept = [line for line in lines_of(path) if line["step"] <= step]
        with atomic_write(path) as temporary:
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
