"""Where results go: a JSON list for each experiment, one object for each cell that was measured."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simplicia.errors import UserError
from simplicia.files import atomic_write

# what makes a cell another one, rather than the same measured again
SAME = ("experiment", "cell", "dataset", "pretrained_on", "epochs", "batch_size", "seed", "protocol", "probe")
TEXTS = (
    *("experiment", "cell", "dataset", "pretrained_on", "encoder"),
    *("device", "protocol", "probe", "run", "failed", "note"),
)
NUMBERS = (
    *("epochs", "batch_size", "seed", "accuracy", "standard_error", "paper"),
    *("seconds", "probe_seconds", "minutes"),
)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of an experiment; none if nothing was measured yet."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as results: {str(error).splitlines()[0]}") from error
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "cell" in r for r in rows):
        raise UserError(f"{path} does not hold results: it must be a list of objects with a cell's name")
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if not _is_formed(name, value):
                raise UserError(f"{path} is damaged: {name} of object {number} is {str(value)[:80]!r}")
    return rows


def check(path: Path) -> None:
    """A UserError if results cannot be added to a file, before hours go into what would be lost."""
    read(path)
    there = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UserError(f"results cannot be written to {path}: {error.strerror}") from error


def _is_formed(name: str, value: Any) -> bool:
    """Whether a value can be shown: texts are texts, and numbers such that can be computed with."""
    if value is None:
        return name not in ("cell", "failed")
    if name in NUMBERS or isinstance(value, int | float):
        return name not in TEXTS and isinstance(value, int | float) and abs(value) < 1e300
    return name not in TEXTS or isinstance(value, str)


def put(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows in place of those of the same cells; all others stay, whoever else writes meanwhile.

    That a run diverged is no longer so when something was measured on it, nor that a cell failed when it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            new = {_key(row): row for row in rows}
            sound = [row for row in rows if "failed" not in row]
            kept = [row for row in read(path) if not any(_mends(new, row) for new in sound)]
            merged = [new.pop(_key(row), row) for row in kept] + list(new.values())
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"results cannot be written to {path}: {error.strerror}") from error


def _mends(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Whether what was measured now says that an older failure no longer is one."""
    if "failed" not in old or new.get("run") != old.get("run"):
        return False
    declared = new["cell"].removesuffix(f", {new.get('part')}")
    return old.get("protocol") == "diverged" or declared == old["cell"]


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(json.dumps(row.get(name)) for name in SAME)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing into a folder meanwhile."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
