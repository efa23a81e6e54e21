"""Images in, arrays out: representations of a folder or of a named data set, with files or labels."""

import csv
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.data.folder import layout
from simplicia.errors import UserError
from simplicia.evaluate.features import load_split, smallest_integer
from simplicia.files import atomic_write
from simplicia.progress import Progress
from simplicia.representation import represent
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
    hold them. The end of the file's name gives its format.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"--out is {str(out)!r}; it must end in {' or '.join(FORMATS)}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {str(out.parent)!r} to write {out.name} into")
    if not images:
        raise UserError("no folder of images is named; give one ('.' is the current one)")
    checked = list(map(run.check_layer, dict.fromkeys(layers))) if layers else [run.check_layer(None)]
    if temperature is not None and "sem" not in checked:
        run.check_layer(checked[0], temperature)
    sets, arrays = _read(run, images, data_dir)
    net: Any = run.network(network)
    parts: dict[str, list[Tensor]] = {layer: [] for layer in checked}
    count, done, finite = sum(map(len, sets)), 0, True
    with closing(Progress("encoding", count, 0, quiet)) as bar:
        for batch in (batch for part in sets for batch in part.images.split(256)):
            features = net.encoder(run.view(batch))  # once for all layers
            finite = finite and bool(features.isfinite().all())  # codes would not show it
            for layer in checked:
                x = represent(net, features, layer, temperature if layer == "sem" else None).cpu()
                parts[layer].append(
                    x.to(smallest_integer(net.bottleneck.vertices)) if layer == "codes" else x
                )
            done += len(batch)
            bar.update(done, ", ".join(checked))
    arrays |= {layer: torch.cat(batches).numpy() for layer, batches in parts.items()}
    if not finite or not all(np.isfinite(arrays[layer]).all() for layer in checked):
        raise UserError(f"{run.path} gives features that are not finite; its training diverged")
    with atomic_write(out) as temporary:
        FORMATS[out.suffix](temporary, arrays, checked)
    return count, checked, [row for part in sets for row in part.skipped]


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


FORMATS = {".npz": _write_npz, ".csv": _write_csv}


def _read(run: Run, images: str, data_dir: str | Path | None) -> tuple[list[ImageSet], dict[str, np.ndarray]]:
    """Image sets, and arrays that describe each of their images."""
    size = run.recipe.actual_decode_size
    if images not in datasets.names() or Path(images).exists():
        batch = datasets.read_all(Path(images), size)
        return [batch], {"files": np.array(batch.files), **_labels(Path(images), batch.files)}
    place, decoded = data_dir or run.recipe.data_dir, datasets.decoded_size(images, size)
    sets = [load_split(images, split, place, decoded) for split in ("train", "test")]
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
    found = [known.get(file, (None, None)) for file in files]
    about = {}
    if len(splits) > 1 and all(split for split, _ in found):
        about["split"] = np.array([split for split, _ in found])
    if all(label is not None for _, label in found):
        classes = sorted({str(label) for _, label in found})
        about["labels"] = np.array([classes.index(str(label)) for _, label in found])
        about["classes"] = np.array(classes)
    return about
