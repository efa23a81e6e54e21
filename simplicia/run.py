"""A run: the folder that pre-training leaves, and the trained model in it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simplicia import bottlenecks, classifier, pretrained
from simplicia.classifier import Classifier
from simplicia.data import inputs
from simplicia.devices import choose, seeded
from simplicia.errors import UserError, unknown
from simplicia.explain import explain as explain_image
from simplicia.export import export as export_run
from simplicia.methods import Method
from simplicia.methods.base import Network
from simplicia.representation import LAYERS, patch_codes, represent
from simplicia.result import Record, write_json
from simplicia.sem import SimplicialEmbedding, Temperature
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe, read_yaml


class Run:
    """A finished or unfinished run. ``run.encode(images)`` gives its representation of images.

    >>> run = load(run.path)
    >>> run.encode(images).shape
    torch.Size([4, 104])
    """

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

    @property
    def encoder(self) -> nn.Module:
        """The trained encoder: normalised images (N, 3, H, W), as ``run.view`` gives, to (N, features).

        >>> run.encoder(run.view(images)).shape
        torch.Size([4, 128])
        """
        return self.method.online.encoder

    @property
    def sem(self) -> SimplicialEmbedding:
        """The trained simplicial embedding, from the encoder's features to probabilities.

        >>> run.sem(run.encoder(run.view(images))).shape
        torch.Size([4, 104])
        """
        bottleneck: Any = self.method.online.bottleneck
        if not isinstance(bottleneck, SimplicialEmbedding):
            raise UserError(f"{self.path} has no SEM: its bottleneck is {self.recipe.bottleneck!r}")
        return bottleneck

    def to(self, device: str | torch.device) -> "Run":
        """Move the run to a device, as ``nn.Module.to`` does, and return it.

        >>> run.to("cpu").device
        device(type='cpu')
        """
        self.method.to(choose(str(device)))
        self.features.clear()
        return self

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        """The default representation of a batch, on the run's device and without gradients.

        >>> run(images).shape
        torch.Size([4, 104])
        """
        net = self.network()
        return represent(net, net.encoder(self.view(images)), self.check_layer(None))

    def in_64_bits(self) -> "Run":
        """The run, copied to the CPU if it is on an Apple GPU, which has no float64.

        >>> run.in_64_bits() is run  # on a CPU
        True
        """
        if self.device.type != "mps":
            return self
        return Run(self.path, self.recipe, copy.deepcopy(self.method).cpu(), self.state)

    def layers(self) -> tuple[str, ...]:
        """The layers that ``encode`` offers, from the encoder on.

        >>> run.layers()
        ('encoder', 'embedder', 'sem', 'codes')
        """
        available = ("encoder", *bottlenecks.layers(self.recipe.bottleneck))
        return tuple(layer for layer in LAYERS if layer in available)

    def check_layer(self, layer: str | None, temperature: Temperature | None = None) -> str:
        """The given layer, or the default one; a UserError if the run lacks it or it takes no temperature.

        >>> run.check_layer(None)
        'sem'
        """
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
        """The online network, or the target network of methods that have one.

        >>> run.network("target") is run.method.target
        True
        """
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
        images: Any,
        layer: str | None = None,
        temperature: Temperature | None = None,
        network: str = "online",
        batch_size: int = 256,
    ) -> Tensor:
        """Representations of images, (N, features) on the CPU; codes are (N, simplices) integers.

        ``images``: what ``pretrain`` takes as ``data``, except names and folders; a DataLoader; or a single
        image. The encoder sees their ``view``. ``layer`` is one of ``run.layers()``, by default the
        bottleneck's output: "sem" for a run with SEM; "tokens" is the codes of a vision transformer's
        patches, (N, patches, simplices). ``temperature`` is for "sem", by default the run's own.

        >>> run.encode(images, "codes").shape  # a code for each of 8 simplices
        torch.Size([4, 8])
        """
        is_tokens = layer == "tokens"
        layer = self.check_layer("codes" if is_tokens else layer, temperature)
        if isinstance(temperature, np.number):
            temperature = temperature.item()
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        net = self.network(network)
        batches = inputs.batches(images, self.recipe.actual_decode_size, batch_size)
        if is_tokens:
            return torch.cat([patch_codes(net, self.view(batch)).cpu() for batch in batches])
        features = (net.encoder(self.view(batch)) for batch in batches)
        return torch.cat([represent(net, x, layer, temperature).cpu() for x in features])

    export = export_run
    save_pretrained = pretrained.save_pretrained
    push_to_hub = pretrained.push_to_hub
    explain = explain_image

    def view(self, images: Any) -> Tensor:
        """Images as the encoder sees them: centre squares, normalised. ``images`` are those of ``encode``.

        A run with a larger ``decode_size`` sees the middle of these.

        >>> run.view(images).shape
        torch.Size([4, 3, 16, 16])
        """
        recipe, state = self.recipe, self.state
        sizes = recipe.actual_decode_size, recipe.image_size
        return inputs.eval_views(images, *sizes, state["mean"], state["std"], self.device)

    def classifier(self, name: str | None = None) -> Classifier:
        """A classifier that ``simplicia probe``, ``finetune`` or ``semi`` saved with the run.

        ``name`` is that of its file in ``results``, such as "probe-sem"; by default the newest one.

        >>> classifier = run.classifier("probe-encoder")
        >>> classifier.predict(images).shape
        (4,)
        """
        return classifier.of_run(self, name)

    def write_result(self, name: str, result: Record | dict[str, Any], path: Path | None = None) -> Path:
        """Write a measurement as JSON, by default to ``results/name.json`` of the run.

        >>> run.write_result("mine", {"protocol": "mine", "accuracy": 50.0}).name
        'mine.json'
        """
        path = Path(path or self.path / "results" / f"{name}.json")
        write_json(path, result.to_json() if isinstance(result, Record) else result)
        return path


def load(path: str | Path, device: str = "auto", encoder: nn.Module | None = None) -> Run:
    """A run from its folder, strictly: a key that does not match is an error.

    ``encoder``: for a run that was trained with an ``nn.Module``, one of the same class; it gets the weights.

    >>> load(run.path).finished
    True
    """
    if pretrained.is_model(Path(path)):
        return from_pretrained(path, device)
    path, newest = Path(path), checkpoint.newest_of(path)
    recipe = read_yaml(path / "recipe.yaml")
    tensors, state = checkpoint.read_model(newest)
    with seeded(0, torch.device("cpu")):  # initial weights, which are replaced
        method = recipe.build(encoder)
    checkpoint.load_into(method, tensors, newest)
    return Run(path, recipe, method.to(choose(device)), state)


def from_pretrained(folder_or_name: str | Path, device: str = "auto") -> Run:
    """A model that ``save_pretrained`` wrote, from its folder or by its name on the Hugging Face hub.

    It encodes, exports and can be measured like the run it came from. It has no projector, and no target
    network.

    >>> model = from_pretrained(run.save_pretrained("model"))
    >>> torch.equal(model.encode(images, "codes"), run.encode(images, "codes"))
    True
    """
    path = pretrained.find(folder_or_name)
    recipe, method, state = pretrained.read(path)
    return Run(path, recipe, method.to(choose(device)), state)


def load_classifier(path: str | Path, device: str = "auto", encoder: nn.Module | None = None) -> Classifier:
    """A classifier from its file, or the newest of a run. A probe's file loads its run's encoder with it.

    ``encoder`` is as for ``load``.

    >>> load_classifier(run.path / "results/probe-encoder.safetensors").classes_[:2]
    array(['triangle', 'square'], dtype='<U8')
    """
    path = Path(path)
    if (path / "recipe.yaml").is_file():
        return load(path, device, encoder).classifier()
    about, tensors = classifier.read(path)
    if about.recipe is not None:
        return classifier.build(path, about, tensors, encoder).to(choose(device))
    folder = path.resolve().parent.parent
    if not (folder / "recipe.yaml").is_file():
        raise UserError(
            f"{path} holds no encoder, and is not in the results of its run, {about.run!r}; save it with a "
            "path of your own (--classifier), which writes everything"
        )
    return classifier.attach(load(folder, device, encoder), path, about, tensors)
