"""Fine-tuning: encoder, embedder and a new classifier trained on with labels, chosen on validation images.

The paper's protocol: 20,000 steps of 256 images, SGD with Nesterov momentum 0.9, seven learning rates from
1e-4 to 0.1, crops and flips, temperature 1; the best rate on validation trained again on all, tested once.
The paper names neither schedule nor weight decay: the rate falls by a cosine to 0, and the weight decay is 0.
"""

import copy
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from simplicia.evaluate.transfer import Splits, accuracies
from simplicia.progress import Progress
from simplicia.result import Result
from simplicia.run import Run
from simplicia.sem import simplicial
from simplicia.settings import check_seed

# three a decade, rounded so that the ends are what they are called
LRS = tuple(float(f"{lr:.6g}") for lr in np.geomspace(1e-4, 0.1, 7))


@dataclass
class FinetuneSettings:
    """How a run is fine-tuned."""

    lrs: tuple[float, ...] = LRS
    steps: int = 20_000
    batch_size: int = 256
    temperature: float = 1.0  # of SEM
    weight_decay: float = 0.0
    crop_scale: tuple[float, float] = (0.08, 1.0)  # share of the image's area
    validation: float = 0.1  # share of each class to choose on, where a set has no val split
    seed: int = 0

    def validate(self) -> None:
        check_numbers(self, positive=("lrs", "steps", "batch_size", "temperature"), others=("weight_decay",))


def check_numbers(settings: Any, positive: tuple[str, ...], others: tuple[str, ...]) -> None:
    """A UserError for the first setting of fine-tuning that is out of its range."""
    for name in positive + others:
        values = getattr(settings, name)
        each = values if isinstance(values, tuple | list) else (values,)
        lowest = 0 if name in others else math.nextafter(0, 1)
        if not each or not all(lowest <= value < math.inf for value in each):
            word = "not be negative" if name in others else "be above 0"
            raise UserError(f"{name} is {values}; it must {word}")
    if settings.batch_size == 1:
        raise UserError("batch_size is 1; BatchNorm needs at least 2 images")
    if not 0 < settings.validation < 1:
        raise UserError(f"validation is {settings.validation}; it must be a share between 0 and 1")
    if settings.seed < 0:
        raise UserError(f"seed is {settings.seed}; it must not be negative")
    check_seed(settings.seed)
    low, high = settings.crop_scale
    if not 0 < low <= high <= 1:
        raise UserError(f"crop_scale is {settings.crop_scale}; it must be (low, high), shares in order")


class Trial(NamedTuple):
    """What is tried: one training, of so many steps or epochs."""

    lr: float
    steps: int | None
    temperature: float | None  # None: the encoder's own output, without SEM
    epochs: int | None = None

    def length(self, images: int, batch_size: int) -> int:
        """The steps on so many images."""
        if self.epochs is None:
            assert self.steps is not None
            return self.steps
        return self.epochs * max(1, images // batch_size)

    def as_dict(self) -> dict[str, Any]:
        """What it says of itself in a result."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Classifier(nn.Module):
    """A copy of a run's encoder and, with a temperature, of its embedder; and a linear layer, freshly drawn.

    The softmax is taken here: a run with bottleneck "embed" has the embedder, but trained without a softmax.
    """

    def __init__(self, run: Run, classes: int, temperature: float | None, network: str = "online"):
        super().__init__()
        net: Any = run.network(network)
        self.encoder, self.temperature = copy.deepcopy(net.encoder), temperature
        self.bottleneck: Any = copy.deepcopy(net.bottleneck) if temperature is not None else None
        width = net.bottleneck.out_features if self.bottleneck is not None else net.encoder.out_features
        self.head = nn.Linear(width, classes)
        self.requires_grad_(True)  # a target network's parameters do not by themselves

    def forward(self, views: Tensor) -> Tensor:
        features = self.encoder(views)
        if self.bottleneck is not None and self.temperature is not None:
            logits = self.bottleneck.logits(features).float()
            features = simplicial(logits, self.bottleneck.vertices, self.temperature)
        return self.head(features)


def batch_norm_momentum(steps_per_epoch: int) -> float:
    """How much a batch moves BatchNorm's averages: 1 - max(1 - 10 / s, 0.9), as torch counts it."""
    return min(10 / steps_per_epoch, 0.1)


def tune(
    run: Run,
    images: Tensor,
    labels: Tensor,
    classes: int,
    trial: Trial,
    settings: Any,  # batch_size, weight_decay, crop_scale, seed
    network: str = "online",
    bar: Progress | None = None,
) -> Classifier:
    """A classifier trained on images: a function of its arguments alone, the seed among them."""
    with seeded(settings.seed, run.device):
        return _tune(run, images, labels, classes, trial, settings, network, bar)


def _tune(
    run: Run,
    images: Tensor,
    labels: Tensor,
    classes: int,
    trial: Trial,
    settings: Any,
    network: str,
    bar: Progress | None,
) -> Classifier:
    device, recipe = run.device, run.recipe
    on_gpu = device.type == "cuda"
    kind, batch_size = choose_loader(images, device), min(settings.batch_size, len(images))
    batches = kind(images, batch_size, settings.seed, device)
    labels = labels.to(device)
    model = Classifier(run, classes, trial.temperature, network).to(device).train()
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = batch_norm_momentum(batches.batches)
    views = Views(
        ViewSettings.crop_flip(settings.crop_scale),
        recipe.image_size,
        tuple(run.state["mean"]),
        tuple(run.state["std"]),
    )
    optimizer = torch.optim.SGD(
        model.parameters(), trial.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
    )
    steps = trial.length(len(images), settings.batch_size)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = trial.lr * (1 + math.cos(math.pi * step / steps)) / 2
        indices = batches.indices(step)
        (view,) = views(batches.images[batches.fetch(step, indices)])
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
    """Scores of images, in 32 bits; those of a model that diverged are not finite."""
    return torch.cat([model(run.view(part)).float() for part in images.split(batch_size)])


def tested(run: Run, model: Classifier, images: Tensor) -> Tensor:
    """Scores of test images, on the CPU; a UserError if the model diverged."""
    scores = predict(run, model, images).cpu()
    if not scores.isfinite().all():
        raise UserError(f"fine-tuning {run.path} on all images diverged; lower lrs would do")
    return scores


def search(
    run: Run,
    train: ImageSet,
    val: ImageSet,
    trials: list[Trial],
    settings: Any,
    network: str = "online",
    quiet: bool = True,
) -> tuple[Trial, Classifier, list[dict[str, Any]]]:
    """The trial with the best validation accuracy, trained again on all images. There is no test set here."""
    assert train.labels is not None and val.labels is not None
    if len(train) < 2:
        raise UserError(f"{train.name} has {len(train)} image to train on; BatchNorm needs at least 2")

    def trained(images: Tensor, labels: Tensor, trial: Trial, label: str) -> Classifier:
        bar = Progress(label, trial.length(len(images), settings.batch_size), 0, quiet)
        try:
            return tune(run, images, labels, len(train.classes), trial, settings, network, bar)
        finally:
            bar.close()

    rows: list[dict[str, Any]] = []
    for i, trial in enumerate(trials):
        model = trained(train.images, train.labels, trial, f"trial {i + 1} of {len(trials)}")
        scores = predict(run, model, val.images).cpu()
        right = (scores.argmax(1) == val.labels) & scores.isfinite().all(1)  # who diverged is never right
        rows.append({**trial.as_dict(), "validation_accuracy": 100 * right.double().mean().item()})
    best = trials[max(range(len(rows)), key=lambda i: rows[i]["validation_accuracy"])]
    images, labels = torch.cat([train.images, val.images]), torch.cat([train.labels, val.labels])
    return best, trained(images, labels, best, "on all images"), rows


def finetune(
    run: Run,
    sets: Splits,
    layer: str | None = None,
    settings: FinetuneSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Result:
    """Test accuracy of the fine-tuned run; through SEM if it has it, or only its encoder (``layer``)."""
    start = time.monotonic()
    settings = settings or FinetuneSettings()
    settings.validate()
    sets.check()
    layer = trainable_layer(run, layer)
    temperature = settings.temperature if layer == "sem" else None
    trials = [Trial(lr, settings.steps, temperature) for lr in settings.lrs]
    chosen, model, rows = search(run, sets.train, sets.val, trials, settings, network, quiet)
    assert sets.test.labels is not None
    guesses = tested(run, model, sets.test.images).argmax(1)
    return make_result(
        run,
        "transfer, fine-tuned",
        sets.train,
        sets.test,
        network=network,
        layer=layer,
        **chosen.as_dict(),
        selected={"lr": chosen.lr},
        **accuracies(guesses, sets.test.labels),
        train_images=len(sets.train) + len(sets.val),
        validation_accuracy=max(row["validation_accuracy"] for row in rows),
        validation_split="the set's own" if sets.val_is_own else "held out of the training images",
        validation_images=len(sets.val),
        skipped_files=sets.skipped,
        tune_batch_size=settings.batch_size,
        weight_decay=settings.weight_decay,
        schedule="cosine",
        seeds=[settings.seed],
        changed=changed_settings(settings),
        trials=rows,
        seconds=time.monotonic() - start,
    )


def trainable_layer(run: Run, layer: str | None) -> str:
    """The layer asked for, or "sem" if the run was trained with it, else "encoder"."""
    if layer is None:
        return "sem" if run.recipe.bottleneck == "sem" else "encoder"
    layer = run.check_layer(layer)
    if layer not in ("sem", "encoder"):  # no gradient passes through codes
        possible = " or ".join(repr(name) for name in ("sem", "encoder") if name in run.layers())
        raise UserError(f"layer {layer!r} cannot be fine-tuned; choose {possible}")
    return layer
