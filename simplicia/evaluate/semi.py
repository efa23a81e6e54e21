"""Semi-supervised learning: fine-tuning on a small share of the labels.

The paper's protocol on ImageNet: the published lists of 1 % and 10 % of the images; batch 224, 30 or 50
epochs, five learning rates and three temperatures, chosen on validation images (here a part of the labelled
share: no other label is used), then trained on the full share; top-1 and top-5.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from simplicia.data import datasets
from simplicia.data.datasets import ImageSet, held_out, part
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes
from simplicia.evaluate.finetune import (
    BatchSize,
    CropScale,
    Lrs,
    Trial,
    WeightDecay,
    check_tuning,
    search,
    trainable_layer,
)
from simplicia.evaluate.make_result import make_result
from simplicia.evaluate.transfer import SEED, SHARE, accuracies
from simplicia.result import Result, digest
from simplicia.run import Run
from simplicia.settings import Range


@dataclass
class SemiSettings:
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

    def validate(self) -> None:
        check_tuning(self)


def subset(
    train: ImageSet,
    fraction: float,
    seed: int = 0,
    names: Path | None = None,
    test_files: tuple[str, ...] = (),
) -> ImageSet:
    """The images whose labels are used: those a file lists, one per line, or the same share of each class."""
    assert train.labels is not None
    if names is None:
        labels = train.labels.numpy()
        is_only_one = np.bincount(labels)[labels] == 1  # of its class
        return part(train, torch.from_numpy(held_out(labels, fraction, seed) | is_only_one).nonzero()[:, 0])
    try:
        lines = names.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list {str(names)!r} cannot be read: {error}") from error
    if not train.files:
        raise UserError(f"{train.name} has no file names, so no list can choose from it; leave --list out")
    listed = [line.strip() for line in lines if line.strip()]
    by_name: dict[str, list[int]] = {}
    for i, file in enumerate(train.files):
        by_name.setdefault(Path(file).name, []).append(i)
        without_split = file.split("/", 1)[-1]
        if "/" in without_split:
            by_name.setdefault(without_split, []).append(i)
    by_name |= {file: [i] for i, file in enumerate(train.files)}
    unknown = [name for name in listed if name not in by_name]
    if unknown or not listed:
        what = f"names {unknown[0]!r}" if unknown else "is empty"
        if unknown and any(file == unknown[0] or file.endswith(f"/{unknown[0]}") for file in test_files):
            what += ", which is a test image"
        raise UserError(
            f"the list {str(names)!r} {what}; it takes names of training images such as {train.files[0]!r}"
        )
    for name in listed:
        if len(by_name[name]) > 1:
            first, second = (train.files[i] for i in by_name[name][:2])
            raise UserError(
                f"the list {str(names)!r} names {name!r}, which is {first!r} or {second!r}; "
                "name it with its folder"
            )
    return part(train, torch.tensor(sorted({by_name[name][0] for name in listed})))


def semi(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    settings: SemiSettings | None = None,
    names: Path | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Top-1 and top-5 test accuracy after fine-tuning on a share of the labels."""
    start = time.monotonic()
    settings = settings or SemiSettings()
    settings.validate()
    layer = trainable_layer(run, layer)
    labelled = subset(train, settings.fraction, settings.seed, names, test.files)
    check_classes(labelled, test)
    try:
        fit_on, choose_on = datasets.split(labelled, settings.validation, settings.seed)
    except UserError as error:
        more = f"fraction is {settings.fraction:g}; give more" if names is None else "list more images"
        raise UserError(f"{error}; {more}") from error
    temperatures = settings.temperatures if layer == "sem" else (None,)
    grid = itertools.product(settings.epochs, settings.lrs, temperatures)
    trials = [Trial(lr, None, temperature, epochs) for epochs, lr, temperature in grid]
    tuned = search(run, fit_on, choose_on, trials, settings, network, quiet)
    chosen = tuned.trial.as_dict()
    assert test.labels is not None
    scores = tuned.test(run, test.images)
    has_top5 = scores.shape[1] > 5
    top5 = int((scores.topk(5).indices == test.labels[:, None]).sum()) if has_top5 else None
    drawn = f"class-balanced, drawn from seed {settings.seed}; not the paper's list"
    return make_result(
        run,
        "semi-supervised, fine-tuned",
        train,
        test,
        network=network,
        layer=layer,
        # a setting with a single candidate was not selected
        selected={key: v for key, v in chosen.items() if len({row[key] for row in tuned.trials}) > 1},
        steps=tuned.trial.total_steps(len(labelled), settings.batch_size),
        **accuracies(scores.argmax(1), test.labels, top5),
        **tuned.details(settings),
        train_images=len(labelled),
        validation_images=len(choose_on),
        fraction=len(labelled) / len(train),
        labelled_images=len(labelled),
        labelled_list=drawn if names is None else names.name,
        list_file=None if names is None else names.name,
        list_digest=None if names is None else digest("\n".join(labelled.files)),
        seconds=time.monotonic() - start,
    )
