"""Indexes of sources: built once, mapped by all processes, and built again when their data changed.

A folder has another time of change when files are added, removed or renamed, and a file that was written to
is noticed when it is read. Indexes lie in the folder SIMPLICIA_CACHE, by default ~/.cache/simplicia; that of
packed images lies beside its shards.
"""

import hashlib
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from simplicia.data import shards
from simplicia.data.folder import TEST_FOLDERS, TRAIN_FOLDERS, Layout, choose_splits, layout, list_images
from simplicia.data.sources import COLUMNS, NAMES, Source, Table, from_listing, from_shards
from simplicia.errors import UserError
from simplicia.files import atomic_write, cache_folder, locked

VERSION = 1
INDEX = "index.safetensors"  # of packed images, beside their shards
SETTLED = 2.0  # seconds after which a folder's time of change tells of every change


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
        return sorted(path for path in folder.iterdir() if path.suffix in shards.KINDS and path.is_file())
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


def _cached_index(folder: Path, files: list[Path] | None) -> Source:
    """The source of a folder, or of some shards in it, from the index in the cache."""
    path = _index_path(folder, files)
    source = _valid(path, folder)
    if source is not None:
        return source
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            source = _valid(path, folder)  # another process may have built it meanwhile
            if source is None:
                source = _build(folder, files)
                save_index(source, path)
            return _valid(path, folder) or source
    except OSError:  # nowhere to keep it
        return _build(folder, files)


def _valid(path: Path, folder: Path) -> Source | None:
    """A source from its index in the cache, unless its data changed."""
    source = _load(path, folder)
    return replace(source, index=path) if source is not None and _matches(source) else None


def _build(folder: Path, files: list[Path] | None) -> Source:
    found = shards_of(folder) if files is None else files
    return from_shards(folder, found) if found else from_listing(folder, list_images(folder))


def _index_path(folder: Path, files: list[Path] | None) -> Path:
    named = "\0".join([str(folder.resolve()), *(path.name for path in files or ())])
    name = hashlib.sha256(f"{VERSION} {named}".encode(errors="surrogateescape")).hexdigest()[:32]
    return cache_folder() / f"{name}.index"


def save_index(source: Source, path: Path) -> None:
    """Write the index of a source."""
    from safetensors.numpy import save

    about = source.about | {"version": VERSION, "built": time.time_ns()}
    with atomic_write(path) as temporary:
        arrays = {name: np.ascontiguousarray(column) for name, column in source.table._asdict().items()}
        temporary.write_bytes(save(arrays, {"about": json.dumps(about)}))


def save_packed(source: Source) -> None:
    """Write the index of shards beside them. It stays valid when they are copied, so it knows no times."""
    timeless = [[name, size, 0] for name, size, _ in source.about["shards"]]
    packed = replace(source, about=source.about | {"shards": timeless, "folders": []})
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
