"""Fine-tuning: train encoder, embedder and a new classifier with labels, chosen on validation images.

``finetune`` is the paper's transfer protocol: 20,000 steps of 256 images, SGD with Nesterov momentum 0.9,
seven learning rates from 1e-4 to 0.1, crops and flips, temperature 1; the best rate on validation is trained
again on all images and tested once. The paper names neither schedule nor weight decay: here the rate falls by
a cosine to 0, and the weight decay is 0.

``semi`` is its semi-supervised protocol on ImageNet: the published lists of 1 % and 10 % of the images; batch
224, 30 or 50 epochs, five learning rates and three temperatures, chosen on validation images (here a part of
the labelled share: no other label is used), then trained on the full share; top-1 and top-5.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simplicia.classifier import Classifier, Scorer, make
from simplicia.data import datasets
from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.datasets import ImageSet, held_out, part
from simplicia.data.loaders import choose_loader
from simplicia.devices import seeded
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes, check_labels
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.evaluate.transfer import SEED, SHARE, Splits, accuracies
from simplicia.progress import Progress
from simplicia.result import Result, digest
from simplicia.run import Run
from simplicia.sem import simplicial
from simplicia.settings import Range, check

Lrs = Annotated[tuple[float, ...], "learning rates to try", Range(above=0, empty=False)]
BatchSize = Annotated[int, "images per step; BatchNorm needs at least 2", Range(low=2)]
WeightDecay = Annotated[float, "of all parameters", Range(low=0)]
CropScale = Annotated[tuple[float, float], "smallest and largest share of the area", Range(above=0, high=1)]


class TuneSettings:
    """The settings that all fine-tuning has."""

    batch_size: BatchSize
    weight_decay: WeightDecay
    crop_scale: CropScale
    seed: int

    def validate(self) -> None:
        check(self)
        ViewSettings.crop_flip(self.crop_scale).validate()


@dataclass
class FinetuneSettings(TuneSettings):
    """How a run is fine-tuned."""

    lrs: Lrs = tuple(float(f"{lr:.6g}") for lr in np.geomspace(1e-4, 0.1, 7))  # with exact ends
    steps: Annotated[int, "steps per training", Range(low=1)] = 20_000
    batch_size: BatchSize = 256
    temperature: Annotated[float, "of SEM", Range(above=0)] = 1.0
    weight_decay: WeightDecay = 0.0
    crop_scale: CropScale = (0.08, 1.0)
    validation: Annotated[float, "share of each class to choose on, if a set has no val split", SHARE] = 0.1
    seed: Annotated[int, "of batches, crops and the share to choose on", SEED] = 0


@dataclass
class SemiSettings(TuneSettings):
    """How a run is fine-tuned on few labels: every rate with every number of epochs and temperature."""

    fraction: Annotated[float, "share of the labels to use", SHARE] = 0.01
    lrs: Lrs = (0.005, 0.01, 0.02, 0.05, 0.1)
    epochs: Annotated[tuple[int, ...], "numbers of epochs to try", Range(low=1, empty=False)] = (30, 50)
    temperatures: Annotated[tuple[float, ...], "of SEM", Range(above=0, empty=False)] = (0.01, 0.1, 1.0)
    batch_size: BatchSize = 224
    weight_decay: WeightDecay = 0.0
    crop_scale: CropScale = (0.08, 1.0)
    validation: Annotated[float, "share of the labelled images to choose on", SHARE] = 0.2
    seed: Annotated[int, "of the labels, batches and crops", SEED] = 0


class Trial(NamedTuple):
    """One training to try, for a number of steps or of epochs."""

    lr: float
    steps: int | None
    temperature: float | None  # None: the encoder's output, without SEM
    epochs: int | None = None

    def total_steps(self, images: int, batch_size: int) -> int:
        return self.steps or (self.epochs or 0) * max(1, images // batch_size)

    def as_dict(self) -> dict[str, Any]:
        """The fields of a result about the trial."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Tuned(nn.Module):
    """Copies of a run's encoder and, with a temperature, of its embedder, and a new linear layer.

    Takes the softmax itself: a run with bottleneck "embed" has an embedder that was trained without one.
    """

    def __init__(self, run: Run, classes: int, temperature: float | None, network: str = "online"):
        super().__init__()
        net: Any = run.network(network)
        self.encoder, self.temperature = copy.deepcopy(net.encoder), temperature
        self.bottleneck: Any = None if temperature is None else copy.deepcopy(net.bottleneck)
        self.head = nn.Linear((net.encoder if temperature is None else net.bottleneck).out_features, classes)
        self.requires_grad_(True)  # a target network's parameters do not require gradients

    def forward(self, views: Tensor) -> Tensor:
        features = self.encoder(views)
        if self.temperature is not None:
            logits = self.bottleneck.logits(features).float()
            features = simplicial(logits, self.bottleneck.vertices, self.temperature)
        return self.head(features)

    def scorer(self, layer: str) -> Scorer:
        """The trained model as a classifier's."""
        return Scorer(
            self.encoder, self.bottleneck, layer, self.temperature, self.head.weight.T, self.head.bias
        )


def tune(
    run: Run,
    train: ImageSet,
    trial: Trial,
    settings: TuneSettings,
    network: str = "online",
    label: str = "fine-tuning",
    quiet: bool = True,
) -> Tuned:
    """Train a classifier; the result depends on the arguments alone, including the seed."""
    device, on_gpu = run.device, run.device.type == "cuda"
    memory_format = torch.channels_last if on_gpu else torch.contiguous_format
    batch_size = min(settings.batch_size, len(train))
    loader = choose_loader(train.images, device)(train.images, batch_size, settings.seed, device)
    labels = check_labels(train).to(device)
    crops, statistics = ViewSettings.crop_flip(settings.crop_scale), (run.state["mean"], run.state["std"])
    views = Views(crops, run.recipe.image_size, *map(tuple, statistics))
    steps = trial.total_steps(len(train), settings.batch_size)
    with seeded(settings.seed, device), closing(Progress(label, steps, 0, quiet)) as bar:
        model = Tuned(run, len(train.classes), trial.temperature, network)
        model = model.to(device).to(memory_format=memory_format).train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # the paper keeps max(1 - 10 / s, 0.9)
                module.momentum = min(10 / loader.batches, 0.1)
        optimizer = torch.optim.SGD(
            model.parameters(), trial.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
        )
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = trial.lr * (1 + math.cos(math.pi * step / steps)) / 2
            indices = loader.indices(step)
            (view,) = views(loader.images[loader.fetch(step, indices)])
            view = view.contiguous(memory_format=memory_format)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = F.cross_entropy(model(view).float(), labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                bar.update(step, f"rate {trial.lr:.2g}, loss {loss.item():.3f}")
    return model.eval()


@torch.no_grad()
def predict(run: Run, model: Tuned, images: Tensor) -> Tensor:
    """Scores of images on the CPU; those of a model that diverged are not finite."""
    return torch.cat([model(run.view(batch)).float() for batch in images.split(256)]).cpu()


def search(
    run: Run, sets: Splits, layer: str, trials: list[Trial], settings: TuneSettings, network: str, quiet: bool
) -> tuple[Tuned, Tensor, dict[str, Any]]:
    """Train every trial on train, choose on val, train the chosen one on both, and test it once.

    Returns the model, the scores of the test images, and what a result says about the training.
    """
    start = time.monotonic()
    train, val = map(datasets.in_memory, sets[:2])  # read many times
    labels, val_labels = check_labels(train), check_labels(val)
    if len(train) < 2:
        raise UserError(f"{train.name} has {len(train)} image to train on; BatchNorm needs at least 2")
    rows: list[dict[str, Any]] = []
    for i, trial in enumerate(trials):
        label = f"trial {i + 1} of {len(trials)}"
        scores = predict(run, tune(run, train, trial, settings, network, label, quiet), val.images)
        right = (scores.argmax(1) == val_labels) & scores.isfinite().all(1)  # never choose a diverged model
        rows.append({**trial.as_dict(), "validation_accuracy": 100 * right.double().mean().item()})
    best = max(range(len(rows)), key=lambda i: rows[i]["validation_accuracy"])
    images = torch.cat([train.images, val.images])
    both = replace(train, images=images, labels=torch.cat([labels, val_labels]))
    model = tune(run, both, trials[best], settings, network, "on all images", quiet)
    scores = predict(run, model, sets.test.images)
    if not scores.isfinite().all():
        raise UserError(f"fine-tuning {run.path} on all images diverged; lower lrs would do")
    return (
        model,
        scores,
        {
            **rows[best],
            "layer": layer,
            "network": network,
            "steps": trials[best].total_steps(len(both), settings.batch_size),
            "tune_batch_size": settings.batch_size,
            "weight_decay": settings.weight_decay,
            "schedule": "cosine",
            "seeds": [settings.seed],
            "changed": changed_settings(settings),
            "trials": rows,
            "seconds": time.monotonic() - start,
        },
    )


def finetune(
    run: Run,
    sets: Splits,
    layer: str | None = None,
    settings: FinetuneSettings | None = None,
    network: str = "online",
    quiet: bool = True,
    keep: Callable[[Classifier], Any] = lambda classifier: None,
) -> Result:
    """Test accuracy of the fine-tuned run, through SEM if it has one, or of its encoder (``layer``).

    ``keep`` is called with the trained classifier: ``keep=Classifier.save`` saves it.

    >>> splits = Splits(train, test, test, False)
    >>> result = finetune(run, splits, settings=FinetuneSettings(lrs=(0.01,), steps=1, batch_size=8))
    >>> result.layer, 0 <= result.accuracy <= 100
    ('sem', True)
    """
    settings = settings or FinetuneSettings()
    settings.validate()
    labels = sets.check()
    layer = trainable_layer(run, layer)
    temperature = settings.temperature if layer == "sem" else None
    trials = [Trial(lr, settings.steps, temperature) for lr in settings.lrs]
    model, scores, details = search(run, sets, layer, trials, settings, network, quiet)
    details |= sets.details() | accuracies(scores.argmax(1), labels) | {"selected": {"lr": details["lr"]}}
    keep(make(run, "finetune", model.scorer(layer), sets.train.classes, network, details["accuracy"]))
    return make_result(run, "transfer, fine-tuned", sets.train, sets.test, **details)


def semi(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    settings: SemiSettings | None = None,
    names: Path | None = None,
    network: str = "online",
    quiet: bool = True,
    keep: Callable[[Classifier], Any] = lambda classifier: None,
) -> Result:
    """Top-1 and top-5 test accuracy after fine-tuning on a share of the labels, or on a list of images.

    ``keep`` is called with the trained classifier: ``keep=Classifier.save`` saves it.

    >>> few = SemiSettings(fraction=0.1, lrs=(0.01,), epochs=(1,), temperatures=(1.0,), batch_size=8)
    >>> semi(run, train, test, settings=few).top5_accuracy <= 100
    True
    """
    settings = settings or SemiSettings()
    settings.validate()
    layer = trainable_layer(run, layer)
    labelled = subset(train, settings.fraction, settings.seed, names, test.files)
    _, labels = check_classes(labelled, test)
    try:
        sets = Splits(*datasets.split(labelled, settings.validation, settings.seed), test, False)
    except UserError as error:
        more = f"fraction is {settings.fraction:g}; give more" if names is None else "list more images"
        raise UserError(f"{error}; {more}") from error
    temperatures = settings.temperatures if layer == "sem" else (None,)
    grid = itertools.product(settings.epochs, settings.lrs, temperatures)
    trials = [Trial(lr, None, temperature, epochs) for epochs, lr, temperature in grid]
    model, scores, details = search(run, sets, layer, trials, settings, network, quiet)
    top5 = int((scores.topk(5).indices == labels[:, None]).sum()) if scores.shape[1] > 5 else None
    # a setting with a single candidate was not selected
    several = [key for key in trials[0].as_dict() if len({row[key] for row in details["trials"]}) > 1]
    drawn = f"class-balanced, drawn from seed {settings.seed}; not the paper's list"
    details |= accuracies(scores.argmax(1), labels, top5) | {
        "selected": {key: details[key] for key in several},
        "labelled_list": names.name if names else drawn,
        "list_file": names.name if names else None,
        "list_digest": digest("\n".join(labelled.files)) if names else None,
        "train_images": len(labelled),
        "validation_images": len(sets.val),
        "fraction": len(labelled) / len(train),
        "labelled_images": len(labelled),
    }
    keep(make(run, "semi", model.scorer(layer), train.classes, network, details["accuracy"]))
    return make_result(run, "semi-supervised, fine-tuned", train, test, **details)


def subset(
    train: ImageSet, fraction: float, seed: int, names: Path | None = None, test_files: Sequence[str] = ()
) -> ImageSet:
    """The images whose labels are used: those a file lists, one per line, or the same share of each class."""
    if names is None:
        labels = check_labels(train).numpy()
        is_only_one = np.bincount(labels)[labels] == 1  # of its class
        return part(train, torch.from_numpy(held_out(labels, fraction, seed) | is_only_one).nonzero()[:, 0])
    the_list = f"the list {str(names)!r}"
    try:
        lines = names.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{the_list} cannot be read: {error}") from error
    if not train.files:
        raise UserError(f"{train.name} has no file names, so no list can choose from it; leave --list out")
    expected = f"it takes names of training images such as {train.files[0]!r}"
    by_name: dict[str, list[int]] = {}
    for i, file in enumerate(train.files):
        for name in {Path(file).name, file.split("/", 1)[-1]}:  # without its folder, or without its split
            by_name.setdefault(name, []).append(i)
    by_name |= {file: [i] for i, file in enumerate(train.files)}
    chosen = set()
    for name in filter(None, map(str.strip, lines)):
        first, *others = by_name.get(name, [-1])
        if first < 0:
            is_test = any(f"/{file}".endswith(f"/{name}") for file in test_files)
            which = ", which is a test image" if is_test else ""
            raise UserError(f"{the_list} names {name!r}{which}; {expected}")
        if others:
            which = f"{train.files[first]!r} or {train.files[others[0]]!r}"
            raise UserError(f"{the_list} names {name!r}, which is {which}; name it with its folder")
        chosen.add(first)
    if not chosen:
        raise UserError(f"{the_list} is empty; {expected}")
    return part(train, torch.tensor(sorted(chosen)))


def trainable_layer(run: Run, layer: str | None) -> str:
    """The given layer; by default "sem" if the run was trained with it, else "encoder"."""
    if layer is None:
        return "sem" if run.recipe.bottleneck == "sem" else "encoder"
    layer = run.check_layer(layer)
    if layer not in ("sem", "encoder"):  # codes pass no gradient
        possible = " or ".join(repr(name) for name in ("sem", "encoder") if name in run.layers())
        raise UserError(f"layer {layer!r} cannot be fine-tuned; choose {possible}")
    return layer
