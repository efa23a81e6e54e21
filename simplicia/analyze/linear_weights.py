"""Linear classifiers whose weights the coherence is measured on.

One plain protocol for all layers, without a grid: cross-entropy, SGD with momentum 0.9 from zero, a cosine to
zero, on centred features (the bias takes up the mean), with a rate in units of one over the layer's largest
variance, so that no layer is favoured by its scale. Accuracies to report come from ``simplicia probe``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.analyze.covariance_spectrum import spectrum

RATE = 16
Represent = Callable[[Tensor], dict[str, Tensor]]  # a batch of features -> that batch in each layer


@dataclass
class Linear:
    """A classifier of centred features: scores are (x - mean) @ weight + bias."""

    weight: Tensor  # (features, classes)
    bias: Tensor  # (classes,)
    mean: Tensor  # (features,)

    def __call__(self, x: Tensor) -> Tensor:
        # the mean is taken off the scores: 65,000 features of a batch are not copied for it
        return torch.addmm(self.bias - self.mean @ self.weight, x, self.weight)


@torch.no_grad()
def fit_weights(
    features: Tensor,
    labels: Tensor,
    classes: int,
    represent: Represent,
    epochs: int = 20,
    batch_size: int = 256,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Linear]:
    """A linear classifier on each layer that ``represent`` makes of features, all from the same batches."""
    device = features.device
    labels = labels.to(device)
    first = represent(features[:: math.ceil(len(features) / 1024)])  # they may lie sorted by class
    found, rates, velocity = {}, {}, {}
    for name, x in first.items():
        mean = x.mean(0)
        # the cross-entropy's curvature: the largest variance of any direction over the number of classes
        # at first, and seldom much more later
        rates[name] = min(RATE, 3 * classes) / spectrum(x, top=1).float().clamp_min(1e-12)
        weight, bias = x.new_zeros(x.shape[1], classes), x.new_zeros(classes)
        found[name] = Linear(weight, bias, mean)
        velocity[name] = torch.zeros_like(weight), torch.zeros_like(bias)
    del first
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * math.ceil(len(features) / batch_size)
    done = 0
    for _ in range(epochs):
        for part in torch.randperm(len(features), generator=generator).to(device).split(batch_size):
            decay = 0.5 * (1 + math.cos(math.pi * done / steps))
            wanted = F.one_hot(labels[part], classes)
            for name, x in represent(features[part]).items():
                linear, (weight_velocity, bias_velocity) = found[name], velocity[name]
                # the gradient of the mean cross-entropy in its scores
                error = (torch.softmax(linear(x), 1) - wanted) / len(part)
                weight_velocity.addmm_(x.T, error, beta=0.9)
                weight_velocity.addr_(linear.mean, error.sum(0), alpha=-1)
                bias_velocity.mul_(0.9).add_(error.sum(0))
                linear.weight.sub_(weight_velocity * (rates[name] * decay))
                linear.bias.sub_(bias_velocity * decay)
            done += 1
            progress(done, steps)
    return found


@torch.no_grad()
def accuracies(
    found: dict[str, Linear], features: Tensor, labels: Tensor, represent: Represent, batch_size: int = 256
) -> dict[str, float]:
    """The share of images that each classifier gets right, in percent."""
    right = {name: torch.zeros((), dtype=torch.int64, device=features.device) for name in found}
    for part, wanted in zip(
        features.split(batch_size), labels.to(features.device).split(batch_size), strict=True
    ):
        for name, x in represent(part).items():
            right[name] += (found[name](x).argmax(1) == wanted).sum()
    return {name: 100 * count.item() / len(features) for name, count in right.items()}
