"""A run: the folder that pre-training leaves, and the trained model in it."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia import bottlenecks, pretrained
from simplicia.data.augmentation import center_crop, eval_view
from simplicia.devices import choose, seeded
from simplicia.errors import UserError, unknown
from simplicia.explain import explain as explain_image
from simplicia.export import export as export_run
from simplicia.methods import Method
from simplicia.methods.base import Network
from simplicia.representation import patch_codes, represent
from simplicia.result import Record, write_json
from simplicia.sem import Temperature
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe, read_yaml

LAYERS = ("encoder", "embedder", "sem", "quantised", "bottleneck", "codes")  # in the order of computation


class Run:
    """A finished or unfinished run. ``run.encode(images)`` gives its representation of images."""

    def __init__(self, path: Path, recipe: Recipe, method: Method, state: dict[str, Any]):
        self.path, self.recipe, self.method, self.state = path, recipe, method.eval(), state
        self.features: dict[tuple[int, str], tuple[Any, Tensor, Tensor]] = {}  # cached by evaluations

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"features": {}}  # which hold images

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.recipe.name}, step {self.step} of {self.state['total_steps']})"

    @property
    def step(self) -> int:
        return self.state["step"]

    @property
    def finished(self) -> bool:
        return self.step == self.state["total_steps"]

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    def in_64_bits(self) -> "Run":
        """The run, copied to the CPU if it is on an Apple GPU, which has no float64."""
        if self.device.type != "mps":
            return self
        return Run(self.path, self.recipe, copy.deepcopy(self.method).cpu(), self.state)

    def layers(self) -> tuple[str, ...]:
        """The layers that ``encode`` offers, from the encoder on."""
        available = ("encoder", *bottlenecks.layers(self.recipe.bottleneck))
        return tuple(layer for layer in LAYERS if layer in available)

    def check_layer(self, layer: str | None, temperature: Temperature | None = None) -> str:
        """The given layer, or the default one; a UserError if the run lacks it or it takes no temperature."""
        layers = self.layers()
        if layer is None:
            layer = next(iter(bottlenecks.layers(self.recipe.bottleneck)), "encoder")
        if layer not in LAYERS:
            raise unknown("layer", layer, layers)
        if layer not in layers:
            raise UserError(
                f"{self.path} has no layer {layer!r}: its bottleneck is {self.recipe.bottleneck!r}; "
                f"it has {', '.join(map(repr, layers))}"
            )
        if not isinstance(temperature, int | float | np.number | Tensor | None):
            raise UserError(f"temperature is {temperature!r}; it must be a number")
        if temperature is not None and layer != "sem" and not (layer == "codes" and temperature == 0):
            raise UserError(f"temperature is {temperature}, but layer {layer!r} takes none; layer 'sem' does")
        return layer

    def network(self, which: str = "online") -> Network:
        """The online network, or the target network of methods that have one."""
        if which == "online":
            return self.method.online
        if which != "target":
            raise unknown("network", which, ["online", "target"])
        if not hasattr(self.method, "target"):
            raise UserError(
                f"{self.path} has no target network: method {self.recipe.method!r} trains without one"
            )
        return self.method.target  # type: ignore[return-value]

    @torch.no_grad()
    def encode(
        self,
        images: Tensor | Iterable[Any],
        layer: str | None = None,
        temperature: Temperature | None = None,
        network: str = "online",
        batch_size: int = 256,
    ) -> Tensor:
        """Representations of images, (N, features) on the CPU; codes are (N, simplices) integers.

        ``images``: tensor (N, 3, H, W), uint8 or from 0 to 1, or a list of paths or PIL images; the encoder
        sees their ``view``. ``layer`` is one of ``run.layers()``, by default the bottleneck's output: "sem"
        for a run with SEM. ``temperature`` is for "sem", by default the run's own. Layer "tokens" is the
        codes of a vision transformer's patches, (N, patches, simplices).
        """
        is_tokens = layer == "tokens"
        layer = self.check_layer("codes" if is_tokens else layer, temperature)
        if isinstance(temperature, np.number):
            temperature = temperature.item()
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        net = self.network(network)
        batches = as_images(images, self.recipe.actual_decode_size).split(batch_size)
        if is_tokens:
            return torch.cat([patch_codes(net, self.view(batch)).cpu() for batch in batches])
        features = (net.encoder(self.view(batch)) for batch in batches)
        return torch.cat([represent(net, x, layer, temperature).cpu() for x in features])

    export = export_run
    save_pretrained = pretrained.save_pretrained
    push_to_hub = pretrained.push_to_hub
    explain = explain_image

    def view(self, images: Tensor | Iterable[Any]) -> Tensor:
        """Images as the encoder sees them: centre squares, normalised.

        A run with a larger ``decode_size`` sees the middle of these.
        """
        size = self.recipe.actual_decode_size
        square = center_crop(as_images(images, size).to(self.device), size)
        return eval_view(square, self.recipe.image_size, self.state["mean"], self.state["std"])

    def write_result(self, name: str, result: Record | dict[str, Any], path: Path | None = None) -> Path:
        """Write a measurement as JSON, by default to ``results/name.json`` of the run."""
        path = Path(path or self.path / "results" / f"{name}.json")
        write_json(path, result.to_json() if isinstance(result, Record) else result)
        return path


def load(path: str | Path, device: str = "auto") -> Run:
    """A run from its folder, strictly: a key that does not match is an error."""
    if pretrained.is_model(Path(path)):
        return from_pretrained(path, device)
    path, newest = Path(path), checkpoint.newest_of(path)
    recipe = read_yaml(path / "recipe.yaml")
    tensors, state = checkpoint.read(newest)
    for key in ("total_steps", "mean", "std", "seconds", "loss"):
        if key not in state:
            raise UserError(f"checkpoint {newest} is damaged (state.json lacks {key!r})")
    with seeded(0, torch.device("cpu")):  # initial weights, which are replaced
        method = recipe.build()
    checkpoint.load_into(method, checkpoint.model_tensors(newest, tensors, state), newest)
    return Run(path, recipe, method.to(choose(device)), state)


def from_pretrained(folder_or_name: str | Path, device: str = "auto") -> Run:
    """A model that ``save_pretrained`` wrote, from its folder or by its name on the Hugging Face hub.

    It encodes, exports and can be measured like the run it came from. It has no projector, and no target
    network.
    """
    path = pretrained.find(folder_or_name)
    recipe, method, state = pretrained.read(path)
    return Run(path, recipe, method.to(choose(device)), state)


def as_images(images: Tensor | Iterable[Any], size: int) -> Tensor:
    """Pixels, paths or PIL images as one uint8 tensor (N, 3, H, W); files are decoded at ``size``."""
    if isinstance(images, np.ndarray):  # of paths or PIL images, or of pixels
        images = images.tolist() if images.dtype.kind in "OUS" else _tensor(images)
    if isinstance(images, str | Path) or hasattr(images, "convert"):
        images = [images]
    if not isinstance(images, Iterable):
        raise UserError(f"images are a {type(images).__name__}; give a tensor, paths or PIL images")
    if not isinstance(images, Tensor):
        images = list(images)
        if not images:
            raise UserError("there are no images to encode")
        are_pixels = all(isinstance(image, Tensor | np.ndarray) for image in images)
        shapes = {tuple(image.shape) for image in images} if are_pixels else set()
        if len(shapes) > 1:
            given = f"images are of several shapes, such as {sorted(shapes)[:2]}"
            raise UserError(f"{given}; give them one by one")
        images = torch.stack([_tensor(image) if are_pixels else _read(image, size) for image in images])
    batch = images[None] if images.dim() == 3 else images
    if batch.is_floating_point() and batch.numel() and batch.min() >= 0 and batch.max() <= 1:
        batch = (batch * 255).round().to(torch.uint8)
    if batch.dim() != 4 or batch.shape[1] != 3 or batch.dtype != torch.uint8:
        given = f"{tuple(images.shape)} {images.dtype}".replace("torch.", "")
        raise UserError(f"images are {given}; they must be (N, 3, H, W), uint8 or from 0 to 1")
    return batch


def _tensor(image: Any) -> Tensor:
    """A tensor or an array; torch takes no array with negative strides, nor a read-only one."""
    return torch.from_numpy(image.copy()) if isinstance(image, np.ndarray) else image


def _read(image: Any, size: int) -> Tensor:
    """A path or a PIL image as (3, size, size) uint8."""
    from simplicia.data.image_files import decode, to_square

    opened = hasattr(image, "convert")
    if not opened and not isinstance(image, str | Path):
        raise UserError(f"an image is a {type(image).__name__}; give paths, PIL images or tensors, all alike")
    if not opened and Path(image).is_dir():
        raise UserError(f"{str(image)!r} is a folder; give its files, or use simplicia encode")
    try:
        square, _ = to_square(image, size) if opened else decode(Path(image), size)
    except Exception as error:  # Pillow raises nearly every exception there is
        raise UserError(f"{image} cannot be read as an image: {error}") from error
    return torch.tensor(square).permute(2, 0, 1)
