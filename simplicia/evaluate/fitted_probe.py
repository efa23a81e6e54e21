"""Linear probes that predict the labels of any images: by SGD as in ``probe``, or as in ``transfer``.

Neither maker is given a test image.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simplicia.data.datasets import ImageSet
from simplicia.evaluate.linear import Probes, fast_products, rows
from simplicia.evaluate.make_result import changed_settings
from simplicia.evaluate.probe import ProbeSettings, fit, progress_bar
from simplicia.evaluate.transfer import TransferSettings, default_layer, fitted, hold_out, shown_temperature
from simplicia.representation import represent
from simplicia.run import Run


@dataclass
class Probe:
    """Linear classifiers of a layer, one for each seed, and what a result says of them."""

    run: Run
    network: str
    layer: str
    temperature: float | None
    classifiers: Probes  # weight (1, features, seeds * classes), bias
    classes: int
    kind: str
    about: dict[str, Any]

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Of a batch of uint8 images: (seeds, N, classes)."""
        net: Any = self.run.network(self.network)
        weight = self.classifiers.weight
        h = represent(net, net.encoder(self.run.view(images)).float(), self.layer, self.temperature)
        h = h.to(weight.device)
        x = rows(h, net.bottleneck.vertices) if self.layer == "codes" else h.to(weight.dtype)[None]
        with fast_products(weight.device):
            return self.classifiers.scores(x)[0].unflatten(-1, (-1, self.classes)).transpose(0, 1)

    def correct(self, images: Tensor, labels: Tensor, among: Tensor | None = None) -> list[int]:
        """How many images each classifier has right, guessed among some of the classes (None: all)."""
        weight = self.classifiers.weight
        left_out = torch.zeros(self.classes, dtype=torch.bool, device=weight.device)
        if among is not None:
            left_out[:] = True
            left_out[among.to(weight.device)] = False
        right = torch.zeros(weight.shape[-1] // self.classes, dtype=torch.long, device=weight.device)
        for x, y in zip(images.split(256), labels.to(weight.device).split(256), strict=True):
            right += (self.scores(x).masked_fill(left_out, -torch.inf).argmax(-1) == y).sum(1)
        return right.tolist()


def by_sgd(
    run: Run,
    train: ImageSet,
    layer: str | None = None,
    settings: ProbeSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Probe:
    """The probe that ``probe`` reports: of all temperatures and rates the best on held-out images."""
    settings, layer = settings or ProbeSettings(), run.check_layer(layer)
    with progress_bar(layer, settings, quiet) as progress:
        found = fit(run, train, layer, settings, network, progress)
    weight, bias = (
        torch.cat([part[found.best] for part in parts], -1)[None] for parts in zip(*found.probes, strict=True)
    )
    return Probe(
        run,
        network,
        layer,
        found.temperatures[found.best],
        Probes(weight, bias),
        found.classes,
        "linear probe by SGD",
        found.training() | found.at(found.best),
    )


def by_logistic(
    run: Run,
    train: ImageSet,
    layer: str | None = None,
    temperature: float | None = None,
    settings: TransferSettings | None = None,
    network: str = "online",
    quiet: bool = True,
) -> Probe:
    """Logistic regression with the regulariser that is best on held-out images."""
    settings, layer = settings or TransferSettings(), default_layer(run, layer, temperature)
    settings.validate()
    fit_on, choose_on = hold_out(train, settings.validation, settings.seed)
    chosen = fitted(run, fit_on, choose_on, layer, temperature, settings, network, quiet)
    temperature = shown_temperature(run, layer, temperature, network)
    return Probe(
        run,
        network,
        layer,
        temperature,
        Probes(chosen.fit.weight[None], chosen.fit.bias[None, None]),
        len(train.classes),
        "logistic regression",
        {
            "network": network,
            "layer": layer,
            "temperature": temperature,
            **chosen.as_dict(),
            "validation_images": len(choose_on),
            "seeds": [settings.seed],
            "changed": changed_settings(settings),
        },
    )
