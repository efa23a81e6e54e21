"""Encoded images at random access: folders of files, tar shards, and tables with a column of images.

    source = open_source(Path("imagenet/train"))
    source.read(7), source.labels[7], source.name(7)     # from any thread

``source_index`` keeps where each image lies, and has ``open_source``.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from simplicia.data.folder import Listing
from simplicia.data.shards import image_bytes, rows_of
from simplicia.errors import UserError

CLASSES = "classes.json"  # the names of the classes, beside shards that number them
ROW_GROUPS = 4  # of a parquet file, that are kept
MOST_CLASSES = 10**6
COLUMNS = {"shard": "int32", "offset": "int64", "size": "int64", "time": "int64", "label": "int64"}
NAMES = {"name_end": "int64", "names": "uint8"}


class Unreadable(Exception):
    """Why an image cannot be read."""


class Table(NamedTuple):
    """Where each image lies; arrays of one length. ``time`` is that of a file of its own, else 0."""

    shard: Any
    offset: Any
    size: Any
    time: Any
    label: Any  # -1: none
    name_end: Any
    names: Any  # uint8: all names in UTF-8


@dataclass(eq=False, repr=False)
class Source:
    """Images of a folder, as bytes."""

    root: Path
    table: Table
    about: dict[str, Any]
    rows: Any = None  # of the table: those of the images (None: all)
    prefix: str = ""  # of the names
    index: Path | None = None  # its file, if that may be removed

    def __post_init__(self) -> None:
        self.rows = np.arange(len(self.table.size)) if self.rows is None else self.rows
        self.classes: tuple[str, ...] = tuple(self.about["classes"])
        self.skipped = [(self.root / path, str(reason)) for path, reason in self.about["skipped"]]
        self.tables: dict[tuple[str, int], Any] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: np.ndarray) -> "Source":
        """Some of the images."""
        return replace(self, rows=self.rows[chosen])

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each image, as its number; None if not all have one."""
        return self.class_of_each() if self.classes else None

    @property
    def labelled(self) -> bool:
        return bool(self.classes)

    def class_of_each(self) -> np.ndarray:
        """The class of each image, as its number; -1: none."""
        return np.asarray(self.table.label)[self.rows]

    @property
    def entries(self) -> "Names":
        """The names of the images."""
        return Names(self)

    def name(self, i: int) -> str:
        """The path of an image relative to the folder, or its key in a shard."""
        row = int(self.rows[i])
        start = int(self.table.name_end[row - 1]) if row else 0
        return bytes(self.table.names[start : int(self.table.name_end[row])]).decode(errors="surrogateescape")

    def read(self, i: int) -> bytes:
        """The bytes of an image; `Unreadable` says why there are none."""
        row, table = int(self.rows[i]), self.table
        shard, size, changed = int(table.shard[row]), int(table.size[row]), int(table.time[row])
        offset, name, shard_size = int(table.offset[row]), self.name(i), size
        if shard >= 0:
            name, shard_size, changed = self.about["shards"][shard]
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise Unreadable("lies outside of its folder")
        try:
            if name.endswith(".parquet"):
                self._check_unchanged(os.stat(self.root / name), shard_size, changed)
                return self._row(name, offset, size)
            file = os.open(self.root / name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                self._check_unchanged(os.fstat(file), shard_size, changed)
                if offset + size > shard_size:
                    raise Unreadable("lies outside of its shard")
                if size == 0:
                    raise Unreadable("is empty")
                if offset:
                    os.lseek(file, offset, os.SEEK_SET)
                data = os.read(file, size)
            finally:
                os.close(file)
        except OSError as error:
            raise Unreadable(
                "is gone" if isinstance(error, FileNotFoundError) else str(error.strerror)
            ) from None
        if len(data) < size:
            raise Unreadable("is cut off")
        return data

    def _check_unchanged(self, state: os.stat_result, size: int, changed: int) -> None:
        """`Unreadable` unless a file has the size, and the time of change if one is known, of the index."""
        if state.st_size != size or (changed and state.st_mtime_ns != changed):
            if self.index is not None:
                self.index.unlink(missing_ok=True)  # the next process builds another one
            raise Unreadable("has changed since it was indexed")

    def _row(self, name: str, group: int, row: int) -> bytes:
        """A row of a parquet file. A group of rows is read as one; the last few are kept."""
        column = self.tables.get((name, group))
        if column is None:
            column = image_bytes(self.root / name, group, self.about["column"])
            self.tables[name, group] = column
            for old in list(self.tables)[:-ROW_GROUPS]:
                self.tables.pop(old, None)
        return column[row].as_py() or b""

    def digest(self) -> str:
        """A digest of the images' names and sizes, in order."""
        digest, ends = hashlib.sha256(), np.asarray(self.table.name_end)
        for start in range(0, len(self), 2**16):
            rows = self.rows[start : start + 2**16]
            begin = np.where(rows > 0, ends[rows - 1], 0)
            length = ends[rows] - begin
            letters = np.repeat(begin - np.cumsum(length) + length, length) + np.arange(length.sum())
            for part in (self.table.size[rows], length, self.table.names[letters]):
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


class Names(Sequence[str]):
    """The names of a source's images, read from its index one by one."""

    def __init__(self, source: Source):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        return self.source.prefix + self.source.name(i % len(self))


class Builder:
    """Collects the rows of an index."""

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = {column: [] for column in COLUMNS}
        self.names: list[bytes] = []

    def add(
        self, name: str, label: int, size: int, shard: int = -1, offset: int = 0, changed: int = 0
    ) -> None:
        values = {"shard": shard, "offset": offset, "size": size, "time": changed, "label": label}
        for column, value in values.items():
            self.columns[column].append(value)
        self.names.append(name.encode(errors="surrogateescape"))

    def table(self) -> Table:
        ends = np.cumsum([len(name) for name in self.names], dtype=np.int64)
        columns = {name: np.array(self.columns[name], dtype) for name, dtype in COLUMNS.items()}
        return Table(**columns, name_end=ends, names=np.frombuffer(b"".join(self.names), np.uint8))


def from_listing(folder: Path, listing: Listing) -> Source:
    """The source of image files that are listed."""
    builder = Builder()
    names = sorted({str(name) for _, name in listing.entries}) if listing.labelled else []
    number = {name: i for i, name in enumerate(names)}
    root = os.fspath(folder)
    for path, name in listing.entries:
        try:
            state = path.stat()
            size, changed = state.st_size, state.st_mtime_ns
        except OSError:
            size, changed = 0, 0
        text = os.fspath(path)
        text = text.removeprefix(f"{root}/") if text.startswith(f"{root}/") else os.path.relpath(text, root)
        builder.add(text, number.get(name or "", -1), size, changed=changed)
    skipped = [[os.path.relpath(path, root), reason] for path, reason in listing.skipped]
    folders = [[os.path.relpath(path, root), path.stat().st_mtime_ns] for path in listing.folders]
    about = {"classes": names, "skipped": skipped, "shards": [], "folders": folders}
    return Source(folder, builder.table(), about)


def from_shards(folder: Path, shards: list[Path]) -> Source:
    """The source of the images in tar, parquet or arrow files."""
    builder = Builder()
    about: dict[str, Any] = {"classes": [], "skipped": [], "shards": [], "folders": []}
    classes: list[str] | None = None
    with suppress(OSError, ValueError, RecursionError):
        given = json.loads((folder / CLASSES).read_text(encoding="utf-8"))
        classes = [str(name) for name in given] if isinstance(given, list) else None
    words: dict[str, int] = {}  # classes that are named, not numbered
    for number, path in enumerate(shards):
        state = path.stat()
        about["shards"].append([path.name, state.st_size, state.st_mtime_ns])
        for name, label, size, offset in rows_of(path, state.st_size, about):
            if isinstance(label, str):
                label = words.setdefault(label, len(words))
            builder.add(name, label, size, number, offset)
    table = builder.table()
    if len(table.label) and table.label.min() >= 0:
        if words:
            order = sorted(
                words, key=lambda word: (not word.isdecimal(), len(word) if word.isdecimal() else 0, word)
            )
            rank = np.array([order.index(word) for word in words])
            table, classes = table._replace(label=rank[table.label]), order
        if table.label.max() >= MOST_CLASSES:
            raise UserError(f"{folder} has label {table.label.max()}; labels are below {MOST_CLASSES:,}")
        known = classes or about.pop("names", None) or [str(i) for i in range(int(table.label.max()) + 1)]
        if table.label.max() >= len(known):
            raise UserError(f"{folder} has label {table.label.max()}, and names {len(known)} classes")
        about["classes"] = [name.encode(errors="backslashreplace").decode() for name in known]  # surrogates
    about["folders"].append([".", folder.stat().st_mtime_ns])
    return Source(folder, table, about)
