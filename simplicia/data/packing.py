"""Pack images into tar shards with an index: small JPEGs that stream from any disk.

A shard is written as one, with the images that its number stands for; so packing goes on where it was killed.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from simplicia.data.crops import crop_encoded
from simplicia.data.decoding import attempt, explain
from simplicia.data.folder import EXTENSIONS
from simplicia.data.source_index import INDEX, open_source, save_packed, stream_layout
from simplicia.data.sources import CLASSES, Source, from_shards
from simplicia.data.streaming import MOST_UNREADABLE, default_threads
from simplicia.errors import UserError
from simplicia.files import atomic_write, locked, read_object, sha256, write_text

SHARD = 1000  # images
PLAN = "pack.json"

Progress = Callable[[int, int], None]


def pack(
    source: Path,
    out: Path,
    size: int = 256,
    quality: int = 90,
    most_unreadable: float = MOST_UNREADABLE,
    progress: Progress | None = None,
) -> tuple[int, list[tuple[str, str]]]:
    """Write the splits of a data set below ``out``; returns the number of images, and those left out.

    The short side of larger images becomes ``size`` pixels. JPEGs that are not larger are copied as they are.
    """
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{str(out)!r} is inside of {str(source)!r}; pack into another folder")
    splits = _splits(source)
    total = sum(map(len, splits.values()))
    if not total:
        raise UserError(f"there are no images in {str(source)!r}; images are {' '.join(EXTENSIONS)}")
    plan: dict[str, Any] = {"size": size, "quality": quality, "shard": SHARD}
    plan |= {"images": {name: split.digest() for name, split in splits.items()}}
    left_out: list[tuple[str, str]] = []

    def leave_out(name: str, reason: str) -> None:
        left_out.append((name, reason))
        _check_missing(len(left_out), total, most_unreadable, f", such as {name!r} ({reason})")

    done = 0
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock"):
        _check_plan(out, plan)
        for name, split in splits.items():
            folder = out / name
            folder.mkdir(exist_ok=True)
            write_text(folder / CLASSES, json.dumps(split.classes))
            for count in _pack_split(split, folder, size, quality, leave_out):
                done += count
                if progress is not None:
                    progress(done, total)
            _write_index(folder)
        packed = sum(len(open_source(out / name)) for name in splits)
        _check_missing(total - packed, total, most_unreadable)  # some were left out before a kill
    return packed, left_out


def _check_missing(missing: int, total: int, most: float, example: str = "") -> None:
    if missing > most * total:
        raise UserError(
            f"{missing} of {total:,} images cannot be read{example}: more than {100 * most:g} %; "
            "repair them, or give a larger --max-unreadable"
        )


def check(out: Path, progress: Progress | None = None) -> int:
    """Verify packed images: every shard is what was packed, and every image can be read; their number.

    A UserError names the first fault.
    """
    folders = [path.parent for path in sorted(out.rglob(INDEX))]
    packed = read_object(out / PLAN).get("images")
    if not folders or not isinstance(packed, dict) or len(folders) < len(packed):
        raise UserError(f"{str(out)!r} has no packed images, or is not finished; run simplicia pack again")
    sources = [open_source(folder) for folder in folders]
    total, done = sum(map(len, sources)), 0
    for source in sources:
        shards, digests = source.about["shards"], source.about.get("sha256")
        if not isinstance(digests, list) or len(digests) != len(shards):
            raise UserError(f"{str(source.root / INDEX)!r} has no digests of its shards; pack them again")
        for (name, *_), digest in zip(shards, digests, strict=True):
            if sha256(source.root / name) != digest:
                raise UserError(f"{str(source.root / name)!r} has changed since it was packed; pack it again")
        with ThreadPoolExecutor(default_threads()) as executor:
            for i, problem in enumerate(executor.map(partial(attempt, _decode, source), range(len(source)))):
                if problem is not None:
                    raise UserError(
                        f"{source.entries[i]!r} in {str(source.root)!r} cannot be read: {explain(problem)}"
                    )
                done += 1
                if progress is not None:
                    progress(done, total)
    return total


def _splits(source: Path) -> dict[str, Source]:
    """The splits of a data set by the folder they go to; "." if there is one."""
    if not source.is_dir():
        raise UserError(f"there is no folder {str(source)!r} to pack")
    found = stream_layout(source)
    splits = {
        name: split for name, split in zip(("train", "test", "val"), found, strict=True) if split is not None
    }
    if len(splits) == 1 and found.train.root == source:
        return {".": found.train}
    return {name if s.root == source else s.root.name.lower(): s for name, s in splits.items()}


def _pack_split(
    split: Source, folder: Path, size: int, quality: int, leave_out: Callable[[str, str], None]
) -> Iterator[int]:
    """Write the shards that are missing; yields the number of images that each stands for."""
    labels, keys = split.labels, _keys(split)
    with ThreadPoolExecutor(default_threads()) as executor:
        for number, start in enumerate(range(0, len(split), SHARD)):
            rows = range(start, min(start + SHARD, len(split)))
            named = [next(keys) for _ in rows]
            path = folder / f"{number:05d}.tar"
            if not path.exists():
                encoded = executor.map(lambda i: attempt(lambda: shrink(split.read(i), size, quality)), rows)
                with atomic_write(path) as temporary, tarfile.open(temporary, "w") as tar:
                    for i, key, content in zip(rows, named, encoded, strict=True):
                        if isinstance(content, MemoryError):
                            raise content
                        if isinstance(content, Exception):
                            leave_out(split.entries[i], explain(content))
                            continue
                        _add(tar, f"{key}.jpg", content)
                        if labels is not None:
                            _add(tar, f"{key}.cls", str(labels[i]).encode())
            yield len(rows)


def _keys(split: Source) -> Iterator[str]:
    """Names of the images without their extension; a dot would end a key, and no two may be equal."""
    taken: set[str] = set()
    for name in split.entries:
        folder, slash, file = name.rpartition("/")
        key = wanted = folder + slash + (os.path.splitext(file)[0].replace(".", "_").replace(":", "_") or "_")
        number = 1
        while key in taken:
            key, number = f"{wanted}_{number}", number + 1
        taken.add(key)
        yield key


def shrink(data: bytes, size: int, quality: int) -> bytes:
    """An encoded image as a JPEG whose short side is at most ``size`` pixels."""
    from simplicia.data.image_files import FORMATS, Image, check_pixels, in_flight, orientation, to_rgb

    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        small = image.format == "JPEG" and image.mode in ("RGB", "L") and min(image.size) <= size
        keep = small and orientation(image) == 1
        if image.format == "JPEG" and not keep:
            scale = 2 * size / min(image.size)
            image.draft("RGB", (round(image.width * scale), round(image.height * scale)))
        check_pixels(image)
        with in_flight(image.width * image.height):
            if keep:
                image.load()  # a file that is cut off is not packed
                return data
            upright = to_rgb(image)
    short = min(upright.size)
    if short > size:
        shape = (
            max(size, round(upright.width * size / short)),
            max(size, round(upright.height * size / short)),
        )
        upright = upright.resize(shape, Image.Resampling.BICUBIC, reducing_gap=3.0)
    file = io.BytesIO()
    upright.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _decode(source: Source, i: int) -> None:
    crop_encoded(source.read(i), lambda height, width: [(0, 0, height, width)], 8)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _write_index(folder: Path) -> None:
    """Index a finished split, with the digests of its shards."""
    if (folder / INDEX).exists():
        return
    packed = from_shards(folder, sorted(folder.glob("*.tar")))
    packed.about["sha256"] = [sha256(folder / name) for name, *_ in packed.about["shards"]]
    save_packed(packed)


def _check_plan(out: Path, plan: dict[str, Any]) -> None:
    """Write the plan of a new folder; a UserError if another one was begun there."""
    before = read_object(out / PLAN)
    if not before:
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{str(out)!r} holds other files; pack into another folder")
        write_text(out / PLAN, json.dumps(plan))
    elif before != plan:
        differing = next((name for name in plan if before.get(name) != plan[name]), "settings")
        raise UserError(
            f"{str(out)!r} was begun with other {differing}; pack into another folder, or remove this one"
        )
