"""A trained run as one file for others, by the file's extension.

``.safetensors``  the encoder's weights, named as in torchvision or, of timm's models, in timm
``.pt2``          everything from pixels to a layer as a program of torch.export
``.onnx``         the same for ONNX, which other languages and runtimes read

Programs take RGB images (N, 3, size, size) from 0 to 1, for any N, and normalise them as the run does.
"""

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simplicia.encoders import NOT_THEIRS
from simplicia.errors import UserError, spoken
from simplicia.files import write_file
from simplicia.progress import say
from simplicia.provenance import commit
from simplicia.representation import represent
from simplicia.tensors import to_bytes


class Exported(nn.Module):
    """A run from pixels to a layer, apart from the rest of it."""

    mean: Tensor
    std: Tensor

    def __init__(self, run: Any, layer: str, temperature: float | None = None, network: str = "online"):
        super().__init__()
        net = run.network(network)
        self.layer, self.temperature = layer, temperature
        self.encoder = copy.deepcopy(net.encoder)
        self.bottleneck: Any = None if layer == "encoder" else copy.deepcopy(net.bottleneck)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(run.state[name])[:, None, None])
        self.cpu().eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(torch.float32)  # an exported program insists on the type it was traced with
        features = self.encoder((images - self.mean) / self.std)
        return represent(self, features, self.layer, self.temperature)  # type: ignore[arg-type]


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
    model = Exported(run, layer, None if temperature is None else float(temperature), network)
    return write_file(path, WRITERS[path.suffix](model, about(run, model, network)), "the export")


def about(run: Any, model: Exported, network: str) -> dict[str, Any]:
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


def _weights(model: Exported, said: dict[str, Any]) -> bytes:
    tensors = {name.removeprefix("model."): value for name, value in model.encoder.state_dict().items()}
    return to_bytes(tensors, said)


def _program(model: Exported, said: dict[str, Any]) -> bytes:
    content = io.BytesIO()  # given a file, torch ends the process where the disk is full
    torch.export.save(_traced(model, said), content, extra_files={"simplicia.json": json.dumps(said)})
    return content.getvalue()


def _onnx(model: Exported, said: dict[str, Any]) -> bytes:
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise UserError(
            "ONNX files need onnx and onnxscript, which are not installed: pip install 'simplicia[onnx]'"
        ) from None
    traced, inputs, outputs = _traced(model, said), ["images"], [model.layer]
    program: Any = torch.onnx.export(
        traced, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
    )
    program.model.metadata_props["simplicia"] = json.dumps(said)
    return program.model_proto.SerializeToString()


def _traced(model: Exported, said: dict[str, Any]) -> torch.export.ExportedProgram:
    """The model's program for any number of images."""
    images = torch.zeros(2, 3, said["image_size"], said["image_size"])
    return torch.export.export(
        model, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}}
    )


WRITERS: dict[str, Callable[[Exported, dict[str, Any]], bytes]] = {
    ".safetensors": _weights,
    ".pt2": _program,
    ".onnx": _onnx,
}
PROGRAMS = (".pt2", ".onnx")  # which go from pixels to an output
