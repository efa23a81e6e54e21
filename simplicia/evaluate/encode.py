"""Images in, arrays out: representations of a folder with the names of its files."""

from pathlib import Path
from typing import Any

import numpy as np

from simplicia.data import folder
from simplicia.errors import UserError
from simplicia.files import whole
from simplicia.run import Run


def encode(
    run: Run,
    images: str | Path,
    out: str | Path,
    layer: str | None = None,
    temperature: float | None = None,
    network: str = "online",
) -> tuple[int, list[tuple[str, str]], Path]:
    """Write ``{layer: array, "files": names}`` as .npz; returns the count, what was skipped, and the path.

    Codes are stored in the smallest integers that hold them.
    """
    path = Path(out)
    if path.suffix != ".npz":
        raise UserError(f"--out is {str(out)!r}; it must end in .npz")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {str(path.parent)!r} to write {path.name} into")
    if not str(images):
        raise UserError("no folder of images is named; give one ('.' is the current one)")
    layer = run.check_layer(layer, temperature)
    batch, files, skipped = folder.read_all(Path(images), run.recipe.stored)
    values = run.encode(batch, layer, temperature, network).numpy()
    if layer == "codes":
        bottleneck: Any = run.network(network).bottleneck
        values = values.astype(np.uint8 if bottleneck.vertices <= 256 else np.int32)
    with whole(path) as temporary, temporary.open("wb") as file:
        # older versions of numpy would store their options as arrays
        np.savez_compressed(file, **{layer: values, "files": np.array(files)})  # type: ignore[arg-type]
    return len(batch), skipped, path
