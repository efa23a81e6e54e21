"""Encoded images at random access: folders of files, tar shards, and tables with a column of images.

    source = open_source(Path("imagenet/train"))
    source.read(7), source.labels[7], source.name(7)     # from any thread

An index says where each image lies. It is built once, mapped by all processes, and built again when its data
changed: a folder has another time of change when files are added, removed or renamed, and a file that was
written to is noticed when it is read. Indexes lie in the folder SIMPLICIA_CACHE, by default
~/.cache/simplicia; that of packed images lies beside its shards.
"""

import hashlib
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from simplicia.data.folder import (
    EXTENSIONS,
    TEST_FOLDERS,
    TRAIN_FOLDERS,
    Layout,
    Listing,
    choose_splits,
    layout,
    list_images,
)
from simplicia.errors import UserError
from simplicia.files import atomic_write, locked

VERSION = 1
INDEX = "index.safetensors"  # of packed images, beside their shards
CLASSES = "classes.json"  # the names of the classes, beside shards that number them
SHARDS = (".tar", ".parquet", ".arrow")
SETTLED = 2.0  # seconds after which a folder's time of change tells of every change
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


class Source:
    """Images of a folder, as bytes. ``rows`` chooses some of them."""

    def __init__(self, root: Path, table: Table, about: dict[str, Any], rows: np.ndarray | None = None):
        self.root, self.table, self.about = root, table, about
        self.rows = np.arange(len(table.size)) if rows is None else rows
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.skipped = [(root / path, str(reason)) for path, reason in about["skipped"]]
        self.prefix = ""  # of the names
        self.index: Path | None = None  # that may be removed
        self.tables: dict[tuple[str, int], Any] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: np.ndarray) -> "Source":
        """Some of the images."""
        some = Source(self.root, self.table, self.about, self.rows[chosen])
        some.prefix, some.index = self.prefix, self.index
        return some

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each image, as its number; None if not all have one."""
        return self.class_of_each() if self.classes else None

    @property
    def labelled(self) -> bool:
        return bool(self.classes)

    def class_of_each(self) -> np.ndarray:
        """What tells the classes of the images apart."""
        return np.asarray(self.table.label)[self.rows]

    @property
    def entries(self) -> "Names":
        """What is true if there are images."""
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
                return self._row(name, offset, size)
            with open(self.root / name, "rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                if state.st_size != shard_size or (changed and state.st_mtime_ns != changed):
                    if self.index is not None:
                        self.index.unlink(missing_ok=True)  # the next process builds another one
                    raise Unreadable("has changed since it was indexed")
                if offset + size > state.st_size:
                    raise Unreadable("lies outside of its shard")
                if size == 0:
                    raise Unreadable("is empty")
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise Unreadable(
                "is gone" if isinstance(error, FileNotFoundError) else str(error.strerror)
            ) from None
        if len(data) < size:
            raise Unreadable("is cut off")
        return data

    def _row(self, name: str, group: int, row: int) -> bytes:
        """A row of a parquet file. A group of rows is read as one; the last few are kept."""
        column = self.tables.get((name, group))
        if column is None:
            parquet = pyarrow(name).parquet.ParquetFile(self.root / name)
            field = self.about["column"]
            column = _image_bytes(parquet.read_row_group(group, columns=[field]).column(0).combine_chunks())
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


# ---- Building


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
        rows = _tar_rows(path, about) if path.suffix == ".tar" else _table_rows(path, about)
        for name, label, size, offset in rows:
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
        about["classes"] = known
    about["folders"].append([".", folder.stat().st_mtime_ns])
    return Source(folder, table, about)


Row = tuple[str, int | str, int, int]  # name, label, size, offset


def _tar_rows(path: Path, about: dict[str, Any]) -> Iterator[Row]:
    """The images of a tar file: `key.jpg`, whose class is in `key.cls` or `key.json`."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int | str] = {}
    try:
        with tarfile.open(path, "r:") as tar, path.open("rb") as file:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                stem, _, extension = name.partition(".")
                key, kind = f"{folder}/{stem}" if folder else stem, "." + extension.lower()
                if not member.isreg() or name.startswith("."):
                    continue
                if member.offset_data + member.size > about["shards"][-1][1]:
                    raise tarfile.ReadError("unexpected end of data")
                if kind in EXTENSIONS:
                    images[key] = member.name, member.size, member.offset_data
                elif kind in (".cls", ".json") and member.size < 2**16:
                    file.seek(member.offset_data)
                    label = _label(kind, file.read(member.size))
                    if label is not None:
                        labels[key] = label
                tar.members = []  # type: ignore[attr-defined]  # which would grow with the file
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise tarfile.ReadError("it has no end")
    except Exception as error:  # tarfile raises nearly every exception there is
        reason = str(error) or type(error).__name__
        about["skipped"].append([path.name, f"the shard is damaged after {len(images)} images: {reason}"])
    for key, (name, size, offset) in images.items():
        yield name, labels.get(key, -1), size, offset


def _label(kind: str, text: bytes) -> int | str | None:
    """The class in a `.cls` or `.json` member: a number from 0 on, or a name."""
    try:
        value = text.decode().strip() if kind == ".cls" else json.loads(text)
        if isinstance(value, dict):
            value = next((value[key] for key in ("label", "cls", "class") if key in value), None)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, str) or (type(value) is int and 0 <= value < 2**31) else None


def _table_rows(path: Path, about: dict[str, Any]) -> Iterator[Row]:
    """The images of a parquet or arrow file as Hugging Face writes them."""
    pa = pyarrow(path.name)
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, pa.parquet.ParquetFile(path), about)
        else:
            yield from _arrow_rows(path, pa, about)
    except (pa.ArrowException, OSError) as error:
        about["skipped"].append([path.name, f"the table is damaged: {' '.join(str(error).split())[:200]}"])


def _parquet_rows(path: Path, file: Any, about: dict[str, Any]) -> Iterator[Row]:
    _, label = _columns(path, file.schema_arrow, about)
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        labels = file.read_row_group(group, columns=[label]).column(0).to_pylist() if label else [-1] * count
        for row, value in enumerate(labels):
            yield f"{path.name}:{group}:{row}", _table_label(value), row, group


def _arrow_rows(path: Path, pa: Any, about: dict[str, Any]) -> Iterator[Row]:
    mapped = pa.memory_map(str(path))
    everything = mapped.read_buffer(mapped.size())
    opener = pa.ipc.open_file if bytes(everything[:6]) == b"ARROW1" else pa.ipc.open_stream
    reader = opener(everything)
    image, label = _columns(path, reader.schema, about)
    is_file = hasattr(reader, "num_record_batches")
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    row = 0
    for batch in batches:
        column = _image_bytes(batch.column(image))
        wide = pa.types.is_large_binary(column.type)
        _, ends, data = column.buffers()
        start = 0 if data is None else data.address - everything.address
        if not 0 <= start < len(everything):
            raise UserError(f"{str(path)!r} is compressed; save it uncompressed, or as parquet")
        bounds = np.frombuffer(ends, np.int64 if wide else np.int32)[column.offset :][: len(column) + 1]
        labels = batch.column(label).to_pylist() if label else [-1] * len(column)
        for value, begin, end in zip(labels, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield f"{path.name}:{row}", _table_label(value), end - begin, start + begin
            row += 1


def _table_label(value: Any) -> int | str:
    return value if isinstance(value, str) or (type(value) is int and 0 <= value < 2**31) else -1


def _columns(path: Path, schema: Any, about: dict[str, Any]) -> tuple[str, str | None]:
    """The columns of images and of labels, and the names of the classes if the table has them."""
    import pyarrow.types as types

    def holds_images(kind: Any) -> bool:
        if types.is_struct(kind):
            return any(
                kind.field(i).name == "bytes" and holds_images(kind.field(i).type)
                for i in range(kind.num_fields)
            )
        return types.is_binary(kind) or types.is_large_binary(kind)

    once = [field for field in schema if schema.names.count(field.name) == 1]
    image = next((field.name for field in once if holds_images(field.type)), None)
    if image is None:
        raise UserError(f"{str(path)!r} has no column of images; its columns are {', '.join(schema.names)}")
    if about.setdefault("column", image) != image:
        raise UserError(
            f"{str(path)!r} has its images in column {image!r}, other files in {about['column']!r}"
        )
    known = {field.name for field in once}
    names = [name for name in ("label", "labels", "fine_label", "cls", "class") if name in known]
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        about.setdefault("names", [str(name) for name in features[names[0]]["names"]] if names else None)
    return image, names[0] if names else None


def _image_bytes(column: Any) -> Any:
    """The bytes of a column of images, which may have paths too."""
    import pyarrow.types as types

    return column.field("bytes") if types.is_struct(column.type) else column


def pyarrow(name: str) -> Any:
    """The package that reads and writes the tables of a file; a UserError without it."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{name!r} needs pyarrow, which is not installed; pip install 'simplicia[parquet]'"
        ) from None
    return pyarrow


# ---- The index


def open_source(folder: Path) -> Source:
    """The images of a folder, from its index, which is built if there is none or its data changed."""
    packed = folder / INDEX
    if packed.is_file():
        source = _load(packed, folder)
        if source is None or not _matches(source):
            raise UserError(
                f"{str(packed)!r} does not match its shards; copy them again, or remove it to index them"
            )
        return source
    return _cached_index(folder, None)


def shards_of(folder: Path) -> list[Path]:
    """The shards that lie in a folder, in the order of their names."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in SHARDS and path.is_file())
    except OSError as error:
        raise UserError(f"the folder {str(folder)!r} cannot be opened: {error.strerror}") from error


def has_shards(folder: Path) -> bool:
    """Whether the images of a folder, or of its training split, are in shards."""
    places = (folder, *(folder / name for name in TRAIN_FOLDERS))
    return any(shards_of(place) for place in places if place == folder or place.is_dir())


def stream_layout(folder: Path, test_folders: tuple[str, ...] = TEST_FOLDERS) -> Layout:
    """The splits of a folder, as ``folder.layout`` finds them, with sources in place of listings.

    Shards in one folder are split by a word of their names: train-00.tar, test-00.parquet. Those without such
    a word are the training split.
    """
    found = shards_of(folder)
    if not found or (folder / INDEX).is_file():
        return layout(folder, test_folders, open_source)
    splits: dict[str, list[Path]] = {}
    for path in found:
        words = set(re.split(r"[^a-z]+", path.stem.lower()))
        split = next((word for word in (*TRAIN_FOLDERS, *TEST_FOLDERS) if word in words), "train")
        splits.setdefault(split, []).append(path)
    sources = {split: _cached_index(folder, paths) for split, paths in splits.items()}
    train = next((sources[name] for name in TRAIN_FOLDERS if name in sources), None)
    if train is None:
        raise UserError(f"{str(folder)!r} has no shards to train on; their names have the word train")
    return choose_splits(train, {name: sources[name] for name in test_folders if name in sources})


def indexed(folder: Path) -> bool:
    """Whether a folder, or its train folder, was indexed before: it was streamed then."""
    return any(_index_path(path, None).is_file() for path in (folder, folder / "train"))


def _cached_index(folder: Path, shards: list[Path] | None) -> Source:
    """The source of a folder, or of some shards in it, from the index in the cache."""
    path = _index_path(folder, shards)
    source = _valid(path, folder)
    if source is not None:
        return source
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            source = _valid(path, folder)  # another process may have built it meanwhile
            if source is None:
                source = _build(folder, shards)
                save_index(source, path)
            return _valid(path, folder) or source
    except OSError:  # nowhere to keep it
        return _build(folder, shards)


def _valid(path: Path, folder: Path) -> Source | None:
    """A source from its index in the cache, unless its data changed."""
    source = _load(path, folder)
    if source is None or not _matches(source):
        return None
    source.index = path
    return source


def _build(folder: Path, shards: list[Path] | None) -> Source:
    found = shards_of(folder) if shards is None else shards
    return from_shards(folder, found) if found else from_listing(folder, list_images(folder))


def _index_path(folder: Path, shards: list[Path] | None) -> Path:
    named = "\0".join([str(folder.resolve()), *(path.name for path in shards or ())])
    name = hashlib.sha256(f"{VERSION} {named}".encode(errors="surrogateescape")).hexdigest()[:32]
    return cache_folder() / f"{name}.index"


def cache_folder() -> Path:
    """Where indexes are kept."""
    if given := os.environ.get("SIMPLICIA_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "simplicia"


def save_index(source: Source, path: Path) -> None:
    """Write the index of a source."""
    from safetensors.numpy import save

    about = source.about | {"version": VERSION, "built": time.time_ns()}
    with atomic_write(path) as temporary:
        arrays = {name: np.ascontiguousarray(column) for name, column in source.table._asdict().items()}
        temporary.write_bytes(save(arrays, {"about": json.dumps(about)}))


def save_packed(source: Source) -> None:
    """Write the index of shards beside them. It stays valid when they are copied, so it knows no times."""
    shards = [[name, size, 0] for name, size, _ in source.about["shards"]]
    packed = Source(source.root, source.table, source.about | {"shards": shards, "folders": []})
    save_index(packed, source.root / INDEX)


def _load(path: Path, folder: Path) -> Source | None:
    """A source from its index; None if that is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:  # maps the file
            about = json.loads(file.metadata()["about"])
            table = Table(**{name: file.get_tensor(name).numpy() for name in Table._fields})
        count, classes = len(table.size), about["classes"]
        if about["version"] != VERSION or any(len(c) != count for c in table[:-1]):
            return None
        columns = {name: getattr(table, name) for name in COLUMNS | NAMES}
        if any(
            (str(columns[name].dtype), columns[name].ndim) != (dtype, 1)
            for name, dtype in (COLUMNS | NAMES).items()
        ):
            return None
        within = type(about["built"]) is int and all(type(name) is str for name in classes)
        within = within and (
            count == 0
            or (
                -1 <= table.label.min() <= table.label.max() < max(len(classes), 1)
                and table.shard.max() < max(len(about["shards"]), 1)
                and min(table.offset.min(), table.size.min()) >= 0
                and bool((np.diff(table.name_end, prepend=0) >= 0).all())
                and int(table.name_end[-1]) <= len(table.names)
            )
        )
        parts = ((str, int, int),) * len(about["shards"]), ((str, int),) * len(about["folders"])
        for rows, kinds in zip((about["shards"], about["folders"]), parts, strict=True):
            within = within and all(
                tuple(map(type, row)) == kind for row, kind in zip(rows, kinds, strict=True)
            )
        return Source(folder, table, about) if within else None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None


def _matches(source: Source) -> bool:
    """Whether an index describes what is there now: one look per folder and shard."""
    about = source.about
    try:
        for name, changed in about["folders"]:
            now = (source.root / name).stat().st_mtime_ns
            if now != changed or now > about["built"] - SETTLED * 1e9:
                return False
        for name, size, changed in about["shards"]:
            state = (source.root / name).stat()
            if "/" in name or state.st_size != size or (changed and state.st_mtime_ns != changed):
                return False
    except (OSError, ValueError):
        return False
    return True
