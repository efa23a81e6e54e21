"""Transfer by a linear classifier: logistic regression on frozen features of another data set.

The paper's protocol: 45 regularisers from 1e-6 to 1e5, the one with the best validation accuracy fitted again
on all training images (validation included) and tested once; SEM as one-hot codes; no augmentation.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import logistic
from simplicia.evaluate.features import (
    check_classes,
    encoder_features,
    load_labelled,
    report_skipped,
)
from simplicia.evaluate.logistic import Codes, Dense, Fit, Matrix
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.progress import Progress
from simplicia.representation import represent
from simplicia.result import Result, percent
from simplicia.run import Run
from simplicia.settings import check_seed
from simplicia.train.recipe import Recipe


@dataclass
class TransferSettings:
    """The regularisers and how they are fitted and chosen."""

    regularisers: int = 45  # how many, spaced evenly in their logarithm
    weakest: float = 1e-6
    strongest: float = 1e5
    solver: Literal["auto", "rotate", "direct", "sklearn"] = "auto"
    validation: float = 0.1  # share of each class to choose on, where a set has no val split
    seed: int = 0  # of that share

    def validate(self) -> None:
        if self.regularisers < 1:
            raise UserError(f"regularisers is {self.regularisers}; at least 1 is needed")
        if not 0 < self.weakest <= self.strongest < float("inf"):
            raise UserError(
                f"weakest is {self.weakest} and strongest {self.strongest}; they must be positive, in order"
            )
        if not 0 < self.validation < 1:
            raise UserError(f"validation is {self.validation}; it must be a share between 0 and 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must not be negative")
        check_seed(self.seed)

    def path(self) -> list[float]:
        """The regularisers, strongest first."""
        return np.geomspace(self.strongest, self.weakest, self.regularisers).tolist()


class Splits(NamedTuple):
    """What is fitted on, chosen on, and tested on."""

    train: ImageSet
    val: ImageSet
    test: ImageSet
    val_is_own: bool  # the set's own val split, not a share of its training images

    def check(self) -> None:
        """A UserError unless all have the same classes, labelled, and training shows what is asked for."""
        check_classes(self.train, self.val)
        check_classes(self.train, self.test)

    @property
    def skipped(self) -> int:
        """How many files could not be read."""
        sets = (self.train, self.test, self.val) if self.val_is_own else (self.train, self.test)
        return sum(len(images.skipped) for images in sets)


def load_splits(
    run: Run | Recipe,
    data: str | None = None,
    data_dir: str | None = None,
    share: float = 0.1,
    seed: int = 0,
) -> Splits:
    """Load train, val and test images; a data set without a val split holds out a share of train."""
    recipe = run.recipe if isinstance(run, Run) else run
    train, test = load_labelled(recipe, data, data_dir)
    name = data or recipe.data
    val = datasets.validation(
        name, data_dir or recipe.data_dir, datasets.decoded_size(name, recipe.actual_decode_size)
    )
    if val is not None:
        report_skipped(val.name, val.skipped)
    if val is None:
        return Splits(*hold_out(train, share, seed), test, False)
    check_classes(train, val)
    return Splits(train, val, test, True)


def hold_out(train: ImageSet, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """The images to fit on and those to choose on: the same share of every class, of one image none."""
    return datasets.split(train, share, seed)


@torch.no_grad()
def features(
    run: Run, images: Tensor, layer: str, temperature: float | None = None, network: str = "online"
) -> Matrix:
    """A layer's representation of images, for `logistic`: codes as integers, all else dense."""
    net = run.network(network)
    parts = (represent(net, h, layer, temperature) for h in encoder_features(run, images, network).split(256))
    found = torch.cat([part.int() if layer == "codes" else part for part in parts])
    if found.device.type == "mps":  # which has no float64
        found = found.cpu()
    return Codes(found, net.bottleneck.vertices) if layer == "codes" else Dense(found)  # type: ignore


def default_layer(run: Run, layer: str | None, temperature: float | None = None) -> str:
    """The layer asked for; by default codes, as the paper has it, or what a run trained without them has."""
    trained_with = "embedder" if run.recipe.bottleneck == "embed" else run.layers()[-1]
    return run.check_layer(layer or trained_with, temperature)


class Chosen(NamedTuple):
    """A classifier fitted at the regulariser with the best validation accuracy."""

    fit: Fit
    regulariser: float
    solver: str
    path: list[dict[str, Any]]  # of each regulariser: its validation accuracy, and if its fit converged

    def as_dict(self) -> dict[str, Any]:
        """What a result says of it."""
        return {
            "selected": {"regulariser": self.regulariser},
            "regulariser": self.regulariser,
            "validation_accuracy": max(row["validation_accuracy"] for row in self.path),
            "solver": self.solver,
            "converged": self.fit.converged,
            "loss": self.fit.loss,
            "weight_norm": self.fit.weight.norm().item(),
            "path": self.path,
        }


def choose(
    train: Matrix,
    train_labels: Tensor,
    val: Matrix,
    val_labels: Tensor,
    classes: int,
    settings: TransferSettings,
    quiet: bool = True,
) -> Chosen:
    """Fit every regulariser on train, choose on val, and fit that one on both. There is no test set here.

    Of equal accuracies the stronger regulariser is chosen.
    """
    path = settings.path()
    train_labels, val_labels = train_labels.to(train.device), val_labels.to(train.device)
    bar = Progress("regularisers", len(path), 0, quiet)
    rows: list[dict[str, Any]] = []
    try:
        scores = logistic.validated(
            train, train_labels, classes, path, val, val_labels, solver=settings.solver
        )
        for regulariser, (accuracy, converged) in zip(path, scores, strict=True):
            rows.append(
                {
                    "regulariser": regulariser,
                    "validation_accuracy": 100 * accuracy,
                    "converged": converged,
                }
            )
            bar.update(len(rows), f"{regulariser:.1e}: {100 * accuracy:.1f} %")
    finally:
        bar.close()
    best = max(range(len(rows)), key=lambda i: (rows[i]["validation_accuracy"], -i))
    both = train.join(val)  # type: ignore[arg-type]
    labels = torch.cat([train_labels, val_labels])
    del train, val, scores  # which may be gigabytes, where the caller kept none
    way = [*path[:best:4], path[best]]  # weak ones are reached faster by way of stronger ones
    *_, fit = logistic.fit(both, labels, classes, way, settings.solver)
    return Chosen(fit, path[best], logistic.check(both, labels, classes, settings.solver), rows)


def fitted(
    run: Run,
    train: ImageSet,
    val: ImageSet,
    layer: str,
    temperature: float | None,
    settings: TransferSettings,
    network: str = "online",
    quiet: bool = True,
) -> Chosen:
    """``choose`` on a run's features of train and val images."""
    assert train.labels is not None and val.labels is not None
    return choose(
        features(run, train.images, layer, temperature, network),
        train.labels,
        features(run, val.images, layer, temperature, network),
        val.labels,
        len(train.classes),
        settings,
        quiet,
    )


def transfer(
    run: Run,
    sets: Splits,
    layer: str | None = None,
    temperature: float | None = None,
    settings: TransferSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Test accuracy of the chosen classifier: of images (top-1), and the mean of the classes' own."""
    start = time.monotonic()
    settings = settings or TransferSettings()
    settings.validate()
    sets.check()
    layer = default_layer(run, layer, temperature)
    chosen = fitted(run, sets.train, sets.val, layer, temperature, settings, network, quiet)
    test = features(run, sets.test.images, layer, temperature, network)
    assert sets.test.labels is not None
    guesses = (test.times(chosen.fit.weight) + chosen.fit.bias).argmax(1).cpu()
    return make_result(
        run,
        "transfer, logistic regression",
        sets.train,
        sets.test,
        network=network,
        layer=layer,
        temperature=shown_temperature(run, layer, temperature, network),
        **accuracies(guesses, sets.test.labels),
        **chosen.as_dict(),
        seeds=[] if sets.val_is_own else [settings.seed],
        validation_split="the set's own" if sets.val_is_own else "held out of the training images",
        validation_images=len(sets.val),
        skipped_files=sets.skipped,
        train_images=len(sets.train) + len(sets.val),
        changed=changed_settings(settings),
        seconds=time.monotonic() - start,
    )


def shown_temperature(
    run: Run, layer: str, temperature: float | None, network: str = "online"
) -> float | None:
    """The temperature a result states: of SEM only; codes are temperature 0."""
    if layer == "codes":
        return 0.0
    if layer != "sem":
        return None
    bottleneck: Any = run.network(network).bottleneck
    return float(bottleneck.temperature) if temperature is None else temperature


def accuracies(guesses: Tensor, labels: Tensor, top5: int | None = None) -> dict[str, Any]:
    """Top-1 accuracy with its standard error, and the mean of the accuracies of the classes, in percent.

    ``top5``: how many are right among five guesses, where that is known.
    """
    right = (guesses == labels).double()
    counts = torch.bincount(labels)
    each = torch.bincount(labels, weights=right)[counts > 0] / counts[counts > 0]
    return {
        **percent(int(right.sum().item()), len(labels), top5),
        "mean_class_accuracy": 100 * each.mean().item(),
    }
