"""Transfer by a linear classifier: logistic regression on frozen features of another data set.

The paper's protocol: 45 regularisers from 1e-6 to 1e5; the one with the best validation accuracy is fitted
again on all training images (validation included) and tested once; SEM as one-hot codes; no augmentation.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import logistic
from simplicia.evaluate.features import (
    check_classes,
    check_labels,
    layer_batches,
    load_labelled,
    report_skipped,
    sem_temperature,
    smallest_integer,
    source_of,
)
from simplicia.evaluate.logistic import Codes, Dense, Fit, Matrix
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.evaluate.sgd import FittedProbe, Probes
from simplicia.progress import Progress
from simplicia.result import Result, packed, percent
from simplicia.run import Run
from simplicia.settings import Range, check
from simplicia.train.recipe import Recipe

SHARE = Range(above=0, below=1)
SEED = Range(low=0, below=2**63)


@dataclass
class TransferSettings:
    """The regularisers, and how one is fitted and chosen."""

    regularisers: Annotated[int, "how many, evenly spaced in their logarithm", Range(low=1)] = 45
    weakest: Annotated[float, "smallest regulariser", Range(above=0)] = 1e-6
    strongest: Annotated[float, "largest regulariser", Range(above=0)] = 1e5
    solver: Annotated[Literal["auto", "rotate", "direct", "sklearn"], "auto: the fastest"] = "auto"
    validation: Annotated[float, "share of each class to choose on, if a set has no val split", SHARE] = 0.1
    seed: Annotated[int, "of that share", SEED] = 0

    def validate(self) -> None:
        check(self)
        if self.weakest > self.strongest:
            raise UserError(f"weakest is {self.weakest} and strongest {self.strongest}; give them in order")

    def path(self) -> list[float]:
        """The regularisers, strongest first."""
        return np.geomspace(self.strongest, self.weakest, self.regularisers).tolist()


class Splits(NamedTuple):
    """Images to fit on, to choose on and to test on."""

    train: ImageSet
    val: ImageSet
    test: ImageSet
    val_is_own: bool  # the set's own val split, not a share of its training images

    def check(self) -> Tensor:
        """The labels of the test images; a UserError unless the splits have the same classes."""
        check_classes(self.train, self.val)
        return check_classes(self.train, self.test)[1]

    def details(self) -> dict[str, Any]:
        """The fields of a result about the splits."""
        sets = self[:3] if self.val_is_own else (self.train, self.test)
        return {
            "train_images": len(self.train) + len(self.val),
            "validation_images": len(self.val),
            "validation_split": "the set's own" if self.val_is_own else "held out of the training images",
            "skipped_files": sum(len(images.skipped) for images in sets),
        }


def load_splits(
    run: Run | Recipe, data: str | None = None, data_dir: str | None = None, share: float = 0.1, seed: int = 0
) -> Splits:
    """Load train, val and test images; a data set without a val split holds out a share of train.

    >>> load_splits(run, "digits").val_is_own
    False
    """
    recipe = run.recipe if isinstance(run, Run) else run
    train, test = load_labelled(recipe, data, data_dir)
    val = datasets.validation(*source_of(recipe, data, data_dir))
    if val is None:
        return Splits(*datasets.split(train, share, seed), test, False)
    report_skipped(val.name, val.skipped)
    check_classes(train, val)
    return Splits(train, val, test, True)


@torch.no_grad()
def features(
    run: Run, images: Any, layer: str, temperature: float | None = None, network: str = "online"
) -> Matrix:
    """A layer's representation of images for ``logistic``: codes as integers, other layers dense."""
    bottleneck: Any = run.network(network).bottleneck
    parts = layer_batches(run, images, layer, temperature, network)
    if layer == "codes":
        parts = (part.to(smallest_integer(bottleneck.vertices)) for part in parts)
    x = torch.cat(list(parts))
    if x.device.type == "mps":  # has no float64
        x = x.cpu()
    return Codes(x, bottleneck.vertices) if layer == "codes" else Dense(x)


def default_layer(run: Run, layer: str | None, temperature: float | None = None) -> str:
    """The given layer; by default codes, as in the paper, or the last layer of a run without them."""
    last = "embedder" if run.recipe.bottleneck == "embed" else run.layers()[-1]
    return run.check_layer(layer or last, temperature)


def choose(
    train: Matrix,
    train_labels: Tensor,
    val: Matrix,
    val_labels: Tensor,
    classes: int,
    settings: TransferSettings,
    quiet: bool = True,
) -> tuple[Fit, dict[str, Any]]:
    """Fit every regulariser on train, choose on val, and fit the chosen one on both.

    Among equal accuracies, choose the stronger regulariser. Also returns what a result says about the choice;
    its ``path`` has a row per regulariser.
    """
    path = settings.path()
    train_labels, val_labels = train_labels.to(train.device), val_labels.to(train.device)
    fits = logistic.predict_along(train, train_labels, classes, path, settings.solver, val)
    rows: list[dict[str, Any]] = []
    with closing(Progress("regularisers", len(path), 0, quiet)) as bar:
        for regulariser, (guesses, converged) in zip(path, fits, strict=True):
            accuracy = 100 * (guesses == val_labels).double().mean().item()
            row = {"regulariser": regulariser, "validation_accuracy": accuracy, "converged": converged}
            rows.append(row)
            bar.update(len(rows), f"{regulariser:.1e}: {accuracy:.1f} %")
    best = max(range(len(rows)), key=lambda i: rows[i]["validation_accuracy"])  # the first of equals
    both, labels = train.join(val), torch.cat([train_labels, val_labels])  # type: ignore[arg-type]
    warm_up = [*path[:best:4], path[best]]  # weak regularisers converge faster from stronger ones
    *_, fitted = logistic.fit(both, labels, classes, warm_up, settings.solver)
    return fitted, {
        "selected": {"regulariser": path[best]},
        **rows[best],
        "solver": logistic.choose_solver(both, labels, classes, settings.solver),
        "converged": fitted.converged,
        "loss": fitted.loss,
        "weight_norm": fitted.weight.norm().item(),
        "path": rows,
    }


def fit(
    run: Run,
    train: ImageSet,
    val: ImageSet,
    layer: str,
    temperature: float | None,
    settings: TransferSettings,
    network: str = "online",
    quiet: bool = True,
) -> FittedProbe:
    """``choose`` on a run's features of train and val images."""
    classes = len(train.classes)
    x, held = (features(run, images.images, layer, temperature, network) for images in (train, val))
    labels, held_labels = check_labels(train), check_labels(val)
    (weight, bias, *_), details = choose(x, labels, held, held_labels, classes, settings, quiet)
    classifier = Probes(weight[None], bias[None, None])
    temperature = sem_temperature(run, layer, temperature, network)
    details |= {
        "network": network,
        "layer": layer,
        "temperature": temperature,
        "validation_images": len(val),
        "seeds": [settings.seed],
        "changed": changed_settings(settings),
    }
    return FittedProbe(run, classifier, classes, "logistic regression", details)


def transfer(
    run: Run,
    sets: Splits,
    layer: str | None = None,
    temperature: float | None = None,
    settings: TransferSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Test accuracy of the chosen classifier: top-1, and the mean over classes.

    >>> splits = Splits(train, test, test, False)
    >>> transfer(run, splits, "encoder", settings=TransferSettings(regularisers=2, weakest=1.0)).layer
    'encoder'
    """
    start = time.monotonic()
    settings = settings or TransferSettings()
    settings.validate()
    labels = sets.check()
    layer = default_layer(run, layer, temperature)
    probe = fit(run, sets.train, sets.val, layer, temperature, settings, network, quiet)
    values = {
        **probe.details,
        **sets.details(),
        **accuracies(probe.predict(sets.test.images)[0].cpu(), labels),
        "seeds": [] if sets.val_is_own else [settings.seed],
        "seconds": time.monotonic() - start,
    }
    return make_result(run, "transfer, logistic regression", sets.train, sets.test, **values)


def accuracies(guesses: Tensor, labels: Tensor, top5: int | None = None) -> dict[str, Any]:
    """Top-1 accuracy with its standard error, and the mean accuracy over classes, in percent.

    ``top5``: how many images are right among five guesses, if known.
    """
    right = (guesses == labels).double()
    counts = torch.bincount(labels)
    per_class = torch.bincount(labels, weights=right)[counts > 0] / counts[counts > 0]
    mean = 100 * per_class.mean().item()
    about = {"mean_class_accuracy": mean, "correct_images": packed((guesses == labels).tolist())}
    return percent(int(right.sum()), len(labels), top5) | about
