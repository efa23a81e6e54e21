"""Build an index, add images to it and remove them: each writes a new file, which replaces the old one."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from simplicia.codes import informative, store
from simplicia.codes.build import File, encode_files, list_files, model_of
from simplicia.codes.store import About, Table
from simplicia.errors import Busy, UserError
from simplicia.files import temporary_name, write_errors
from simplicia.run import Run
from simplicia.train.run_dir import lock

SAMPLE = 4096  # images on which simplices are chosen, and vertices explained

Skipped = list[tuple[str, str]]  # files that cannot be read, and why


def build(run: Run, images: Path, path: Path, simplices: int, quiet: bool) -> Skipped:
    """Write the index of every image below a folder; returns the files that were skipped."""
    model = model_of(run)
    if simplices < 1:
        raise UserError(f"simplices is {simplices}; it must be at least 1")
    bottleneck: Any = run.network().bottleneck
    total, vertices = bottleneck.simplices, bottleneck.vertices
    if vertices > store.MOST_VERTICES:
        most = store.MOST_VERTICES
        raise UserError(f"{run.path} has {vertices} vertices; an index takes at most {most}")
    with _writing(path):
        if path.exists():
            check_model(store.read(path).about, run, path)
        folder, here = images.resolve(), path.parent.resolve()
        folder = folder if folder.is_dir() else folder.parent
        stored = folder.relative_to(here) if folder.is_relative_to(here) else folder
        about = About(store.VERSION, model, str(stored), total, vertices, simplices=list(range(total)))
        files, skipped = list_files(images, folder)
        tables, unreadable = encode_files(run, files, about, _parts(path), quiet)
        sources = _in_order(tables, files)
        count = sum(len(rows) for _, rows in sources)
        if not count:
            name, reason = unreadable[0]
            raise UserError(f"none of the {len(files)} images can be read, such as {name!r}: {reason}")
        some = np.sort(np.random.default_rng(0).permutation(count)[:SAMPLE])
        chosen = informative.choose(_rows(sources, some), vertices, simplices)
        about = about.replace(simplices=chosen.tolist())
        store.write(path, about, [(table, rows, chosen) for table, rows in sources])
        del tables, sources
        _remove_parts(path)
    return skipped + unreadable


def add(run: Run, images: Path, path: Path, quiet: bool) -> tuple[int, Skipped]:
    """Add new and changed images of a folder; returns how many, and the files that were skipped."""
    with _writing(path):
        table = store.read(path)
        check_model(table.about, run, path)
        files, skipped = list_files(images, folder_of(table.about, path))
        names = table.names()
        known = dict(zip(names, map(tuple, table.stamps.tolist()), strict=True))
        changed = [file for file in files if known.get(file.name) != file.stamp]
        tables, unreadable = encode_files(run, changed, table.about, _parts(path), quiet)
        sources = _in_order(tables, changed)
        new = {name for part, rows in sources for name in part.names(rows.tolist())}
        kept = np.array([i for i, name in enumerate(names) if name not in new], dtype=np.int64)
        if new:
            store.write(path, table.about, [(t, r, None) for t, r in [(table, kept), *sources]])
        del tables, sources
        _remove_parts(path)
    return len(new), skipped + unreadable


def remove(names: Iterable[str], path: Path) -> int:
    """Remove images by name, or all below a folder; returns how many."""
    with _writing(path):
        table = store.read(path)
        known, folder, gone = table.names(), folder_of(table.about, path), set[int]()
        for name in names:
            file = Path(name).resolve()  # the name may be the path of a file
            inside = file.relative_to(folder) if file.is_relative_to(folder) else file
            wanted = {name.rstrip("/"), inside.as_posix()} if name else set()
            folders = tuple(f"{each}/" for each in wanted)
            below = [i for i, other in enumerate(known) if other in wanted or other.startswith(folders)]
            if not below:
                raise UserError(f"{str(path)!r} has no image {name!r}; names are as in {known[0]!r}")
            gone.update(below)
        kept = np.setdiff1d(np.arange(len(table)), list(gone))
        if not len(kept):
            raise UserError(f"this would remove all {len(table)} images; delete {str(path)!r} instead")
        store.write(path, table.about, [(table, kept, None)])
    return len(gone)


def check_model(about: About, run: Run, path: Path) -> None:
    """A UserError unless a run is the model of an index."""
    made, given = about.model, model_of(run)
    if made.digest != given.digest:
        raise UserError(
            f"the index {str(path)!r} was made by {made.name} in {made.run}, not by {given.name} in "
            f"{given.run}; codes of two models do not compare: give the run that made it, or another index"
        )


def folder_of(about: About, path: Path) -> Path:
    """The folder that names are relative to."""
    return path.parent.resolve() / about.folder


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold the lock of an index; a UserError says why it cannot be written."""
    with write_errors("the index", path):
        try:
            file = lock(path.parent, f".{path.name}.lock")
        except Busy:
            raise Busy(
                f"the index {str(path)!r} is being written by another process; try again later"
            ) from None
        with file:
            yield


def _parts(path: Path) -> Path:
    """The folder with the work of an unfinished build."""
    return path.with_name(f"{path.name}.building")


def _remove_parts(path: Path) -> None:
    """Remove the parts of a finished index, under another name: a build must not go on with half of them."""
    removed = temporary_name(path)
    _parts(path).rename(removed)
    shutil.rmtree(removed)


def _in_order(tables: Sequence[Table], files: Sequence[File]) -> list[tuple[Table, np.ndarray]]:
    """The rows of tables that are of these files, each file once, and tables in the order of the files.

    Tables of a killed process may come in any order.
    """
    places = {(file.name, *file.stamp): i for i, file in enumerate(files)}
    sources = []
    for table in tables:
        found = []
        for row, (name, stamp) in enumerate(zip(table.names(), table.stamps.tolist(), strict=True)):
            place = places.pop((name, *stamp), None)
            if place is not None:
                found.append((place, row))
        if found:
            sources.append((min(found)[0], table, np.array([row for _, row in found], dtype=np.int64)))
    return [(table, rows) for _, table, rows in sorted(sources, key=lambda source: source[0])]


def _rows(sources: Sequence[tuple[Table, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    """The codes of some rows of several tables, counted through."""
    parts, start = [], 0
    for table, kept in sources:
        inside = rows[(rows >= start) & (rows < start + len(kept))] - start
        parts.append(table.unpacked(kept[inside]))
        start += len(kept)
    return np.concatenate(parts)
