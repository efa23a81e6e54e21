"""simplicia encode, export: representations of images, and models for other software."""

from pathlib import Path
from typing import Annotated

import simplicia
from simplicia.cli.tables import echo
from simplicia.cli.verbs import LAYERS, DataDir, Device, Layer, Network, Quiet, RunFolder, Temperature, verb


@verb("encode RUN IMAGES")
def encode(
    run: RunFolder,
    images: Annotated[str, "folder of images, an image, or a data set"],
    *,
    out: Annotated[str, "file to write, .npz or .parquet"],
    layer: Annotated[tuple[str, ...] | None, f"one or several of {LAYERS}"] = None,
    temperature: Temperature = None,
    network: Network = "online",
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Encode images as features or codes: simplicia encode RUN images/ --out codes.npz.

    The file also has the images' file names or, for a named data set, labels, classes and split.
    """
    from simplicia.evaluate.encode import encode
    from simplicia.evaluate.features import report_skipped

    loaded, path = simplicia.load(run, device), Path(out)
    count, layers, skipped = encode(loaded, images, path, layer, temperature, network, data_dir, quiet)
    echo(f"{count} images, layer {', '.join(layers)}, written to {path}")
    report_skipped(images, skipped)


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
    loaded = simplicia.load(run, "cpu")
    path, size = loaded.export(file, layer, temperature, network), loaded.recipe.image_size
    what = f"images (N, 3, {size}, {size}) from 0 to 1 to layer {loaded.check_layer(layer)}"
    if path.suffix == ".safetensors":
        what = f"the weights of {loaded.recipe.encoder}"
    echo(f"{what}, written to {path}")
