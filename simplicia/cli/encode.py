"""simplicia encode, export: representations of images, and models for other software."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from simplicia.cli.tables import echo, load_run
from simplicia.cli.verbs import (
    LAYERS,
    DataDir,
    Device,
    Layer,
    Network,
    OutputFile,
    Quiet,
    RunFolder,
    Temperature,
    verb,
)
from simplicia.progress import plural


@verb("encode RUN IMAGES")
def encode(
    run: RunFolder,
    images: Annotated[str, "folder of images, an image, or a data set"],
    *,
    out: Annotated[
        OutputFile | None, "file to write: .npz, .csv or .parquet (default: IMAGES-LAYER.npz here)"
    ] = None,
    layer: Annotated[tuple[str, ...] | None, f"one or several of {LAYERS}"] = None,
    temperature: Temperature = None,
    network: Network = "online",
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Encode images as features or codes: simplicia encode RUN images/ --out codes.npz.

    The file also has the images' file names, labels, classes and splits, as far as they have them.
    """
    from simplicia.evaluate.encode import encode
    from simplicia.evaluate.features import report_skipped

    loaded = load_run(run, device)
    path = out or _free_name(images, layer or (loaded.check_layer(None),))
    count, layers, skipped = encode(loaded, images, path, layer, temperature, network, data_dir, quiet)
    echo(f"{plural(count, 'image')}, layer {', '.join(layers)}, written to {path}")
    report_skipped(images, skipped)


def _free_name(images: str, layers: Iterable[str]) -> Path:
    """A name in the current folder that no file has."""
    folder = Path(images)
    name = folder.stem if folder.is_file() else folder.resolve().name if folder.is_dir() else images
    stem = "-".join([name or "images", *dict.fromkeys(layers)]).replace("/", "-")
    numbers = itertools.count(2)
    path = Path(f"{stem}.npz")
    while path.exists() or path.is_symlink():
        path = Path(f"{stem}-{next(numbers)}.npz")
    return path


@verb("export RUN FILE")
def export(
    run: RunFolder,
    file: Annotated[str, "file to write: .safetensors, .pt2 or .onnx"],
    *,
    layer: Layer = None,
    temperature: Temperature = None,
    network: Network = "online",
) -> None:
    """Export the encoder, or everything up to a layer: simplicia export RUN model.onnx.

    .safetensors has the encoder's weights; .pt2 and .onnx have the model from pixels to a layer.
    """
    loaded = load_run(run, "cpu")
    path, size = loaded.export(file, layer, temperature, network), loaded.recipe.image_size
    what = f"images (N, 3, {size}, {size}) from 0 to 1 to layer {loaded.check_layer(layer)}"
    if path.suffix == ".safetensors":
        what = f"the weights of {loaded.recipe.encoder}"
    echo(f"{what}, written to {path}")
