"""Files that come whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write in place of ``path``, which it becomes when all went well; else nothing is left of it.

    An OSError then names ``path`` if it names no file, as that of a full disk does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
