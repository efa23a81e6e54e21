"""Semi-supervised learning: fine-tuning on a small share of the labels.

The paper's protocol on ImageNet: the published lists of 1 % and 10 % of the images; batch 224, 30 or 50
epochs, five learning rates and three temperatures, chosen on validation images (here a part of the labelled
share: no other label is looked at), trained again on the whole share; top-1 and top-5.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simplicia.data.datasets import ImageSet, held_out, part
from simplicia.errors import UserError
from simplicia.evaluate.features import check_classes
from simplicia.evaluate.finetune import Trial, check_numbers, search, tested, trainable_layer
from simplicia.evaluate.make_result import changed_settings, make_result
from simplicia.evaluate.transfer import accuracies, hold_out
from simplicia.result import Result, digest
from simplicia.run import Run


@dataclass
class SemiSettings:
    """How a run is fine-tuned on few labels: every rate with every number of epochs and temperature."""

    fraction: float = 0.01  # of the labels
    lrs: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1)
    epochs: tuple[int, ...] = (30, 50)
    temperatures: tuple[float, ...] = (0.01, 0.1, 1.0)  # of SEM
    batch_size: int = 224
    weight_decay: float = 0.0
    crop_scale: tuple[float, float] = (0.08, 1.0)  # share of the image's area
    validation: float = 0.2  # share of the labelled images to choose on
    seed: int = 0

    def validate(self) -> None:
        positive = ("fraction", "lrs", "epochs", "temperatures", "batch_size")
        check_numbers(self, positive=positive, others=("weight_decay",))
        if self.fraction >= 1:
            raise UserError(f"fraction is {self.fraction}; it must be a share between 0 and 1")


def subset(
    train: ImageSet,
    fraction: float,
    seed: int = 0,
    names: Path | None = None,
    tested: tuple[str, ...] = (),  # files that are not there to learn from
) -> ImageSet:
    """The images whose labels are used: those a file names, one a line, or the same share of every class."""
    assert train.labels is not None
    if names is None:
        labels = train.labels.numpy()
        alone = np.bincount(labels)[labels] == 1  # the only image of its class
        return part(train, torch.from_numpy(held_out(labels, fraction, seed) | alone).nonzero()[:, 0])
    try:
        lines = names.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list {str(names)!r} cannot be read: {error}") from error
    if not train.files:
        raise UserError(f"{train.name} has no file names, so no list can choose from it; leave --list out")
    wanted = [line.strip() for line in lines if line.strip()]
    by_name: dict[str, list[int]] = {}
    for i, file in enumerate(train.files):
        by_name.setdefault(Path(file).name, []).append(i)
        within = file.split("/", 1)[-1]  # a split's folder, if there is one
        if "/" in within:
            by_name.setdefault(within, []).append(i)
    by_name |= {file: [i] for i, file in enumerate(train.files)}
    unknown = [name for name in wanted if name not in by_name]
    if unknown or not wanted:
        what = f"names {unknown[0]!r}" if unknown else "is empty"
        if unknown and any(file == unknown[0] or file.endswith(f"/{unknown[0]}") for file in tested):
            what += ", which is tested on"
        raise UserError(
            f"the list {str(names)!r} {what}; it takes names of training images such as {train.files[0]!r}"
        )
    for name in wanted:
        if len(by_name[name]) > 1:
            first, second = (train.files[i] for i in by_name[name][:2])
            raise UserError(
                f"the list {str(names)!r} names {name!r}, which is {first!r} or {second!r}; "
                "name it with its folder"
            )
    return part(train, torch.tensor(sorted({by_name[name][0] for name in wanted})))


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
        sets = hold_out(labelled, settings.validation, settings.seed)
    except UserError as error:
        more = f"fraction is {settings.fraction:g}; give more" if names is None else "list more images"
        raise UserError(f"{error}; {more}") from error
    temperatures = settings.temperatures if layer == "sem" else (None,)
    trials = [
        Trial(lr, None, temperature, epochs)
        for epochs in settings.epochs
        for lr in settings.lrs
        for temperature in temperatures
    ]
    chosen, model, rows = search(run, *sets, trials, settings, network, quiet)
    assert test.labels is not None
    scores = tested(run, model, test.images)
    several = scores.shape[1] > 5  # of five classes, five guesses are all
    top5 = int((scores.topk(5).indices == test.labels[:, None]).sum()) if several else None
    drawn = f"class-balanced, drawn from seed {settings.seed}; not the paper's list"
    return make_result(
        run,
        "semi-supervised, fine-tuned",
        train,
        test,
        network=network,
        layer=layer,
        **chosen.as_dict(),
        # what there was only one of was not chosen
        selected={key: v for key, v in chosen.as_dict().items() if len({row[key] for row in rows}) > 1},
        steps=chosen.length(len(labelled), settings.batch_size),
        **accuracies(scores.argmax(1), test.labels, top5),
        train_images=len(labelled),
        fraction=len(labelled) / len(train),
        labelled_images=len(labelled),
        labelled_list=drawn if names is None else names.name,
        list_file=None if names is None else names.name,
        list_digest=None if names is None else digest("\n".join(labelled.files)),
        validation_accuracy=max(row["validation_accuracy"] for row in rows),
        validation_images=len(sets[1]),
        tune_batch_size=settings.batch_size,
        weight_decay=settings.weight_decay,
        schedule="cosine",
        seeds=[settings.seed],
        changed=changed_settings(settings),
        trials=rows,
        seconds=time.monotonic() - start,
    )
