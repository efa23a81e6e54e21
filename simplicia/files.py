"""Files that come whole or not at all."""

import glob
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A file to write in place of ``path``, which it becomes when all went well; else nothing is left of it.

    An OSError then names ``path`` if it names no file, as that of a full disk does.
    """
    temporary = path.with_name(f"{_begun(path)}{os.getpid()}.writing")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what processes of this machine that were killed had begun to write in place of ``path``."""
    for left in path.parent.glob(f"{glob.escape(_begun(path))}*.writing"):
        process = left.name.removesuffix(".writing").rpartition(".")[2]
        if process.isdecimal() and not _is_alive(int(process)):
            with suppress(OSError):
                left.unlink()


def _begun(path: Path) -> str:
    return f".{path.name}.{platform.node()}."


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere asking would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
