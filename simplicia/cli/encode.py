"""simplicia encode, export: representations of images, and models for other software."""

import sys
from pathlib import Path
from typing import Annotated

from simplicia.cli.options import DataDir, Device, Layer, Network, Quiet, RunFolder, Temperature
from simplicia.cli.verbs import verb


@verb("encode RUN IMAGES", "encode images as features or codes: simplicia encode RUN images/ --out codes.npz")
def encode(
    run: RunFolder,
    images: Annotated[str, "folder of images, an image, or a data set"],
    *,
    out: Annotated[str, "file to write, .npz"],
    layer: Annotated[
        tuple[str, ...] | None,
        "encoder, embedder, sem, codes, …, or several (default: sem if the run has it)",
    ] = None,
    temperature: Temperature = None,
    network: Network = "online",
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the representations of images to an .npz file.

    The file also has the images' file names or, for a named data set, labels, classes and split.
    """
    from simplicia.evaluate.encode import encode
    from simplicia.run import load

    loaded, path = load(run, device), Path(out)
    count, layers, skipped = encode(loaded, images, path, layer, temperature, network, data_dir, quiet)
    print(f"{count} images, layer {', '.join(layers)}, written to {path}")
    for name, reason in skipped[:5]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > 5:
        print(f"… and {len(skipped) - 5} more", file=sys.stderr)


@verb("export RUN FILE", "export the encoder, or everything up to a layer: simplicia export RUN model.onnx")
def export(
    run: RunFolder,
    file: Annotated[str, "file to write: .safetensors, .pt2 or .onnx"],
    *,
    layer: Layer = None,
    temperature: Temperature = None,
    network: Network = "online",
) -> None:
    """Export the encoder's weights (.safetensors), or the model from pixels to a layer (.pt2, .onnx)."""
    from simplicia.run import load

    loaded = load(run, "cpu")
    path, size = loaded.export(file, layer, temperature, network), loaded.recipe.image_size
    what = f"images (N, 3, {size}, {size}) from 0 to 1 to layer {loaded.check_layer(layer)}"
    if path.suffix == ".safetensors":
        what = f"the weights of {loaded.recipe.encoder}"
    print(f"{what}, written to {path}")
