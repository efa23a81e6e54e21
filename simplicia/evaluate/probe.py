"""Linear probe: linear classifiers on frozen features, chosen on held-out training images, tested once.

The paper's protocol (its appendix, "Linear evaluation"): every learning rate with every penalty at every
temperature is trained at once; the best at each temperature is trained again on all training images.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data.datasets import ImageSet, held_out
from simplicia.errors import UserError, unknown
from simplicia.evaluate.features import check_classes
from simplicia.evaluate.linear import Probes, Rates, correct, train
from simplicia.evaluate.make_result import make_result
from simplicia.evaluate.probe_inputs import Inputs, precision
from simplicia.progress import Progress
from simplicia.result import Result, over_seeds
from simplicia.run import Run
from simplicia.settings import check_seed


@dataclass
class ProbeSettings:
    """How probes are trained. The grid is every lr with every L1 and L2 weight at every temperature."""

    lrs: tuple[float, ...] = (0.1, 1.0, 5.0)
    l1: tuple[float, ...] = (0.0,)
    l2: tuple[float, ...] = (0.0,)  # weight decay
    temperatures: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0)  # of SEM; 0: one-hot codes
    epochs: int = 30
    batch_size: int = 256
    momentum: float = 0.9
    nesterov: bool = False
    validation: float = 0.1  # to choose on: a share of each class, or from 1 up a number of images of each
    augment: bool = False  # random crops and flips, each epoch anew; otherwise features are computed once
    seed: int = 0
    seeds: int = 1  # trainings, with seeds from ``seed`` up; their mean is reported

    def validate(self) -> None:
        for name in ("lrs", "l1", "l2", "temperatures"):
            values = getattr(self, name)
            if not values or any(not 0 <= v < float("inf") for v in values):
                raise UserError(f"{name} is {values}; it takes one or more numbers that are not negative")
        check_seed(self.seed)
        for name in ("epochs", "batch_size", "seeds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum is {self.momentum}; it must be from 0 to below 1")
        if not 0 < self.validation < 1 and not (self.validation >= 1 and self.validation % 1 == 0):
            raise UserError(
                f"validation is {self.validation}; it must be a share between 0 and 1, "
                "or a whole number of images of each class"
            )


PRESETS = {
    "quick": ProbeSettings(),
    "cifar": ProbeSettings(
        lrs=(0.01, 0.1, 0.2),
        l1=(0.0, 1e-5),
        temperatures=(1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0),
        epochs=100,
        augment=True,
    ),
    "imagenet": ProbeSettings(
        lrs=(0.5, 0.1, 0.05, 0.01),
        l1=(0.0, 1e-6, 1e-5),
        temperatures=(0.01, 0.1, 1.0),
        epochs=100,
        nesterov=True,
        validation=10,
        augment=True,
    ),
}

# of the demo and of experiments on the built-in shapes
SHAPES_PROBE = ProbeSettings(temperatures=(0.0, 0.1, 1.0))


def preset(name: str) -> ProbeSettings:
    """Settings by name: "quick", or those of the paper for "cifar" and "imagenet"."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return dataclasses.replace(PRESETS[name])


def preset_for(data: str) -> str:
    """The name of the paper's settings for a data set or a folder called so; "quick" where it has none."""
    name = Path(data).name
    return "cifar" if name in ("cifar10", "cifar100") else "imagenet" if name == "imagenet" else "quick"


def preset_label(name: str, settings: ProbeSettings) -> str:
    """What settings made from a preset are called: by its name, or as changed; seeds only repeat it."""
    untouched = dataclasses.replace(preset(name), seed=settings.seed, seeds=settings.seeds)
    return name if settings == untouched else f"{name}, changed"


@dataclass
class Trained:
    """Probes that were chosen and trained, for each seed one at each temperature; no test image was seen."""

    run: Run
    settings: ProbeSettings
    layer: str
    network: str
    temperatures: tuple[float | None, ...]
    rates: list[Rates]  # chosen at each temperature
    validation: list[float]  # accuracy of those in percent, mean over seeds
    validation_images: int
    classes: int
    probes: list[Probes]  # per seed: weight (temperatures, features, classes), bias

    @property
    def best(self) -> int:
        """Which temperature has the highest validation accuracy, the first of equals."""
        return max(range(len(self.validation)), key=self.validation.__getitem__)

    def at(self, t: int) -> dict[str, Any]:
        """What a result says of the probe at a temperature."""
        return {
            "temperature": self.temperatures[t],
            "selected": self.rates[t]._asdict(),
            "validation_accuracy": self.validation[t],
        }

    def training(self) -> dict[str, Any]:
        """What a result says of how probes were trained and chosen."""
        settings, on_gpu = self.settings, self.run.device.type == "cuda"
        products = {torch.half: "fp16"}.get(precision(self.layer, self.run.device), "tf32")
        return {
            "network": self.network,
            "layer": self.layer,
            "validation_images": self.validation_images,
            "seeds": list(range(settings.seed, settings.seed + settings.seeds)),
            "grid": {
                "lrs": settings.lrs,
                "l1": settings.l1,
                "l2": settings.l2,
                "temperatures": list(self.temperatures),
            },
            "epochs": settings.epochs,
            "probe_batch_size": settings.batch_size,
            "momentum": settings.momentum,
            "nesterov": settings.nesterov,
            "views": "crop and flip" if settings.augment else "none",
            "precision": f"{'bf16 views, ' * settings.augment}{products} products" if on_gpu else "float32",
        }

    def test(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """How many images are right, first and among five: (seeds, trained at, tested at) temperatures."""
        device = self.run.device
        inputs = Inputs(self.run, images, self.layer, self.temperatures, self.network)
        parts = torch.arange(len(images), device=device).split(256)
        found = []
        for weight, bias in self.probes:
            # as probes side by side, each of which sees the images at every temperature
            side_by_side = Probes(
                *(p.transpose(0, 1).flatten(1).expand(len(p), *p.shape[1:2], -1) for p in (weight, bias))
            )
            batches = (inputs.plain(part) for part in parts)
            found.append(correct(side_by_side, batches, labels.to(device), self.classes))
        first, among = (torch.stack(counts).mT.cpu() for counts in zip(*found, strict=True))
        return first, among


def fit(
    run: Run,
    images: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trained:
    """Train the grid on a part of the training images, choose on the rest, and retrain on all of them.

    With several seeds the choice is by the mean of their validation accuracies.
    """
    settings = settings or ProbeSettings()
    settings.validate()
    layer = run.check_layer(layer)
    temperatures: tuple[float | None, ...] = {"sem": settings.temperatures, "codes": (0.0,)}.get(
        layer, (None,)
    )
    assert images.labels is not None
    device, classes = run.device, len(images.classes)
    held = _hold_out(images, settings.validation).to(device)
    fit_on, choose_on = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
    labels = images.labels.to(device)
    inputs = Inputs(run, images.images, layer, temperatures, network, settings.augment)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    done = 0

    def after_epoch() -> None:
        nonlocal done
        done += 1
        progress(done, 2 * len(seeds) * settings.epochs)

    def trained(indices: Tensor, grids: list[list[Rates]], seed: int) -> Probes:
        return train(
            lambda epoch, part: inputs.training(seed, epoch, part),
            inputs.width,
            indices,
            labels,
            classes,
            grids,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            seed=seed,
            after_epoch=after_epoch,
        )

    def check(finite: Tensor) -> None:
        if not finite.all():
            raise UserError(
                f"probes of {run.path} on {layer!r} are not finite; its features are not, or lrs are too high"
            )

    grid = [Rates(*rates) for rates in itertools.product(settings.lrs, settings.l1, settings.l2)]
    right = torch.zeros(len(temperatures), len(grid), device=device)
    for seed in seeds:
        candidates = trained(fit_on, [grid] * len(temperatures), seed)
        batches = (inputs.plain(part) for part in choose_on.split(256))
        right += correct(candidates, batches, labels[choose_on], classes)[0]
        right[~candidates.finite(classes)] = -math.inf  # who diverged is never chosen
        del candidates  # a grid can be gigabytes
    check((right >= 0).any(1))
    best = right.max(1)
    chosen = [grid[i] for i in best.indices.tolist()]
    everything = torch.arange(len(images), device=device)
    probes = [trained(everything, [[rates] for rates in chosen], seed) for seed in seeds]
    check(torch.stack([each.finite(classes) for each in probes]))
    return Trained(
        run,
        settings,
        layer,
        network,
        temperatures,
        chosen,
        [100 * r / (len(choose_on) * len(seeds)) for r in best.values.tolist()],
        len(choose_on),
        classes,
        probes,
    )


@contextmanager
def progress_bar(
    layer: str, settings: ProbeSettings, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """A bar for ``progress``."""
    bar = Progress(f"probes on {layer}", 2 * settings.seeds * settings.epochs, 0, quiet)
    try:
        yield lambda done, total: bar.update(
            done, "choosing" if 2 * done <= total else "training what was chosen"
        )
    finally:
        bar.close()


def probe(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
    """Accuracy of the chosen probe, of the best one at each temperature, and of each at every temperature."""
    start = time.monotonic()
    check_classes(train, test)
    found = fit(run, train, layer, settings, network, progress)
    assert test.labels is not None
    first, among = found.test(test.images, test.labels)
    temperatures = list(found.temperatures)

    def measured(t: int) -> dict[str, Any]:
        top5 = among[:, t, t].tolist() if found.classes > 5 else None  # of five classes, five guesses are all
        return {**found.at(t), **over_seeds(first[:, t, t].tolist(), len(test), top5)}

    several = len(temperatures) > 1
    return make_result(
        run,
        "offline linear probe",
        train,
        test,
        **measured(found.best),
        **found.training(),
        per_temperature=[measured(t) for t in range(len(temperatures))] if several else [],
        temperature_matrix={
            "trained_at": temperatures,
            "tested_at": temperatures,
            "accuracy": (100 * first.double().mean(0) / len(test)).tolist(),
        }
        if several
        else None,
        seconds=time.monotonic() - start,
    )


def _hold_out(images: ImageSet, validation: float) -> Tensor:
    """A mask of the training images to choose on: some of each class, the same every time.

    Where a share is held out, a class of one image stays in training, and nothing is chosen by it.
    """
    assert images.labels is not None
    labels = images.labels.numpy()
    if validation < 1:
        mask = held_out(labels, validation)
        if not mask.any():
            raise UserError(f"{images.name} has one image of each class; none can be held out for choosing")
        return torch.from_numpy(mask)
    mask, count = np.zeros(len(labels), dtype=bool), int(validation)
    for number in np.unique(labels):
        members = np.flatnonzero(labels == number)
        if len(members) <= count:
            raise UserError(
                f"{images.name} has too few images to hold some out for choosing: class "
                f"{images.classes[number]!r} has {len(members)}, and needs {count + 1}"
            )
        mask[np.random.default_rng(0).permutation(members)[:count]] = True
    return torch.from_numpy(mask)
