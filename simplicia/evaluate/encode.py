"""Images in, arrays out: representations of a folder or of a named data set, with files or labels."""

import csv
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.data.folder import layout
from simplicia.data.shards import pyarrow
from simplicia.errors import UserError, printable
from simplicia.evaluate.features import MAPPED_BYTES, check_finite, load_split, mapped
from simplicia.files import atomic_write, write_errors
from simplicia.progress import Progress
from simplicia.representation import patch_codes, represent
from simplicia.run import Run


@torch.no_grad()
def encode(
    run: Run,
    images: str,
    out: Path,
    layers: Sequence[str] | None,
    temperature: float | None,
    network: str,
    data_dir: str | Path | None,
    quiet: bool,
) -> tuple[int, list[str], list[tuple[str, str]]]:
    """Write an array for each layer; returns the count, the layers, and the skipped files.

    The file also has ``files`` for a folder, and ``labels``, ``classes`` and ``split`` as far as the images
    have them; a named data set is encoded with all its splits. Codes are stored in the smallest integers that
    hold them; layer "tokens" has the codes of patches. The end of the file's name gives its format.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"--out is {str(out)!r}; it must end in {' or '.join(FORMATS)}")
    if out.suffix == ".parquet":
        pyarrow(out.name)  # before the work
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {str(out.parent)!r} to write {out.name} into")
    if not images:
        raise UserError("no folder of images is named; give one ('.' is the current one)")
    checked = list(dict.fromkeys(layers or [run.check_layer(None)]))
    for layer in checked:
        run.check_layer("codes" if layer == "tokens" else layer)
    if out.suffix == ".csv" and "tokens" in checked:
        raise UserError(
            "layer 'tokens' has codes for each patch of an image, and .csv a row; give .npz or .parquet"
        )
    if temperature is not None and "sem" not in checked:
        run.check_layer(checked[0], temperature)
    sets, about = _read(run, images, data_dir)
    net: Any = run.network(network)
    count, done = sum(map(len, sets)), 0
    kept: list[int] = []  # the numbers of images that could be read
    unreadable: list[tuple[str, str]] = []
    with closing(Progress("encoding", count, 0, quiet)) as bar:
        stores: dict[str, _Store] = {}
        for numbers, pixels in _batches(sets, unreadable):
            view = run.view(pixels)
            features = check_finite(run, net.encoder(view))  # once for all layers; codes would not show it
            for layer in checked:
                if layer == "tokens":
                    output = patch_codes(net, view)
                else:
                    output = represent(net, features, layer, temperature if layer == "sem" else None)
                x = check_finite(run, output).cpu().numpy()
                x = x.astype(_smallest(net.bottleneck.vertices)) if layer in ("codes", "tokens") else x
                if layer not in stores:
                    stores[layer] = _Store(layer, x, count, out.parent)
                stores[layer].add(x)
            kept += numbers
            done += len(numbers)
            bar.update(done, ", ".join(checked))
        if not kept:
            path, reason = unreadable[0]
            raise UserError(f"none of the {count} images can be read, such as {path!r}: {reason}")
        arrays = {name: values if name == "classes" else values[kept] for name, values in about.items()}
        arrays |= {layer: store.array() for layer, store in stores.items()}
        with atomic_write(out) as temporary:
            FORMATS[out.suffix](temporary, arrays, checked)
    return len(kept), checked, unreadable + [row for part in sets for row in part.skipped]


def _write_npz(path: Path, arrays: dict[str, np.ndarray], layers: list[str]) -> None:
    with path.open("wb") as file:
        # older versions of numpy would store their options as arrays
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _write_csv(path: Path, arrays: dict[str, np.ndarray], layers: list[str]) -> None:
    """A row per image: file, split and label, and a column per code or feature (codes_0, codes_1, …)."""
    about = {"file": arrays.get("files"), "split": arrays.get("split")}
    about["label"] = arrays["classes"][arrays["labels"]] if "labels" in arrays else None
    columns = {name: values for name, values in about.items() if values is not None}
    titles = [f"{layer}_{i}" for layer in layers for i in range(arrays[layer].shape[1])]
    # file names may hold bytes that are no text
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, *titles])
        for i in range(len(arrays[layers[0]])):
            numbers = (
                format(x, "" if layer == "codes" else ".9g") for layer in layers for x in arrays[layer][i]
            )
            writer.writerow([*(values[i] for values in columns.values()), *numbers])


def _write_parquet(path: Path, arrays: dict[str, np.ndarray], layers: list[str]) -> None:
    """A row per image, and a column per array; the names of classes are in the file's metadata, as JSON."""
    arrow, columns = pyarrow(path.name), {}
    for name, array in arrays.items():
        if name == "classes":
            continue
        if array.dtype.kind == "U":  # lone surrogates of file names are no text
            array = np.array([printable(text) for text in array.tolist()])
        column = arrow.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = arrow.FixedSizeListArray.from_arrays(column, size)
        columns[name] = column
    table = arrow.table(columns)
    if "classes" in arrays:  # datasets takes the other columns' types from the table
        classes = [printable(name) for name in arrays["classes"].tolist()]
        table = table.replace_schema_metadata({"simplicia": json.dumps({"classes": classes})})
    arrow.parquet.write_table(table, path, compression="zstd")


FORMATS = {".npz": _write_npz, ".csv": _write_csv, ".parquet": _write_parquet}


class _Store:
    """The rows of an array: in memory, or if they are many in a file without a name."""

    def __init__(self, layer: str, first: np.ndarray, count: int, folder: Path):
        shape, self.done = (count, *first.shape[1:]), 0
        size = math.prod(shape) * first.dtype.itemsize
        self.rows: np.ndarray
        if size <= MAPPED_BYTES:
            self.rows = np.empty(shape, first.dtype)
            return
        free = shutil.disk_usage(folder).free
        if 2 * size > free:
            instead = "" if layer == "codes" else "; --layer codes takes far less"
            raise UserError(
                f"layer {layer!r} of {count:,} images takes {size / 1e9:.0f} GB twice while it is written, "
                f"and {str(folder)!r} has {free / 1e9:.0f} GB free{instead}"
            )
        with write_errors(f"layer {layer!r}", folder):
            self.rows = mapped(folder, shape, first.dtype)

    def add(self, x: np.ndarray) -> None:
        self.rows[self.done : self.done + len(x)] = x
        self.done += len(x)

    def array(self) -> np.ndarray:
        return self.rows[: self.done]


def _batches(sets: list[ImageSet], unreadable: list[tuple[str, str]]) -> Iterator[tuple[list[int], Tensor]]:
    """Batches of the images that can be read, with their numbers; adds the others to ``unreadable``."""
    start = 0
    for images in sets:
        if not images.streamed:
            for batch in images.images.split(256):
                yield list(range(start, start + len(batch))), batch
                start += len(batch)
            continue
        first = start
        for batch, reasons in images.images.decoded(256):
            unreadable += [(images.files[start - first + i], reason) for i, reason in reasons.items()]
            readable = [i for i in range(len(batch)) if i not in reasons]
            if readable:
                yield [start + i for i in readable], batch[readable]
            start += len(batch)


def _smallest(vertices: int) -> Any:
    """The smallest integers that hold codes of so many vertices."""
    return next(kind for kind in (np.uint8, np.uint16, np.int32) if vertices - 1 <= np.iinfo(kind).max)


def _read(run: Run, images: str, data_dir: str | Path | None) -> tuple[list[ImageSet], dict[str, np.ndarray]]:
    """Image sets, and arrays that describe each of their images."""
    if images not in datasets.names() or Path(images).exists():
        batch = datasets.read_all(Path(images), run.recipe.actual_decode_size, run.recipe.stream or None)
        return [batch], {"files": np.array(batch.files), **_labels(Path(images), batch.files)}
    sets = [load_split(run.recipe, split, images, data_dir) for split in ("train", "test")]
    about = {
        "labels": np.concatenate([part.labels.numpy() for part in sets if part.labels is not None]),
        "classes": np.array(sets[0].classes),
        "split": np.repeat(["train", "test"], [len(part) for part in sets]),
    }
    if sets[0].files:
        about["files"] = np.array([file for part in sets for file in part.files])
    return sets, about


def _labels(folder: Path, files: Sequence[str]) -> dict[str, np.ndarray]:
    """The labels and classes of a folder's images if each has a class, and their splits if there are any."""
    if not folder.is_dir():
        return {}
    splits = {name: part for name, part in layout(folder)._asdict().items() if part is not None}
    known = {
        file.relative_to(folder).as_posix(): (split, label)
        for split, listing in splits.items()
        for file, label in listing.entries
    }
    places = [known.get(file, (None, None)) for file in files]
    about = {}
    if len(splits) > 1 and all(split for split, _ in places):
        about["split"] = np.array([split for split, _ in places])
    if all(label is not None for _, label in places):
        classes = sorted({str(label) for _, label in places})
        about["labels"] = np.array([classes.index(str(label)) for _, label in places])
        about["classes"] = np.array(classes)
    return about
