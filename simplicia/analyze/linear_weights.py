"""Linear classifiers whose weights the coherence is measured on.

One plain protocol for all layers, without a grid: cross-entropy, SGD with momentum 0.9 from zero, a cosine
decay to zero, on centred features (the bias absorbs the mean). The rate is in units of one over the layer's
largest variance, so that no layer is favoured by its scale. ``simplicia probe`` reports accuracies.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from simplicia.analyze.covariance_spectrum import spectrum
from simplicia.evaluate import sgd

RATE = 16
Layer = Callable[[Tensor], Tensor]  # computes a layer from a batch of encoder features
Layers = dict[str, Layer]


@dataclass
class Linear:
    """A classifier: scores are x @ weight + bias."""

    weight: Tensor  # (features, classes)
    bias: Tensor  # (classes,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


@torch.no_grad()
def fit_weights(
    features: Tensor,
    labels: Tensor,
    classes: int,
    layers: Layers,
    epochs: int = 20,
    batch_size: int = 256,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Linear]:
    """Train a linear classifier on each layer, all on the same batches; ``progress`` counts epochs."""
    labels, everything = labels.to(features.device), torch.arange(len(features), device=features.device)
    sample = features[:: math.ceil(len(features) / 1024)]  # strided: images may be sorted by class
    linears: dict[str, Linear] = {}
    done = 0

    def after_epoch() -> None:
        nonlocal done
        done += 1
        progress(done, epochs * len(layers))

    for name, layer in layers.items():
        x = layer(sample)
        mean, width = x.mean(0), x.shape[1]
        # the curvature of the cross-entropy is at first the largest variance over the number of classes
        rate = min(RATE, 3 * classes) / spectrum(x, top=1).float().clamp_min(1e-12)
        scale = rate.sqrt()  # scaling the inputs gives the weights this rate, and the bias a rate of 1

        def inputs(
            _: int, batch: Tensor, layer: Layer = layer, mean: Tensor = mean, scale: Tensor = scale
        ) -> Tensor:
            return ((layer(features[batch]) - mean) * scale)[None]

        weight, bias = sgd.train(
            inputs,
            width,
            everything,
            labels,
            classes,
            [[sgd.Rates(1.0)]],
            epochs=epochs,
            batch_size=batch_size,
            cosine=True,
            seed=seed,
            after_epoch=after_epoch,
        )
        weight = weight[0] * scale[:, None]
        linears[name] = Linear(weight, bias[0, 0] - mean @ weight)
    return linears


@torch.no_grad()
def accuracies(
    linears: dict[str, Linear], features: Tensor, labels: Tensor, layers: Layers, batch_size: int = 256
) -> dict[str, float]:
    """The accuracy of each classifier in percent."""
    labels, shares = labels.to(features.device), {}
    for name, linear in linears.items():
        guesses = [linear(layers[name](batch)).argmax(1) for batch in features.split(batch_size)]
        shares[name] = 100 * (torch.cat(guesses) == labels).double().mean().item()
    return shares
