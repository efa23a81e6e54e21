"""Atomic writes, locks, and the cache."""

import errno
import glob
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simplicia.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` if the block succeeds and is removed if it fails.

    An OSError without a file name, such as that of a full disk, gets ``path``. A device or a pipe is refused:
    root would replace it.
    """
    if _is_device(path):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
    temporary = temporary_name(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        os.close(os.open(temporary, flags, 0o666))
        yield temporary
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def temporary_name(path: Path) -> Path:
    """A hidden name next to ``path``, for what will be renamed to it.

    It cannot be guessed, so no link can be planted there. What killed processes left for ``path`` is removed.
    """
    prefix = f".{path.name[:100]}.{platform.node()[:40]}."
    _remove_leftovers(path.parent, prefix)
    return path.with_name(f"{prefix}{os.getpid()}.{secrets.token_hex(8)}.writing")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: another process waits until the block ends, or until its holder is killed.

    The file is removed at the end. Whoever waited for it has a lock on nothing, and makes a new one.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with os.fdopen(os.open(path, flags, 0o666), "r+") as file:
            with suppress(ImportError, OSError):  # Windows, or a file system without locks
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
                continue
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()
            return


@contextmanager
def write_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError such as "the page cannot be written to a/b: …"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written to {path}: {error.strerror}") from error


def write_file(path: Path, content: bytes, what: str) -> Path:
    """Write a file atomically, with its folder; a UserError says ``what`` could not be written.

    A device or a pipe, such as /dev/stdout, gets the content itself.
    """
    with write_errors(what, path):
        if _is_device(path):
            path.write_bytes(content)
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    return path


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one if the file is missing, damaged or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chosen_cache() -> Path | None:
    """The folder that SIMPLICIA_CACHE names, if it names one."""
    given = os.environ.get("SIMPLICIA_CACHE")
    return Path(given).expanduser() if given else None


def cache_folder() -> Path:
    """That folder, or by default ~/.cache/simplicia."""
    return chosen_cache() or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "simplicia"


def reserve(file: Any, size: int) -> None:
    """Reserve an open file's disk blocks: writing to a mapped file on a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


def _is_device(path: Path) -> bool:
    return path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir())


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove temporary files and folders whose process, of this machine, is no longer alive."""
    if os.name != "posix":  # on Windows, os.kill would end a process
        return
    for leftover in folder.glob(f"{glob.escape(prefix)}*.writing"):
        process = leftover.name.removeprefix(prefix).split(".")[0]
        if not process.isdecimal():
            continue
        with suppress(OSError, OverflowError):  # the process is alive, and of another user
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
