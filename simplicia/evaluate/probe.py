"""Linear probe: linear classifiers on frozen features, chosen on held-out training images, tested once.

The paper's protocol (appendix "Linear evaluation"): train every learning rate with every penalty at every
temperature at once, then retrain the best at each temperature on all training images.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from simplicia.classifier import Classifier, Scorer, make
from simplicia.data.datasets import ImageSet, held_out
from simplicia.errors import UserError, unknown
from simplicia.evaluate.features import check_classes, check_labels
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.evaluate.probe_inputs import Inputs, precision
from simplicia.evaluate.sgd import FittedProbe, Probes, Rates, correct, train
from simplicia.progress import Progress
from simplicia.result import Result, over_seeds, packed
from simplicia.run import Run
from simplicia.settings import Range, check

Grid = tuple[float, ...]
NOT_NEGATIVE = Range(low=0, empty=False)


@dataclass
class ProbeSettings:
    """How probes are trained. The grid is every lr with every L1 and L2 weight at every temperature."""

    lrs: Annotated[Grid, "learning rates", NOT_NEGATIVE] = (0.1, 1.0, 5.0)
    l1: Annotated[Grid, "weights of the L1 norm", NOT_NEGATIVE] = (0.0,)
    l2: Annotated[Grid, "weight decays", NOT_NEGATIVE] = (0.0,)
    temperatures: Annotated[Grid, "of SEM; 0: one-hot codes", NOT_NEGATIVE] = (0.0, 0.01, 0.1, 1.0)
    epochs: Annotated[int, "passes over the training images", Range(low=1)] = 30
    batch_size: Annotated[int, "images per step", Range(low=1)] = 256
    momentum: Annotated[float, "of SGD", Range(low=0, below=1)] = 0.9
    nesterov: Annotated[bool, "Nesterov momentum"] = False
    validation: Annotated[
        float, "images to choose on: a share of each class, or from 1 up a number per class", Range(above=0)
    ] = 0.1
    augment: Annotated[bool, "random crops and flips; otherwise features are computed once"] = False
    seed: Annotated[int, "of the first training", Range(low=-(2**63), below=2**63)] = 0
    seeds: Annotated[int, "trainings, with consecutive seeds; the result is their mean", Range(low=1)] = 1

    def validate(self) -> None:
        check(self)
        if self.validation > 1 and self.validation % 1:
            raise UserError(
                f"validation is {self.validation}; it must be a share between 0 and 1, "
                "or a whole number of images of each class"
            )


PAPER = ProbeSettings(epochs=100, augment=True)
PRESETS = {
    "quick": ProbeSettings(),
    "demo": ProbeSettings(temperatures=(0.0, 0.1, 1.0)),
    "cifar": dataclasses.replace(
        PAPER, lrs=(0.01, 0.1, 0.2), l1=(0.0, 1e-5), temperatures=(1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)
    ),
    "imagenet": dataclasses.replace(
        PAPER,
        lrs=(0.5, 0.1, 0.05, 0.01),
        l1=(0.0, 1e-6, 1e-5),
        temperatures=(0.01, 0.1, 1.0),
        nesterov=True,
        validation=10,
    ),
}


def preset(name: str) -> ProbeSettings:
    """A copy of a preset: "quick", the shorter "demo", or the paper's for "cifar" and "imagenet"."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return dataclasses.replace(PRESETS[name])


def preset_for(data: str) -> str:
    """The name of the paper's settings for a data set, or a folder of that name; otherwise "quick"."""
    name = Path(data).name
    return "cifar" if name in ("cifar10", "cifar100") else "imagenet" if name == "imagenet" else "quick"


def preset_details(name: str, settings: ProbeSettings) -> dict[str, Any]:
    """The fields of a result about a preset: its name, and the settings that were changed."""
    changed = changed_settings(settings, preset(name))
    return {"preset": name if changed.keys() <= {"seed"} else f"{name}, changed", "changed": changed}


@dataclass
class TrainedProbes:
    """The chosen probe at each temperature for each seed, trained without any test image."""

    run: Run
    settings: ProbeSettings
    layer: str
    network: str
    temperatures: tuple[float | None, ...]
    rates: list[Rates]  # chosen at each temperature
    validation: list[float]  # their accuracy in percent, mean over seeds
    validation_images: int
    classes: int
    probes: list[Probes]  # per seed: weight (temperatures, features, classes), bias
    names: tuple[str, ...]  # of the classes

    @property
    def best(self) -> int:
        """The index of the temperature with the highest validation accuracy, the first of equals."""
        return max(range(len(self.validation)), key=self.validation.__getitem__)

    def choice(self, t: int) -> dict[str, Any]:
        """The fields of a result about the probe at the temperature with index ``t``."""
        about = {"temperature": self.temperatures[t], "selected": self.rates[t]._asdict()}
        return about | {"validation_accuracy": self.validation[t]}

    def details(self) -> dict[str, Any]:
        """The fields of a result about the training."""
        how = self.settings
        products = "fp16" if precision(self.layer, self.run.device) == torch.half else "tf32"
        on_gpu = f"{'bf16 views, ' * how.augment}{products} products"
        return {
            "network": self.network,
            "layer": self.layer,
            "validation_images": self.validation_images,
            "seeds": list(range(how.seed, how.seed + how.seeds)),
            "grid": {"lrs": how.lrs, "l1": how.l1, "l2": how.l2, "temperatures": list(self.temperatures)},
            **{name: getattr(how, name) for name in ("epochs", "momentum", "nesterov")},
            "probe_batch_size": how.batch_size,
            "views": "crop and flip" if how.augment else "none",
            "precision": on_gpu if self.run.device.type == "cuda" else "float32",
        }

    def best_probe(self) -> FittedProbe:
        """The probe at the chosen temperature, with one classifier per seed."""
        parts = zip(*self.probes, strict=True)
        classifiers = Probes(*(torch.cat([each[self.best] for each in part], -1)[None] for part in parts))
        details = self.details() | self.choice(self.best)
        return FittedProbe(self.run, classifiers, self.classes, "linear probe by SGD", details)

    def classifier(self, accuracy: float | None = None) -> Classifier:
        """The probe at the chosen temperature, of the first seed, as a classifier of images."""
        net = self.run.network(self.network)
        weight, bias = (part[self.best] for part in self.probes[0])
        model = Scorer(net.encoder, net.bottleneck, self.layer, self.temperatures[self.best], weight, bias[0])
        return make(self.run, "probe", model, self.names, self.network, accuracy)

    def test(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Find the correct images, and count those among the first five.

        (seeds, temperature trained at, temperature tested at, images), and the same without images.
        """
        inputs = Inputs(self.run, images, self.layer, self.temperatures, self.network)
        everything, labels = torch.arange(len(images), device=self.run.device), labels.to(self.run.device)
        counts = []
        for probes in self.probes:
            # side by side, so that the probe of each temperature sees the images at all temperatures
            parts = (p.transpose(0, 1).flatten(1).expand(len(p), p.shape[1], -1) for p in probes)
            counts.append(correct(Probes(*parts), inputs.plain, everything, labels, self.classes))
        hits, among_five = (torch.stack(each).cpu() for each in zip(*counts, strict=True))
        return hits.permute(0, 3, 1, 2), among_five.mT


def fit(
    run: Run,
    images: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
    quiet: bool = True,
    after_epoch: Callable[[], Any] = lambda: None,
) -> TrainedProbes:
    """Train the grid on a part of the training images, choose on the rest, and retrain on all of them.

    With several seeds, choose by their mean validation accuracy. A bar counts the epochs, unless ``quiet``.

    >>> trained = fit(run, train, "encoder", ProbeSettings(epochs=1, lrs=(1.0,)))
    >>> trained.classifier().predict(images).shape
    (4,)
    """
    settings = settings or ProbeSettings()
    settings.validate()
    layer = run.check_layer(layer)
    taus = {"sem": settings.temperatures, "codes": (0.0,)}
    temperatures: tuple[float | None, ...] = taus.get(layer, (None,))
    device, classes, labels = run.device, len(images.classes), check_labels(images).to(run.device)
    is_held_out = _hold_out(images, settings.validation).to(device)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    how = {name: getattr(settings, name) for name in ("epochs", "batch_size", "momentum", "nesterov")}

    def count_epoch() -> None:
        bar.update(bar.step + 1, "choosing" if 2 * bar.step < bar.total else "retraining")
        after_epoch()

    def train_probes(indices: Tensor, grids: list[list[Rates]], seed: int) -> Probes:
        views = functools.partial(inputs.training, seed)
        options = {**how, "seed": seed, "after_epoch": count_epoch}
        return train(views, inputs.width, indices, labels, classes, grids, **options)

    def check_finite(finite: Tensor) -> None:
        if not finite.all():
            raise UserError(
                f"probes of {run.path} on {layer!r} are not finite; its features are not, or lrs are too high"
            )

    fit_on, choose_on = (mask.nonzero()[:, 0] for mask in (~is_held_out, is_held_out))
    grid = [Rates(*rates) for rates in itertools.product(settings.lrs, settings.l1, settings.l2)]
    right = torch.zeros(len(temperatures), len(grid), device=device)
    everything = torch.arange(len(images), device=device)
    with closing(Progress(f"probes on {layer}", 2 * len(seeds) * settings.epochs, 0, quiet)) as bar:
        inputs = Inputs(run, images.images, layer, temperatures, network, settings.augment)
        for seed in seeds:
            candidates = train_probes(fit_on, [grid] * len(temperatures), seed)
            right += correct(candidates, inputs.plain, choose_on, labels, classes)[0].sum(1)
            right[~candidates.finite(classes)] = -math.inf  # never choose a probe that diverged
            del candidates  # a grid can be gigabytes
        check_finite((right >= 0).any(1))
        best = right.max(1)
        chosen = [grid[i] for i in best.indices.tolist()]
        probes = [train_probes(everything, [[rates] for rates in chosen], seed) for seed in seeds]
    check_finite(torch.stack([each.finite(classes) for each in probes]))
    accuracies = [100 * count / (len(choose_on) * len(seeds)) for count in best.values.tolist()]
    about = run, settings, layer, network, temperatures
    return TrainedProbes(*about, chosen, accuracies, len(choose_on), classes, probes, images.classes)


def probe(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
    quiet: bool = True,
    keep: Callable[[Classifier], Any] = lambda classifier: None,
    after_epoch: Callable[[], Any] = lambda: None,
) -> Result:
    """Test accuracy of the chosen probe, of the best at each temperature, and of each at all temperatures.

    ``keep`` is called with the classifier: ``keep=Classifier.save`` saves it to the run's results.

    >>> probe(run, train, test, "encoder", ProbeSettings(epochs=1, lrs=(1.0,))).classes
    20
    """
    start = time.monotonic()
    _, labels = check_classes(train, test)
    trained = fit(run, train, layer, settings, network, quiet, after_epoch)
    hits, among_five = trained.test(test.images, labels)
    first = hits.sum(-1)
    rows = []
    for t in range(len(trained.temperatures)):
        top5 = among_five[:, t, t].tolist() if trained.classes > 5 else None
        rows.append(trained.choice(t) | over_seeds(first[:, t, t].tolist(), len(test), top5))
        if len(hits) == 1:
            rows[-1]["correct_images"] = packed(hits[0, t, t].tolist())
    values = rows[trained.best] | trained.details() | {"per_temperature": [], "temperature_matrix": None}
    if len(rows) > 1:
        temperatures = list(trained.temperatures)
        accuracies = (100 * first.double().mean(0) / len(test)).tolist()
        matrix = {"trained_at": temperatures, "tested_at": temperatures, "accuracy": accuracies}
        values |= {"per_temperature": rows, "temperature_matrix": matrix}
    keep(trained.classifier(values["accuracy"]))
    seconds = time.monotonic() - start
    return make_result(run, "offline linear probe", train, test, **values, seconds=seconds)


def _hold_out(images: ImageSet, validation: float) -> Tensor:
    """A mask of the images to choose on: some of each class, the same every time.

    If a share is held out, a class with a single image keeps it for training.
    """
    labels = check_labels(images)
    sizes = labels.bincount()
    too_small = ((sizes > 0) & (sizes <= validation)).nonzero()
    if len(too_small):
        number = int(too_small[0])
        raise UserError(
            f"{images.name} has too few images to hold some out for choosing: class "
            f"{images.classes[number]!r} has {sizes[number]}, and needs {int(validation) + 1}"
        )
    mask = torch.from_numpy(held_out(labels.numpy(), validation))
    if not mask.any():
        raise UserError(f"{images.name} has one image of each class; none can be held out for choosing")
    return mask
