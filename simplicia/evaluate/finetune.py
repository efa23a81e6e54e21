"""Fine-tuning: train encoder, embedder and a new classifier with labels, chosen on validation images.

The paper's protocol: 20,000 steps of 256 images, SGD with Nesterov momentum 0.9, seven learning rates from
1e-4 to 0.1, crops and flips, temperature 1; the best rate on validation is trained again on all images and
tested once. The paper names neither schedule nor weight decay: here the rate falls by a cosine to 0, and the
weight decay is 0.
"""

import copy
import math
import time
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.datasets import ImageSet
from simplicia.data.loaders import choose_loader
from simplicia.devices import seeded
from simplicia.errors import UserError
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.evaluate.transfer import SEED, SHARE, Splits, accuracies
from simplicia.progress import Progress
from simplicia.result import Result
from simplicia.run import Run
from simplicia.sem import simplicial
from simplicia.settings import Range, check

# three per decade, rounded so that the ends are exact
LRS = tuple(float(f"{lr:.6g}") for lr in np.geomspace(1e-4, 0.1, 7))

Lrs = Annotated[tuple[float, ...], "learning rates to try", Range(above=0, empty=False)]
BatchSize = Annotated[int, "images per step; BatchNorm needs at least 2", Range(low=2)]
WeightDecay = Annotated[float, "of all parameters", Range(low=0)]
CropScale = Annotated[tuple[float, float], "smallest and largest share of the area", Range(above=0, high=1)]


@dataclass
class FinetuneSettings:
    """How a run is fine-tuned."""

    lrs: Lrs = LRS
    steps: Annotated[int, "steps per training", Range(low=1)] = 20_000
    batch_size: BatchSize = 256
    temperature: Annotated[float, "of SEM", Range(above=0)] = 1.0
    weight_decay: WeightDecay = 0.0
    crop_scale: CropScale = (0.08, 1.0)
    validation: Annotated[float, "share of each class to choose on, if a set has no val split", SHARE] = 0.1
    seed: Annotated[int, "of batches, crops and the share to choose on", SEED] = 0

    def validate(self) -> None:
        check_tuning(self)


class TuneSettings(Protocol):
    """The settings that all fine-tuning has."""

    batch_size: int
    weight_decay: float
    crop_scale: tuple[float, float]
    seed: int


def check_tuning(settings: TuneSettings) -> None:
    """Raise a UserError for the first setting that is out of range."""
    check(settings)
    low, high = settings.crop_scale
    if low > high:
        raise UserError(f"crop_scale is {settings.crop_scale}; it must be (low, high), shares in order")


class Trial(NamedTuple):
    """One training to try, of so many steps or epochs."""

    lr: float
    steps: int | None
    temperature: float | None  # None: the encoder's output, without SEM
    epochs: int | None = None

    def total_steps(self, images: int, batch_size: int) -> int:
        """The number of steps on so many images."""
        if self.epochs is None:
            assert self.steps is not None
            return self.steps
        return self.epochs * max(1, images // batch_size)

    def as_dict(self) -> dict[str, Any]:
        """What a result says about the trial."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Classifier(nn.Module):
    """Copies of a run's encoder and, with a temperature, of its embedder, and a new linear layer.

    Takes the softmax itself: a run with bottleneck "embed" has an embedder that was trained without one.
    """

    def __init__(self, run: Run, classes: int, temperature: float | None, network: str = "online"):
        super().__init__()
        net: Any = run.network(network)
        self.encoder, self.temperature = copy.deepcopy(net.encoder), temperature
        self.bottleneck: Any = copy.deepcopy(net.bottleneck) if temperature is not None else None
        width = net.bottleneck.out_features if self.bottleneck is not None else net.encoder.out_features
        self.head = nn.Linear(width, classes)
        self.requires_grad_(True)  # a target network's parameters do not require gradients

    def forward(self, views: Tensor) -> Tensor:
        features = self.encoder(views)
        if self.bottleneck is not None and self.temperature is not None:
            logits = self.bottleneck.logits(features).float()
            features = simplicial(logits, self.bottleneck.vertices, self.temperature)
        return self.head(features)


def batch_norm_momentum(steps_per_epoch: int) -> float:
    """BatchNorm's momentum, 1 - max(1 - 10 / s, 0.9), in torch's convention."""
    return min(10 / steps_per_epoch, 0.1)


def tune(
    run: Run,
    images: Tensor,
    labels: Tensor,
    classes: int,
    trial: Trial,
    settings: TuneSettings,
    network: str = "online",
    bar: Progress | None = None,
) -> Classifier:
    """Train a classifier; the result depends on the arguments alone, including the seed."""
    device, on_gpu = run.device, run.device.type == "cuda"
    batch_size = min(settings.batch_size, len(images))
    loader = choose_loader(images, device)(images, batch_size, settings.seed, device)
    labels = labels.to(device)
    crops, statistics = ViewSettings.crop_flip(settings.crop_scale), (run.state["mean"], run.state["std"])
    views = Views(crops, run.recipe.image_size, *map(tuple, statistics))
    steps = trial.total_steps(len(images), settings.batch_size)
    with seeded(settings.seed, device):
        model = Classifier(run, classes, trial.temperature, network).to(device).train()
        if on_gpu:
            model = model.to(memory_format=torch.channels_last)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = batch_norm_momentum(loader.batches)
        optimizer = torch.optim.SGD(
            model.parameters(), trial.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
        )
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = trial.lr * (1 + math.cos(math.pi * step / steps)) / 2
            indices = loader.indices(step)
            (view,) = views(loader.images[loader.fetch(step, indices)])
            if on_gpu:
                view = view.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = F.cross_entropy(model(view).float(), labels[indices])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if bar is not None and step % 50 == 0:
                bar.update(step, f"rate {trial.lr:.2g}, loss {loss.item():.3f}")
    return model.eval()


@torch.no_grad()
def predict(run: Run, model: Classifier, images: Tensor, batch_size: int = 256) -> Tensor:
    """Scores of images on the CPU; those of a model that diverged are not finite."""
    return torch.cat([model(run.view(batch)).float() for batch in images.split(batch_size)]).cpu()


@dataclass
class Tuned:
    """The best trial on validation images, trained on all images, and the trials it was chosen from."""

    trial: Trial
    model: Classifier
    trials: list[dict[str, Any]]

    def test(self, run: Run, images: Tensor) -> Tensor:
        """Scores of test images; a UserError if the model diverged."""
        scores = predict(run, self.model, images)
        if not scores.isfinite().all():
            raise UserError(f"fine-tuning {run.path} on all images diverged; lower lrs would do")
        return scores

    def details(self, settings: TuneSettings) -> dict[str, Any]:
        """What a result says about the training."""
        return {
            **self.trial.as_dict(),
            "validation_accuracy": max(row["validation_accuracy"] for row in self.trials),
            "tune_batch_size": settings.batch_size,
            "weight_decay": settings.weight_decay,
            "schedule": "cosine",
            "seeds": [settings.seed],
            "changed": changed_settings(settings),
            "trials": self.trials,
        }


def search(
    run: Run,
    train: ImageSet,
    val: ImageSet,
    trials: list[Trial],
    settings: TuneSettings,
    network: str = "online",
    quiet: bool = True,
) -> Tuned:
    """Train every trial on train, choose on val, and train the chosen one on both."""
    assert train.labels is not None and val.labels is not None
    if len(train) < 2:
        raise UserError(f"{train.name} has {len(train)} image to train on; BatchNorm needs at least 2")

    def train_on(images: Tensor, labels: Tensor, trial: Trial, label: str) -> Classifier:
        bar = Progress(label, trial.total_steps(len(images), settings.batch_size), 0, quiet)
        try:
            return tune(run, images, labels, len(train.classes), trial, settings, network, bar)
        finally:
            bar.close()

    rows: list[dict[str, Any]] = []
    for i, trial in enumerate(trials):
        model = train_on(train.images, train.labels, trial, f"trial {i + 1} of {len(trials)}")
        scores = predict(run, model, val.images)
        right = (scores.argmax(1) == val.labels) & scores.isfinite().all(1)  # never choose a diverged model
        rows.append({**trial.as_dict(), "validation_accuracy": 100 * right.double().mean().item()})
    best = trials[max(range(len(rows)), key=lambda i: rows[i]["validation_accuracy"])]
    images, labels = torch.cat([train.images, val.images]), torch.cat([train.labels, val.labels])
    return Tuned(best, train_on(images, labels, best, "on all images"), rows)


def finetune(
    run: Run,
    sets: Splits,
    layer: str | None = None,
    settings: FinetuneSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Test accuracy of the fine-tuned run, through SEM if it has one, or of its encoder (``layer``)."""
    start = time.monotonic()
    settings = settings or FinetuneSettings()
    settings.validate()
    sets.check()
    layer = trainable_layer(run, layer)
    temperature = settings.temperature if layer == "sem" else None
    trials = [Trial(lr, settings.steps, temperature) for lr in settings.lrs]
    tuned = search(run, sets.train, sets.val, trials, settings, network, quiet)
    assert sets.test.labels is not None
    return make_result(
        run,
        "transfer, fine-tuned",
        sets.train,
        sets.test,
        network=network,
        layer=layer,
        selected={"lr": tuned.trial.lr},
        **accuracies(tuned.test(run, sets.test.images).argmax(1), sets.test.labels),
        **tuned.details(settings),
        **sets.details(),
        seconds=time.monotonic() - start,
    )


def trainable_layer(run: Run, layer: str | None) -> str:
    """The given layer; by default "sem" if the run was trained with it, else "encoder"."""
    if layer is None:
        return "sem" if run.recipe.bottleneck == "sem" else "encoder"
    layer = run.check_layer(layer)
    if layer not in ("sem", "encoder"):  # codes pass no gradient
        possible = " or ".join(repr(name) for name in ("sem", "encoder") if name in run.layers())
        raise UserError(f"layer {layer!r} cannot be fine-tuned; choose {possible}")
    return layer
