"""Linear probe: a grid of linear classifiers on frozen features, trained together, chosen on held-out data.

The paper's protocol: SGD with momentum 0.9, rate x0.1 at 60 % and 80 % of the epochs; rate, L1 weight and
temperature picked on 10 % of the training images; retrained on all of them; tested once.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.data.datasets import ImageSet, held_out
from simplicia.data.views import Views, ViewSettings
from simplicia.errors import UserError
from simplicia.evaluate.features import encoder_features, percent, result
from simplicia.methods.base import Network
from simplicia.run import Run, represent

NOTHING = 1e-15  # smaller than this is zero: denormal numbers make a CPU ten times slower
CACHE = 2**30  # bytes of representations kept rather than computed for each batch


@dataclass
class ProbeSettings:
    """How probes are trained. The grid is every lr with every L1 weight at every temperature."""

    lrs: tuple[float, ...] = (
        0.01,
        0.1,
        0.2,
        1.0,
        5.0,
    )  # the paper's .01 .1 .2, and more for small embeddings
    l1: tuple[float, ...] = (0.0, 1e-5)
    temperatures: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0)  # of SEM; 0: one-hot codes
    epochs: int = 100
    batch_size: int = 256
    validation: float = 0.1  # share of the training images to choose on
    augment: bool = False  # random crops and flips, each epoch anew; otherwise features are computed once
    seed: int = 0

    def validate(self) -> None:
        for name in ("lrs", "l1", "temperatures"):
            values = getattr(self, name)
            if not values or any(not v >= 0 for v in values):
                raise UserError(f"{name} is {values}; it takes one or more numbers that are not negative")
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError(
                f"epochs is {self.epochs} and batch_size {self.batch_size}; both must be at least 1"
            )
        if not 0 < self.validation < 1:
            raise UserError(f"validation is {self.validation}; it must be a share between 0 and 1")


def probe(
    run: Run,
    train: ImageSet,
    test: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
) -> dict[str, Any]:
    """Accuracy of the chosen probe, and of the best one at each temperature."""
    start = time.monotonic()
    settings = settings or ProbeSettings()
    settings.validate()
    layer = run.check_layer(layer)
    temperatures: tuple[float | None, ...] = settings.temperatures if layer == "sem" else (None,)
    wanted = "sem" if layer == "codes" else layer
    if layer == "codes":
        temperatures = (0.0,)
    net, classes = run.network(network), len(train.classes)
    assert train.labels is not None and test.labels is not None
    labels = train.labels.to(run.device)
    held = torch.from_numpy(held_out(train.labels.numpy(), settings.validation)).to(run.device)
    if not held.any():
        raise UserError(f"{train.name} has too few images of each class to hold some out for choosing")
    source = _Features(run, train.images, net, wanted, temperatures, settings, network)

    grid = [(lr, l1) for lr in settings.lrs for l1 in settings.l1]
    fit_on, choose_on = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
    candidates = _fit(source, fit_on, labels, classes, [grid] * len(temperatures), settings)
    scores = _correct(
        candidates, source.plain(choose_on), labels[choose_on], len(grid)
    )  # (temperatures, grid)
    best = scores.argmax(1).tolist()

    chosen = [[grid[i]] for i in best]
    everything = torch.arange(len(train), device=run.device)
    final = _fit(source, everything, labels, classes, chosen, settings)
    test_source = _Features(run, test.images, net, wanted, temperatures, settings, network)
    test_labels = test.labels.to(run.device)
    correct = _correct(final, test_source.plain(torch.arange(len(test), device=run.device)), test_labels, 1)[
        :, 0
    ]

    each = [
        {
            "temperature": tau,
            "lr": grid[i][0],
            "l1": grid[i][1],
            "validation_accuracy": 100 * scores[t, i].item() / len(choose_on),
            **percent(int(correct[t].item()), len(test)),
        }
        for t, (tau, i) in enumerate(zip(temperatures, best, strict=True))
    ]
    selected = max(each, key=lambda row: row["validation_accuracy"])
    return result(
        run,
        "offline linear probe",
        train,
        test,
        network=network,
        layer=layer,
        **selected,
        grid={"lrs": settings.lrs, "l1": settings.l1, "temperatures": temperatures},
        per_temperature=each if len(each) > 1 else [],
        epochs=settings.epochs,
        probe_batch_size=settings.batch_size,
        views="crop and flip" if settings.augment else "none",
        validation_images=len(choose_on),
        probe_seed=settings.seed,
        seconds=time.monotonic() - start,
    )


class _Features:
    """Inputs of the probes, (temperatures, batch, features), for training (maybe augmented) and testing."""

    def __init__(
        self,
        run: Run,
        images: Tensor,
        net: Network,
        layer: str,
        temperatures: tuple[float | None, ...],
        settings: ProbeSettings,
        network: str,
    ):
        self.net, self.layer, self.temperatures = net, layer, temperatures
        self.features = encoder_features(run, images, network)
        width = self._represent(self.features[:1]).shape[-1]
        self.cache: Tensor | None = None
        if len(temperatures) * len(images) * width * 4 <= CACHE:
            self.cache = torch.cat([self._represent(part) for part in self.features.split(256)], dim=1)
        self.views: Views | None = None
        if settings.augment:
            recipe = run.recipe
            crops = ViewSettings.crop_flip(recipe.views.crop_scale)
            self.images = images.to(run.device)
            self.views = Views(crops, recipe.image_size, tuple(run.state["mean"]), tuple(run.state["std"]))

    @torch.no_grad()
    def training(self, indices: Tensor) -> Tensor:
        if self.views is None:
            return self._plain(indices)
        return self._represent(self.net.encoder(self.views(self.images[indices])[0]).float())

    def plain(self, indices: Tensor, batch_size: int = 256) -> Any:
        """Batches without augmentation, in order."""
        return (self._plain(part) for part in indices.split(batch_size))

    def _plain(self, indices: Tensor) -> Tensor:
        return self._represent(self.features[indices]) if self.cache is None else self.cache[:, indices]

    @torch.no_grad()
    def _represent(self, features: Tensor) -> Tensor:
        layers = [represent(self.net, features, self.layer, tau).float() for tau in self.temperatures]
        return F.hardshrink(torch.stack(layers), NOTHING)


def _fit(
    source: _Features,
    indices: Tensor,
    labels: Tensor,
    classes: int,
    grids: list[list[tuple[float, float]]],  # per temperature: (lr, l1) of each probe
    settings: ProbeSettings,
) -> tuple[Tensor, Tensor]:
    """Weights (temperatures, features, probes * classes) and biases of all probes, trained together."""
    device = labels.device
    generator = torch.Generator().manual_seed(settings.seed)
    width = source.training(indices[:1]).shape[-1]
    probes = len(grids[0])
    columns = probes * classes
    weight = torch.zeros(len(grids), width, columns, device=device)
    bias = torch.zeros(len(grids), 1, columns, device=device)
    weight_velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    lr, l1 = (
        torch.tensor([[pair[i] for pair in grid for _ in range(classes)] for grid in grids], device=device)[
            :, None
        ]
        for i in (0, 1)
    )
    any_l1 = any(weight > 0 for grid in grids for _, weight in grid)
    torch.manual_seed(settings.seed)
    for epoch in range(settings.epochs):
        decay = 0.1 ** sum(epoch >= share * settings.epochs for share in (0.6, 0.8))
        order = indices[torch.randperm(len(indices), generator=generator).to(device)]
        for part in order.split(settings.batch_size):
            x = source.training(part)
            scores = torch.baddbmm(bias, x, weight).unflatten(-1, (probes, classes))
            # the gradient of the cross-entropy in its scores, for all probes at once
            error = torch.softmax(scores, -1)
            error = (error - F.one_hot(labels[part], classes)[:, None]).flatten(-2) / len(part)
            error = F.hardshrink(error, NOTHING)
            weight_velocity.baddbmm_(x.transpose(1, 2), error, beta=0.9)
            if any_l1:
                weight_velocity.addcmul_(weight.sign(), l1)
            bias_velocity.mul_(0.9).add_(error.sum(1, keepdim=True))
            weight.addcmul_(weight_velocity, lr, value=-decay)
            bias.addcmul_(bias_velocity, lr, value=-decay)
    return weight, bias


def _correct(probes: tuple[Tensor, Tensor], batches: Any, labels: Tensor, count: int) -> Tensor:
    """How many images each probe gets right: (temperatures, probes)."""
    weight, bias = probes
    right = torch.zeros(len(weight), count, dtype=torch.long, device=labels.device)
    start = 0
    for x in batches:
        guesses = torch.baddbmm(bias, x, weight).unflatten(-1, (count, -1)).argmax(-1)  # (T, batch, probes)
        right += (guesses == labels[start : start + x.shape[1], None]).sum(1)
        start += x.shape[1]
    return right
