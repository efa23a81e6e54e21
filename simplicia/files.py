"""Atomic writes."""

import glob
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simplicia.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` if the block succeeds and is removed if it fails.

    An OSError without a file name, such as that of a full disk, gets ``path`` as its file name.
    """
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.writing")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def write_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError such as "the page cannot be written to a/b: …"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written to {path}: {error.strerror}") from error


def write_file(path: Path, content: bytes, what: str) -> Path:
    """Write a file atomically, with its folder; a UserError says ``what`` could not be written."""
    with write_errors(what, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    return path


def remove_leftovers(path: Path) -> None:
    """Remove temporary files for ``path`` that killed processes of this machine left behind."""
    if os.name != "posix":  # on Windows, os.kill would end a process
        return
    for leftover in path.parent.glob(glob.escape(f".{path.name}.{platform.node()}.") + "*.writing"):
        with suppress(OSError, ValueError, OverflowError):  # alive, or no number
            try:
                os.kill(int(leftover.stem.rpartition(".")[2]), 0)
            except ProcessLookupError:
                leftover.unlink()
