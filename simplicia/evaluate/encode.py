"""Images in, arrays out: representations of a folder or of a named data set, with files or labels."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError, printable
from simplicia.evaluate.features import smallest_integer
from simplicia.files import atomic_write
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
    """Write an array for each layer to a file; returns the count, the layers, and the skipped files.

    The file also has ``files`` for a folder, and for a named data set, which is encoded with all its splits,
    ``labels``, ``classes`` and ``split``. Codes are stored in the smallest integers that hold them.
    A .parquet file has a row for each image.
    """
    if out.suffix not in (".npz", ".parquet"):
        raise UserError(f"--out is {str(out)!r}; it must end in .npz or .parquet")
    if out.suffix == ".parquet":
        pyarrow()  # before the work
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {str(out.parent)!r} to write {out.name} into")
    if not images:
        raise UserError("no folder of images is named; give one ('.' is the current one)")
    checked = (
        [_check_layer(run, layer) for layer in dict.fromkeys(layers)] if layers else [run.check_layer(None)]
    )
    if temperature is not None and "sem" not in checked:
        run.check_layer(checked[0], temperature)
    sets, arrays = _read(run, images, data_dir)
    net: Any = run.network(network)
    parts: dict[str, list[Tensor]] = {layer: [] for layer in checked}
    count, done = sum(map(len, sets)), 0
    with closing(Progress("encoding", count, 0, quiet)) as bar:
        for batch in (batch for part in sets for batch in part.images.split(256)):
            view = run.view(batch)
            features = net.encoder(view)  # once for all layers
            for layer in checked:
                if layer == "tokens":
                    x = patch_codes(net, view).cpu()
                else:
                    x = represent(net, features, layer, temperature if layer == "sem" else None).cpu()
                is_code = layer in ("codes", "tokens")
                parts[layer].append(x.to(smallest_integer(net.bottleneck.vertices)) if is_code else x)
            done += len(batch)
            bar.update(done, ", ".join(checked))
    arrays |= {layer: torch.cat(batches).numpy() for layer, batches in parts.items()}
    if not all(np.isfinite(arrays[layer]).all() for layer in checked):
        raise UserError(f"{run.path} gives features that are not finite; its training diverged")
    if out.suffix == ".parquet":
        _write_parquet(out, arrays)
        return count, checked, [row for part in sets for row in part.skipped]
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        # older versions of numpy would store their options as arrays
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return count, checked, [row for part in sets for row in part.skipped]


def pyarrow() -> Any:
    """The package that writes Parquet files; a UserError without it."""
    try:
        import pyarrow.parquet

        return pyarrow
    except ImportError:
        raise UserError(
            ".parquet files need pyarrow, which is not installed: pip install 'simplicia[parquet]'"
        ) from None


def _write_parquet(out: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a row for each image; the names of classes are in the file's metadata, as JSON."""
    arrow, columns = pyarrow(), {}
    classes = [printable(name) for name in arrays.pop("classes", np.array([])).tolist()]
    for name, array in arrays.items():
        if array.ndim == 1:  # lone surrogates of file names are no text
            is_text = array.dtype.kind == "U"
            columns[name] = arrow.array([printable(x) for x in array.tolist()] if is_text else array)
            continue
        column = arrow.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = arrow.FixedSizeListArray.from_arrays(column, size)
        columns[name] = column
    table = arrow.table(columns)
    if classes:  # datasets takes the other columns' types from the table
        table = table.replace_schema_metadata({"simplicia": json.dumps({"classes": classes})})
    with atomic_write(out) as temporary:
        arrow.parquet.write_table(table, temporary, compression="zstd")


def _check_layer(run: Run, layer: str) -> str:
    """The given layer, which the run must have; "tokens" are the codes of patches."""
    if layer != "tokens":
        return run.check_layer(layer)
    run.check_layer("codes")
    return layer


def _read(run: Run, images: str, data_dir: str | Path | None) -> tuple[list[ImageSet], dict[str, np.ndarray]]:
    """Image sets, and arrays that describe each of their images."""
    size = run.recipe.actual_decode_size
    if images not in datasets.names() or Path(images).exists():
        batch = datasets.read_all(Path(images), size)
        return [batch], {"files": np.array(batch.files)}
    place, decoded = data_dir or run.recipe.data_dir, datasets.decoded_size(images, size)
    sets = [datasets.load(images, split, place, size=decoded) for split in ("train", "test")]
    about = {
        "labels": np.concatenate([part.labels.numpy() for part in sets if part.labels is not None]),
        "classes": np.array(sets[0].classes),
        "split": np.repeat(["train", "test"], [len(part) for part in sets]),
    }
    if sets[0].files:
        about["files"] = np.array([file for part in sets for file in part.files])
    return sets, about
