"""Decode lists of image files by threads, and cache the pixels on disk in the folder SIMPLICIA_CACHE.

A cached list is decoded once, and may be larger than memory. It is two files, named by a digest of the paths,
sizes and times of change of its images: the pixels as a memory-mapped array, and JSON about the files.
"""

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from simplicia.devices import total_memory
from simplicia.distributed import from_leader, local_world_size
from simplicia.errors import UserError, reason
from simplicia.files import chosen_cache, locked, reserve, write_text

VERSION = 3  # of the decoder: another version never reads this one's cache
SIZES = (32, 64, 96, 128, 224)
THREADS = min(os.cpu_count() or 1, 8)  # each may hold a large image

Item = TypeVar("Item")
Result = TypeVar("Result")
Outcome = float | str  # of decoding a file: its width / height, or why it cannot be read


@dataclass
class FileReport:
    """Which files of a list could be read, the width / height of these, and why the others could not."""

    readable: list[int] = field(default_factory=list)
    aspect_ratios: list[float] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    permanent: bool = True  # False: a file that could not be opened may be readable the next time

    def add(self, path: Path, i: int, outcome: Outcome) -> None:
        """Add what became of the next file."""
        if isinstance(outcome, str):
            self.skipped.append((path, outcome))
        else:
            self.readable.append(i)
            self.aspect_ratios.append(outcome)


def decode_files(
    files: list[Path],
    size: int,
    keep_aspect: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, FileReport]:
    """The readable images, (N, 3, size, size) uint8, and a report; a UserError if none is readable."""
    from simplicia.data.image_files import decode

    def decode_all(images: np.ndarray, report: FileReport, note: Callable[[Outcome], None]) -> None:
        first = len(report.readable) + len(report.skipped)
        executor = ThreadPoolExecutor(THREADS)
        try:
            results = executor.map(lambda path: attempt(decode, path, size, keep_aspect), files[first:])
            for i, result in enumerate(results, first):
                if isinstance(result, Exception):
                    permanent = not isinstance(result, MemoryError) and getattr(result, "errno", None) is None
                    report.permanent = report.permanent and permanent
                    outcome: Outcome = explain(result)
                else:
                    image, outcome = result
                    images[len(report.readable)] = image.transpose(2, 0, 1)
                report.add(files[i], i, outcome)
                note(outcome)
                if progress is not None:
                    progress(i + 1, len(files))
        finally:
            executor.shutdown(cancel_futures=True)

    if cache := chosen_cache():
        images, report = _cached(cache, files, size, keep_aspect, decode_all)
    else:
        _check_memory(len(files), size)
        images = np.empty((len(files), 3, size, size), dtype=np.uint8)
        report = FileReport()
        decode_all(images, report, lambda outcome: None)
    if not report.readable:
        path, reason = report.skipped[0]
        raise UserError(f"none of the {len(files)} images can be read, such as {str(path)!r}: {reason}")
    return images[: len(report.readable)], report


def read_ahead(
    read: Callable[[Item], Result], items: Sequence[Item], count: int, threads: int
) -> Iterator[list[Result]]:
    """What a function reads of each item, in batches of ``count``; threads read the next one meanwhile."""
    executor = ThreadPoolExecutor(threads)
    try:
        ahead: list[Future[Result]] = []
        for start in range(0, len(items) + count, count):
            batch = items[start : start + count]
            now, ahead = ahead, [executor.submit(read, item) for item in batch]
            if now:
                yield [future.result() for future in now]
    finally:
        executor.shutdown(cancel_futures=True)


def attempt(read: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """What a function reads of an image, or why it cannot: Pillow raises nearly every exception there is."""
    try:
        return read(*arguments)
    except Exception as error:
        return error


def explain(error: Exception) -> str:
    """Why an image could not be decoded."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return getattr(error, "strerror", None) or reason(error)


def suitable_size(count: int, open_file: Callable[[int], Any]) -> int:
    """The largest of `SIZES` up to the median short side of 64 images, or the smallest.

    ``open_file`` gives what Pillow opens: a path, or a file of bytes.
    """
    from simplicia.data.image_files import FORMATS, Image

    sides: list[int] = []
    for i in np.random.Generator(np.random.PCG64(0)).permutation(count):
        try:
            with Image.open(open_file(i), formats=FORMATS) as image:
                sides.append(min(image.size))
        except Exception:  # decode_files says why
            continue
        if len(sides) == 64:
            break
    return largest_size(sides)


def largest_size(sides: list[int]) -> int:
    """The largest of `SIZES` up to the median of the short sides of images, or the smallest."""
    median = float(np.median(sides)) if sides else 0
    return max((size for size in SIZES if size <= median), default=SIZES[0])


def digest(files: list[Path], size: int, keep_aspect: bool = False) -> str:
    """A digest that changes with the list of files, any file, the size and ``keep_aspect``."""
    result = hashlib.sha256(f"{VERSION} {size} {keep_aspect}".encode())
    for path in files:
        try:
            about = path.stat()
            # ctime too: a file may be replaced by one of the same size and modification time
            state = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"
        except OSError:
            state = "gone"
        result.update(f"\n{path.resolve()} {state}".encode("utf-8", "surrogatepass"))
    return result.hexdigest()[:32]


def _cached(
    cache: Path,
    files: list[Path],
    size: int,
    keep_aspect: bool,
    decode_all: Callable[[np.ndarray, FileReport, Callable[[Outcome], None]], None],
) -> tuple[np.ndarray, FileReport]:
    """Images and report from the cache, which ``decode_all`` fills first if it must.

    One process fills it, and others wait. What was decoded before a process was killed stays.
    """
    name = digest(files, size, keep_aspect)
    pixels, about = cache / f"{name}.npy", cache / f"{name}.json"
    shape = len(files), 3, size, size
    cached = _read_cache(pixels, about, shape)
    if cached is not None:
        return cached
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{name}.lock"):
            cached = _read_cache(pixels, about, shape)
            if cached is not None:  # another process filled it meanwhile
                return cached
            partial, journal = cache / f"{name}.partial", cache / f"{name}.journal"
            report = _resume(partial, journal, files, shape)
            images = np.lib.format.open_memmap(partial, mode="r+")
            with journal.open("a", buffering=1) as file:
                decode_all(images, report, lambda outcome: print(json.dumps(outcome), file=file))
            images.flush()
            if not report.permanent:  # memory-mapped images outlive their file
                partial.unlink()
                journal.unlink()
                return images, report
            del images  # some systems do not rename a mapped file
            content = {
                "readable": report.readable,
                "aspects": report.aspect_ratios,
                "skipped": [[str(path), why] for path, why in report.skipped],
            }
            write_text(about, json.dumps(content))
            partial.replace(pixels)
            journal.unlink()
    except OSError as error:
        raise UserError(
            f"decoded images cannot be kept in {str(cache)!r} (SIMPLICIA_CACHE): {error}"
        ) from error
    cached = _read_cache(pixels, about, shape)
    if cached is None:
        raise UserError(f"{pixels} (SIMPLICIA_CACHE) was written and is gone or changed; try again")
    return cached


def _resume(partial: Path, journal: Path, files: list[Path], shape: tuple[int, ...]) -> FileReport:
    """What a killed process decoded, or an empty report and new files.

    Its pixels are in the system's memory until they reach the disk, so they count until the next start of the
    system.
    """
    report, here = FileReport(), json.dumps([_boot(), list(shape)])
    try:
        begun, *lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
        header = np.lib.format.open_memmap(partial, mode="r")
        valid = begun == f"{here}\n" and header.shape == shape and header.dtype == np.uint8
        if valid and not (partial.is_symlink() or journal.is_symlink()):
            complete = [line for line in lines if line.endswith("\n")]
            for i, line in enumerate(complete):
                report.add(files[i], i, json.loads(line))
            if len(complete) < len(lines):  # the end of the last line is missing
                journal.write_text("".join([begun, *complete]), encoding="utf-8")
            return report
    except (OSError, ValueError, TypeError, IndexError):
        pass
    for path in (partial, journal):
        path.unlink(missing_ok=True)
    _check_disk(partial.parent, shape)
    for path in (partial, journal):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        images = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        with partial.open("r+b") as file:
            reserve(file, partial.stat().st_size)
    except OSError:
        partial.unlink()
        raise
    del images
    journal.write_text(f"{here}\n", encoding="utf-8")
    return FileReport()


def _boot() -> str:
    """What changes when the system starts."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _read_cache(pixels: Path, about: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, FileReport] | None:
    """Cached images and their report; None if they are missing or damaged."""
    try:
        array = _map(pixels)
        content = json.loads(about.read_text(encoding="utf-8"))
        readable, aspect_ratios = content["readable"], content["aspects"]
        skipped = [(Path(path), str(reason)) for path, reason in content["skipped"]]
        counts = len(aspect_ratios), len(readable) + len(skipped)
        valid = array.shape == shape and array.dtype == np.uint8 and counts == (len(readable), shape[0])
        valid = valid and all(type(i) is int and 0 <= i < shape[0] for i in readable)
        valid = valid and all(0 < ratio < math.inf for ratio in aspect_ratios)
    except Exception:  # numpy reads the header as Python, with all of its errors
        return None
    return (array, FileReport(readable, aspect_ratios, skipped)) if valid else None


def _map(pixels: Path) -> np.ndarray:
    """Map pixels, so that what is written to them stays in memory, unless memory is too small for that."""
    try:
        return np.load(pixels, mmap_mode="c", allow_pickle=False)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return np.load(pixels, mmap_mode="r", allow_pickle=False)


def _check_disk(cache: Path, shape: tuple[int, ...]) -> None:
    needed, free = math.prod(shape), shutil.disk_usage(cache).free
    if needed > free:
        raise UserError(
            f"{shape[0]:,} decoded images of {shape[2]} x {shape[3]} take {needed / 1e9:.1f} GB, and "
            f"{str(cache)!r} (SIMPLICIA_CACHE) has {free / 1e9:.1f} GB free"
        )


def fits_memory(count: int, size: int) -> bool:
    """Whether decoded images take at most half of the free memory, with a copy in each process."""
    # what is free may differ between machines, and all processes must do the same
    return from_leader(lambda: 2 * count * 3 * size * size * local_world_size() <= free_memory())


def free_memory() -> float:
    """Bytes of memory that are free, for this process's group (a container, a job) too."""
    free = math.inf
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # the limit is "max" where there is none
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        free = min(free, int((group / "memory.max").read_text()) - used)
    return free


def _check_memory(count: int, size: int) -> None:
    needed, memory = count * 3 * size * size, total_memory(torch.device("cpu"))
    if memory is not None and needed > 0.9 * memory:
        raise UserError(
            f"{count:,} images of {size} x {size} need {needed / 1e9:.0f} GB of memory, and this machine has "
            f"{memory / 1e9:.0f}; make them smaller, or name a folder in SIMPLICIA_CACHE to keep them on disk"
        )
