"""A trained run as one file for others, by the file's extension.

``.safetensors``  the encoder's weights, named as in torchvision or, of timm's models, in timm
``.pt2``          everything from pixels to a layer as a program of torch.export
``.onnx``         the same for ONNX, which other languages and runtimes read

Programs take RGB images (N, 3, size, size) from 0 to 1, for any N, and normalise them as the run does.
"""

import copy
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.encoders import NOT_THEIRS
from simplicia.errors import UserError, spoken
from simplicia.files import write_file
from simplicia.methods.base import Network
from simplicia.progress import say
from simplicia.provenance import commit
from simplicia.representation import represent
from simplicia.sem import Temperature
from simplicia.tensors import to_bytes


class Program(nn.Module):
    """From pixels in 0..1 to the output of a network that sees normalised images, in a copy of its own."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, layer: str, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.network, self.layer = copy.deepcopy(network), layer
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None])
        self.cpu().eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(torch.float32)  # an exported program insists on the type it was traced with
        return self.network((images - self.mean) / self.std)


class Layer(nn.Module):
    """Normalised images to one layer of a network."""

    def __init__(self, network: Network, layer: str, temperature: Temperature | None):
        super().__init__()
        self.encoder, self.layer, self.temperature = network.encoder, layer, temperature
        self.bottleneck: Any = None if layer == "encoder" else network.bottleneck

    def forward(self, images: Tensor) -> Tensor:
        return represent(self, self.encoder(images), self.layer, self.temperature)  # type: ignore[arg-type]


def export(
    run: Any,
    path: str | Path,
    layer: str | None = None,
    temperature: float | None = None,
    network: str = "online",
) -> Path:
    """Write the run's encoder, or all that leads to a layer, to a file; its extension says how.

    ``layer`` and ``temperature`` are as in ``run.encode``; the weights alone are the encoder's.

    >>> run.export("codes.pt2", layer="codes").name
    'codes.pt2'
    """
    path = Path(path)
    if path.suffix not in WRITERS:
        raise UserError(f"{path} ends in {path.suffix!r}; an export ends in {', '.join(WRITERS)}")
    if path.suffix == ".safetensors":
        layer = layer or "encoder"
        if run.recipe.encoder == "tiny":
            say([f"{path.name} has the weights of encoder tiny{spoken(NOT_THEIRS)}"])
        if layer != "encoder":
            raise UserError(
                f"{path.name} can hold the encoder's weights only; layer {layer!r} takes .pt2 or .onnx"
            )
    layer = run.check_layer(layer, temperature)
    model = Layer(run.network(network), layer, None if temperature is None else float(temperature))
    program = Program(model, layer, run.state["mean"], run.state["std"])
    return write_file(path, WRITERS[path.suffix](program, about(run, model, network)), "the export")


def about(run: Any, model: Layer, network: str) -> dict[str, Any]:
    """What a file says about itself."""
    recipe, bottleneck = run.recipe, model.bottleneck
    temperature = getattr(bottleneck, "temperature", None) if model.temperature is None else model.temperature
    return {
        "run": recipe.name,
        "step": run.step,
        "total_steps": run.state["total_steps"],
        "encoder": recipe.encoder,
        "stem": recipe.stem,
        "network": network,
        "layer": model.layer,
        "simplices": getattr(bottleneck, "simplices", None),
        "vertices": getattr(bottleneck, "vertices", None),
        "temperature": float(temperature) if model.layer == "sem" and temperature is not None else None,
        "image_size": recipe.image_size,
        "stored_size": recipe.actual_decode_size,
        "mean": list(run.state["mean"]),
        "std": list(run.state["std"]),
        "commit": commit(),
    }


def _weights(program: Program, said: dict[str, Any]) -> bytes:
    encoder: Any = program.network.encoder
    return to_bytes({name.removeprefix("model."): x for name, x in encoder.state_dict().items()}, said)


def _pt2(program: Program, said: dict[str, Any]) -> bytes:
    content = io.BytesIO()  # given a file, torch ends the process where the disk is full
    torch.export.save(_traced(program, said), content, extra_files={"simplicia.json": json.dumps(said)})
    return content.getvalue()


def _onnx(program: Program, said: dict[str, Any]) -> bytes:
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise UserError(
            "ONNX files need onnx and onnxscript, which are not installed: pip install 'simplicia[onnx]'"
        ) from None
    names: Any = {"input_names": ["images"], "output_names": [program.layer]}
    written: Any = torch.onnx.export(_traced(program, said), **names, dynamo=True, verbose=False)
    written.model.metadata_props["simplicia"] = json.dumps(said)
    return written.model_proto.SerializeToString()


def _traced(program: Program, said: dict[str, Any]) -> torch.export.ExportedProgram:
    """The program traced for any number of images."""
    images = torch.zeros(2, 3, said["image_size"], said["image_size"])
    return torch.export.export(
        program, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}}
    )


WRITERS: dict[str, Callable[[Program, dict[str, Any]], bytes]] = {
    ".safetensors": _weights,
    ".pt2": _pt2,
    ".onnx": _onnx,
}
PROGRAMS = (".pt2", ".onnx")  # which go from pixels to an output
