"""Linear classifiers whose weights have a coherence, their graphs, and ICA, a baseline of SEM."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from simplicia.analyze.covariance_spectrum import spectrum
from simplicia.errors import UserError
from simplicia.evaluate import sgd

EPOCHS, EPOCHS_ON_CPU = 20, 10  # of the linear classifiers
RATE = 16
BATCH = 256
IMAGES, COMPONENTS = 5000, 128  # the time grows with the square of the number of components
Layer = Callable[[Tensor], Tensor]  # computes a layer from a batch of encoder features


@dataclass
class Linear:
    """A linear classifier on a layer."""

    layer: Layer
    weight: Tensor  # (features of the layer, classes)
    bias: Tensor  # (classes,)

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """In percent."""
        scores = (torch.addmm(self.bias, self.layer(batch), self.weight) for batch in features.split(BATCH))
        correct = torch.cat([part.argmax(1) for part in scores]) == labels.to(features.device)
        return 100 * correct.double().mean().item()


@torch.no_grad()
def fit_linear(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    classes: int,
    epochs: int,
    after_epoch: Callable[[], None] = lambda: None,
) -> Linear:
    """Train the linear classifier whose weights the coherence is measured on.

    One plain protocol for all layers, without a grid: cross-entropy, SGD with momentum 0.9 from zero, a
    cosine decay to zero, on centred features (the bias absorbs the mean). The rate is in units of one over
    the layer's largest variance, so that no layer is favoured by its scale. ``simplicia probe`` reports
    accuracies.
    """
    sample = layer(_strided(features, 1024))
    mean, width = sample.mean(0), sample.shape[1]
    # the curvature of the cross-entropy is at first the largest variance over the number of classes
    rate = min(RATE, 3 * classes) / spectrum(sample, top=1).float().clamp_min(1e-12)
    scale = rate.sqrt()  # scaling the inputs gives the weights this rate, and the bias a rate of 1
    weight, bias = sgd.train(
        lambda epoch, batch: ((layer(features[batch]) - mean) * scale)[None],
        width,
        torch.arange(len(features), device=features.device),
        labels.to(features.device),
        classes,
        [[sgd.Rates(1.0)]],
        epochs=epochs,
        batch_size=BATCH,
        cosine=True,
        after_epoch=after_epoch,
    )
    weight = weight[0] * scale[:, None]
    return Linear(layer, weight, bias[0, 0] - mean @ weight)


def _strided(features: Tensor, most: int) -> Tensor:
    """At most so many rows, evenly spread: images may be sorted by class."""
    return features[:: math.ceil(len(features) / most)]


@dataclass(frozen=True)
class Ica:
    """A fitted transform: ``ica(features)`` gives the components of other features."""

    mean: Tensor  # (features,)
    weight: Tensor  # (components, features), whitening included
    converged: bool  # False: the components are those of the last iteration

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) @ self.weight.to(features).T


def ica(features: Tensor, components: int, seed: int = 0, iterations: int = 500) -> tuple[Tensor, Ica]:
    """Components (N, components) of features (N, features), each of unit variance, and the fitted transform.

    scikit-learn's FastICA on whitened features. Components are known up to order and sign.
    """
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    given = f"{tuple(features.shape)} {features.dtype}"
    if features.dim() != 2 or not features.is_floating_point() or not features.isfinite().all():
        raise UserError(f"features are {given}; they must be (N, features), real and finite")
    rank = _dimensions(features)
    if not 1 <= components <= rank:
        raise UserError(
            f"components is {components}; features {given} vary in {rank} dimensions: give from 1 to {rank}"
        )
    solver = FastICA(components, whiten="unit-variance", random_state=seed, max_iter=iterations, tol=1e-4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(features.detach().double().cpu().numpy())
    mean, weight = torch.from_numpy(solver.mean_), torch.from_numpy(solver.components_.copy())
    fitted = Ica(mean, weight, not any(issubclass(w.category, ConvergenceWarning) for w in caught))
    return fitted(features.detach().double()).to(features.dtype), fitted


def encoder_ica(features: Tensor) -> Ica | None:
    """ICA of the encoder's features, or None if they are the same for every image."""
    some = _strided(features, IMAGES).double()
    count = min(_dimensions(some), COMPONENTS)
    return ica(some, count)[1] if count else None


def _dimensions(features: Tensor) -> int:
    """How many dimensions features vary in, up to rounding; N samples vary in N - 1 at most."""
    x, rounding = features.detach().double().cpu(), max(features.shape) * torch.finfo(features.dtype).eps
    return min(int(torch.linalg.matrix_rank(x - x.mean(0), rtol=rounding)), len(features) - 1)
