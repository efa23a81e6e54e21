"""Images in, arrays out: representations of a folder or of a named data set, with files or labels."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate.features import smallest_integer
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
    """Write an array for each layer to an .npz file; returns the count, the layers, and the skipped files.

    The file also has ``files`` for a folder, and for a named data set, which is encoded with all its splits,
    ``labels``, ``classes`` and ``split``. Codes are stored in the smallest integers that hold them.
    """
    if out.suffix != ".npz":
        raise UserError(f"--out is {str(out)!r}; it must end in .npz")
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
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        # older versions of numpy would store their options as arrays
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return count, checked, [row for part in sets for row in part.skipped]


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
