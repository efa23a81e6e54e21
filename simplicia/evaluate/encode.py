"""Images in, arrays out: representations of a folder or of a named data set, with files or labels."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.errors import UserError
from simplicia.evaluate.features import smallest_integer
from simplicia.files import atomic_write
from simplicia.progress import Progress
from simplicia.representation import represent
from simplicia.run import Run

BATCH = 256
Skipped = list[tuple[str, str]]


def encode(
    run: Run,
    images: str | Path,
    out: str | Path,
    layer: str | Sequence[str] | None = None,
    temperature: float | None = None,
    network: str = "online",
    data_dir: str | Path | None = None,
    quiet: bool = True,
) -> tuple[int, Skipped, Path]:
    """Write an array for each layer to an .npz file; returns the count, the skipped files, and the path.

    The file also has ``files`` for a folder, and for a named data set, which is encoded with all its splits,
    ``labels``, ``classes`` and ``split``. Codes are stored in the smallest integers that hold them.
    """
    path = Path(out)
    if path.suffix != ".npz":
        raise UserError(f"--out is {str(out)!r}; it must end in .npz")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {str(path.parent)!r} to write {path.name} into")
    if not str(images):
        raise UserError("no folder of images is named; give one ('.' is the current one)")
    layers = check_layers(run, layer, temperature)
    batch, about, skipped = _read(run, images, data_dir)
    arrays = _encode(run, batch, layers, temperature, network, quiet) | about
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        # older versions of numpy would store their options as arrays
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return len(batch), skipped, path


def check_layers(run: Run, layer: str | Sequence[str] | None, temperature: float | None = None) -> list[str]:
    """The layers asked for; a UserError if the run lacks one, or if none takes the temperature."""
    asked = [layer] if isinstance(layer, str) or layer is None else list(dict.fromkeys(layer))
    layers = [run.check_layer(each) for each in asked]
    if temperature is not None and "sem" not in layers:
        run.check_layer(layers[0], temperature)
    return layers


def _read(
    run: Run, images: str | Path, data_dir: str | Path | None
) -> tuple[Tensor, dict[str, np.ndarray], Skipped]:
    """Images, arrays that describe each of them, and the skipped files."""
    name, size = str(images), run.recipe.actual_decode_size
    if name not in datasets.names() or Path(name).exists():
        batch = datasets.read_all(Path(images), size)
        return batch.images, {"files": np.array(batch.files)}, list(batch.skipped)
    place, decoded = data_dir or run.recipe.data_dir, datasets.decoded_size(name, size)
    sets = [datasets.load(name, split, place, size=decoded) for split in ("train", "test")]
    about = {
        "labels": np.concatenate([part.labels.numpy() for part in sets if part.labels is not None]),
        "classes": np.array(sets[0].classes),
        "split": np.repeat(["train", "test"], [len(part) for part in sets]),
    }
    if sets[0].files:
        about["files"] = np.array([file for part in sets for file in part.files])
    return torch.cat([part.images for part in sets]), about, [row for part in sets for row in part.skipped]


@torch.no_grad()
def _encode(
    run: Run, images: Tensor, layers: list[str], temperature: float | None, network: str, quiet: bool
) -> dict[str, np.ndarray]:
    """Each layer of all images; the encoder sees them once."""
    net: Any = run.network(network)
    parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    done = 0
    with closing(Progress("encoding", len(images), 0, quiet)) as bar:
        for batch in images.split(BATCH):
            features = net.encoder(run.view(batch))
            for layer in layers:
                x = represent(net, features, layer, temperature if layer == "sem" else None).cpu()
                x = x.to(smallest_integer(net.bottleneck.vertices)) if layer == "codes" else x
                parts[layer].append(x)
            done += len(batch)
            bar.update(done, ", ".join(layers))
    return {layer: torch.cat(arrays).numpy() for layer, arrays in parts.items()}
