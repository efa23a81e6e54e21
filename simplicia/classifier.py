"""Image classifiers: an encoder, one of its layers and a linear classifier on it, in one object and one file.

A file is safetensors with JSON in its header. A linear probe in the ``results`` of a run holds what was
trained and takes the encoder from the run; a fine-tuned classifier, and any file elsewhere, holds everything.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia import encoders
from simplicia.data import inputs
from simplicia.devices import choose, seeded
from simplicia.errors import UserError, reason
from simplicia.export import PROGRAMS, WRITERS, Program
from simplicia.files import write_file
from simplicia.provenance import commit
from simplicia.representation import LAYERS, represent
from simplicia.result import Record
from simplicia.settings import as_dict, from_dict
from simplicia.tensors import to_bytes
from simplicia.train import checkpoint
from simplicia.train.recipe import Recipe
from simplicia.version import __version__

KEY = "simplicia-classifier"  # of the JSON in a file's header
SUFFIX = ".safetensors"


@dataclass
class About(Record):
    """What a file says about its classifier."""

    kind: str  # probe, finetune or semi
    classes: list[str]
    layer: str
    network: str
    run: str  # the name of its recipe
    run_step: int
    mean: list[float]
    std: list[float]
    decode_size: int
    image_size: int
    temperature: float | None = None
    run_id: str | None = None
    accuracy: float | None = None  # percent, of the test images
    recipe: dict[str, Any] | None = None  # in files that hold everything
    simplicia: str | None = None
    commit: str | None = None

    def check(self) -> None:
        """Raise a ValueError for values that no classifier has."""
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise ValueError("its classes are fewer than two, or not distinct")
        "".join(self.classes).encode(errors="surrogateescape")  # a ValueError: no file can hold them
        if self.layer not in LAYERS:
            raise ValueError(f"its layer is {self.layer!r}")
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise ValueError("its mean and std are not three numbers each, those of std above 0")
        if not 2 <= self.image_size <= 8192 or not 2 <= self.decode_size <= 8192:
            raise ValueError(f"its images have {self.image_size} and {self.decode_size} pixels")


class Scorer(nn.Module):
    """Normalised images to scores (N, classes): an encoder, a layer, and a linear classifier."""

    def __init__(
        self,
        encoder: nn.Module,
        bottleneck: Any,
        layer: str,
        temperature: float | None,
        weight: Tensor,
        bias: Tensor,
    ):
        super().__init__()
        self.encoder, self.layer, self.temperature = encoder, layer, temperature
        self.bottleneck = None if layer == "encoder" else bottleneck
        self.weight, self.bias = (nn.Parameter(x.detach().float().clone(), False) for x in (weight, bias))

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images).float()
        if self.layer == "codes":
            net: Any = self.bottleneck
            x = F.one_hot(represent(self, features, "codes").long(), net.vertices).flatten(1).float()  # type: ignore[arg-type]
        else:
            x = represent(self, features, self.layer, self.temperature)  # type: ignore[arg-type]
        return x @ self.weight + self.bias


class Classifier:
    """Classifies images, with scikit-learn's methods; ``classes_`` are the names of the classes.

    ``evaluate.probe.fit(run, images).classifier()`` makes one, ``run.classifier()`` and
    ``simplicia.load_classifier(path)`` load one. Images are those that ``run.encode`` takes.

    >>> classifier = run.classifier("probe-encoder")
    >>> classifier.predict_proba(images).shape
    (4, 20)
    """

    def __init__(self, model: Scorer, about: About, run: Any = None):
        self.model, self.about, self.run = model.eval(), about, run
        self.classes_ = np.array(about.classes)

    def __repr__(self) -> str:
        return f"Classifier({self.about.kind} on {self.about.layer}, {len(self.classes_)} classes)"

    @property
    def device(self) -> torch.device:
        return next(self.model.encoder.parameters(), self.model.weight).device

    def to(self, device: str | torch.device) -> "Classifier":
        """Move the classifier to a device, and return it. A probe's run moves with it.

        >>> run.classifier().to("cpu").device
        device(type='cpu')
        """
        self.model.to(choose(str(device)))
        return self

    @torch.no_grad()
    def predict_proba(self, images: Any, batch_size: int = 256) -> np.ndarray:
        """The probability of each class, (N, classes).

        >>> bool((run.classifier().predict_proba(images).sum(1) - 1 < 1e-5).all())
        True
        """
        self.model.to(self.device)  # the run may have moved
        about, device = self.about, self.device
        sizes, statistics = (about.decode_size, about.image_size), (about.mean, about.std)
        batches = inputs.batches(images, about.decode_size, batch_size)
        scores = (self.model(inputs.eval_views(x, *sizes, *statistics, device)) for x in batches)
        return torch.cat([x.softmax(1).cpu() for x in scores]).numpy()

    def predict(self, images: Any, batch_size: int = 256) -> np.ndarray:
        """The name of each image's class.

        >>> len(run.classifier().predict(images))
        4
        """
        return self.classes_[self.predict_proba(images, batch_size).argmax(1)]

    def score(self, images: Any, labels: Any, batch_size: int = 256) -> float:
        """The share of images that get their label, a class's name or number.

        >>> classifier = run.classifier()
        >>> classifier.score(images, classifier.predict(images))
        1.0
        """
        expected = np.asarray(labels)
        predicted = self.predict(images, batch_size)
        if expected.shape != predicted.shape:
            raise UserError(f"labels have the shape {expected.shape}; {len(predicted)} images need one each")
        if expected.dtype.kind in "iu":
            if len(expected) and not 0 <= expected.min() <= expected.max() < len(self.classes_):
                raise UserError(
                    f"labels are not from 0 to {len(self.classes_) - 1}, the numbers of the classes"
                )
            expected = self.classes_[expected]
        return float((predicted == expected).mean())

    def save(self, path: str | Path | None = None) -> Path:
        """Write the classifier; by default to the results of its run, without what the run holds anyway.

        >>> run.classifier("probe-encoder").save().name
        'probe-encoder.safetensors'
        """
        if path is None and self.run is None:
            raise UserError("path is None; a classifier without its run needs the path of a file")
        results = None if self.run is None else self.run.path / "results"
        path = Path(path or results / f"{self.about.kind}-{self.about.layer}{SUFFIX}")  # type: ignore[operator]
        if path.suffix != SUFFIX:
            raise UserError(f"{path} ends in {path.suffix!r}; a classifier ends in {SUFFIX}")
        in_run = results is not None and path.resolve().parent == results.resolve()
        about, tensors = self.about, dict(self.model.state_dict())
        if self.about.kind == "probe" and in_run:
            about, tensors = about.replace(recipe=None), {name: tensors[name] for name in ("weight", "bias")}
        return write_file(path, to_bytes(tensors, about.to_json(), KEY), "the classifier")

    def export(self, path: str | Path) -> Path:
        """Write the encoder and the classifier as one program, .pt2 or .onnx, from pixels to probabilities.

        It takes RGB images (N, 3, size, size) from 0 to 1, as ``run.export`` says.

        >>> run.classifier("probe-encoder").export("classifier.pt2").suffix
        '.pt2'
        """
        path = Path(path)
        if path.suffix not in PROGRAMS:
            raise UserError(
                f"{path} ends in {path.suffix!r}; a classifier's export ends in {', '.join(PROGRAMS)}"
            )
        network = nn.Sequential(self.model, nn.Softmax(1))
        program = Program(network, "probabilities", self.about.mean, self.about.std)
        said = self.about.replace(recipe=None).to_json()
        return write_file(path, WRITERS[path.suffix](program, said), "the export")


def make(
    run: Any,
    kind: str,
    model: Scorer,
    classes: Sequence[str],
    network: str,
    accuracy: float | None = None,
) -> Classifier:
    """A classifier trained on a run."""
    recipe, state = run.recipe, run.state
    about = About(
        kind=kind,
        classes=list(classes),
        layer=model.layer,
        network=network,
        run=recipe.name,
        run_step=run.step,
        mean=list(state["mean"]),
        std=list(state["std"]),
        decode_size=recipe.actual_decode_size,
        image_size=recipe.image_size,
        temperature=model.temperature,
        run_id=state.get("id"),
        accuracy=accuracy,
        recipe=as_dict(recipe),
        simplicia=__version__,
        commit=commit(),
    )
    return Classifier(model, about, run)


def read(path: Path) -> tuple[About, dict[str, Tensor]]:
    """What a file says about its classifier, and its tensors; a UserError unless it is one."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UserError(
            f"there is no classifier {str(path)!r}; simplicia probe RUN saves one in the run's results"
        )
    try:
        with safe_open(path, "pt") as file:
            said = (file.metadata() or {}).get(KEY)
            if said is None:
                raise ValueError("it is another file of tensors")
            about = About.from_json(json.loads(said))
            about.check()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        shape = tuple(tensors["weight"].shape) if "weight" in tensors else ()
        if (
            len(shape) != 2
            or shape[1] != len(about.classes)
            or tensors.get("bias", torch.empty(0)).shape != shape[1:]
        ):
            raise ValueError(f"its weight is {shape}, and it has {len(about.classes)} classes")
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as a classifier: {reason(error)}") from error
    return about, tensors


def attach(run: Any, path: Path, about: About, tensors: dict[str, Tensor]) -> Classifier:
    """A probe with the encoder of its run."""
    known = run.state.get("id")
    if about.run_id != known and None not in (about.run_id, known):
        raise UserError(f"{path} was trained on another run of {about.run!r}, not on {run.path}")
    if about.run_step != run.step:
        raise UserError(
            f"{path} was trained at step {about.run_step} of {run.path}, which is now at step {run.step}; "
            "train it again"
        )
    net = run.network(about.network)
    model = Scorer(
        net.encoder, net.bottleneck, run.check_layer(about.layer), about.temperature, *_head(tensors)
    )
    return _tried(Classifier(model.to(run.device), about.replace(recipe=as_dict(run.recipe)), run), path)


def build(
    path: Path, about: About, tensors: dict[str, Tensor], encoder: nn.Module | None = None, run: Any = None
) -> Classifier:
    """A classifier whose file holds everything."""
    try:
        recipe = from_dict(about.recipe, Recipe).checked()
        with seeded(0, torch.device("cpu")):  # initial weights, which are replaced
            trunk = recipe.trunk(encoder)
        model = Scorer(*trunk, about.layer, about.temperature, *_head(tensors))
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise UserError(f"{path} cannot be read as a classifier: {reason(error)}") from error
    checkpoint.load_into(model, tensors, path)
    return _tried(Classifier(model, about, run), path)


def of_run(run: Any, name: str | None) -> Classifier:
    """A classifier in the results of a run; by default the newest."""
    results = run.path / "results"
    if name is None:
        saved = sorted(results.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        if not saved:
            raise UserError(
                f"{run.path} has no saved classifier; simplicia probe, finetune and semi save one, in Python "
                "evaluate.probe.fit(run, images).classifier().save()"
            )
        path = saved[-1]
    else:
        if Path(name).name != name:
            raise UserError(f"{name!r} is no name of a classifier; simplicia.load_classifier takes a path")
        path = results / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    about, tensors = read(path)
    if about.recipe is None:
        return attach(run, path, about, tensors)
    given = getattr(run.encoder, "model", None) if run.recipe.encoder == encoders.GIVEN else None
    return build(path, about, tensors, given, run).to(run.device)


def _head(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return tensors["weight"], tensors["bias"]


def _tried(classifier: Classifier, path: Path) -> Classifier:
    """The classifier; a UserError unless its parts fit together."""
    size = classifier.about.image_size
    try:
        with torch.no_grad():
            scores = classifier.model(torch.zeros(1, 3, size, size, device=classifier.device))
    except (RuntimeError, ValueError, AttributeError, AssertionError, TypeError) as error:
        raise UserError(f"{path} does not fit its encoder: {reason(error)}") from error
    if not math.isfinite(scores.sum().item()):
        raise UserError(f"{path} gives scores that are not finite; its training diverged")
    return classifier
