"""Decoded images kept on disk: a folder is decoded once, and may be larger than the memory.

For each list of files and size there are two files, named by a digest of the files' paths, sizes and times of
change: the pixels as an array that is mapped into memory, and in JSON which files they are of.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simplicia.errors import UserError
from simplicia.files import atomic_write, remove_leftovers

VERSION = 3  # of how images are decoded: another one is another digest


@dataclass
class Contents:
    """Of a list of files: which could be read, the width / height of these, what is wrong with the others."""

    readable: list[int] = field(default_factory=list)
    aspect_ratios: list[float] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    lasting: bool = True  # no: a file that could not be opened may be readable another time


class _Passing(Exception):
    """Images and their contents: not to be kept. Mapped, they outlive their file."""


def kept(
    place: Path,
    files: list[Path],
    size: int,
    decode: Callable[[np.ndarray], Contents],
    keep_aspect: bool = False,
) -> tuple[np.ndarray, Contents]:
    """The images of files as kept in a folder, which ``decode`` fills in if they are not there yet.

    What it says will not last is not kept.
    """
    name = digest(files, size, keep_aspect)
    pixels, about = place / f"{name}.npy", place / f"{name}.json"
    shape = len(files), 3, size, size
    found = _read(pixels, about, shape)
    if found is None:
        try:
            place.mkdir(parents=True, exist_ok=True)
            remove_leftovers(pixels)
            _check_disk(place, shape)
            with atomic_write(pixels) as temporary:
                written = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
                _allocate(temporary)
                contents = decode(written)
                written.flush()
                if not contents.lasting:
                    raise _Passing(written[: len(contents.readable)], contents)
                del written  # some systems rename no file that is mapped
            with atomic_write(about) as temporary:
                said = {
                    "readable": contents.readable,
                    "aspects": contents.aspect_ratios,
                    "skipped": [[str(path), why] for path, why in contents.skipped],
                }
                temporary.write_text(json.dumps(said), encoding="utf-8")
        except _Passing as found_once:
            return found_once.args
        except OSError as error:
            raise UserError(
                f"decoded images cannot be kept in {str(place)!r} (SIMPLICIA_CACHE): {error}"
            ) from error
        found = _read(pixels, about, shape)
        if found is None:
            raise UserError(f"{pixels} (SIMPLICIA_CACHE) was written, and is gone or changed; try again")
    array, contents = found
    return array[: len(contents.readable)], contents


def _read(pixels: Path, about: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, Contents] | None:
    """What is kept; None if there is nothing, or something else."""
    try:
        array = np.load(pixels, mmap_mode="c", allow_pickle=False)
        said = json.loads(about.read_text(encoding="utf-8"))
        readable = [int(i) for i in said["readable"]]
        aspect_ratios = [float(a) for a in said["aspects"]]
        skipped = [(Path(path), str(why)) for path, why in said["skipped"]]
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    counts = len(aspect_ratios), len(readable) + len(skipped)
    if array.shape != shape or array.dtype != np.uint8 or counts != (len(readable), shape[0]):
        return None
    sound = all(0 <= i < shape[0] for i in readable) and all(0 < a < math.inf for a in aspect_ratios)
    return (array, Contents(readable, aspect_ratios, skipped)) if sound else None


def digest(files: list[Path], size: int, keep_aspect: bool = False) -> str:
    """Another one for other files, for a change of one, and for another size or part of the pictures."""
    found = hashlib.sha256(f"{VERSION} {size} {keep_aspect}".encode())
    for path in files:
        try:
            about = path.stat()
            # files of one size may replace each other with their dates kept, but not the time of the change
            state = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"
        except OSError:
            state = "gone"
        found.update(f"\n{path.resolve()} {state}".encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:32]


def _allocate(path: Path) -> None:
    """Give a file its blocks: a disk that is full when a mapped one is written to would end the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _check_disk(place: Path, shape: tuple[int, ...]) -> None:
    needed, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"{shape[0]:,} decoded images of {shape[2]} x {shape[3]} take {needed / 1e9:.1f} GB, and "
            f"{str(place)!r} (SIMPLICIA_CACHE) has {free / 1e9:.1f} GB free"
        )
