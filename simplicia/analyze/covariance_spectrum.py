"""How many directions does a representation use? The spectrum of its covariance."""

import math

import numpy as np
import torch
from torch import Tensor

from simplicia.analyze.report_data import LayerSpectrum
from simplicia.devices import seeded


@torch.no_grad()
def spectrum(features: Tensor, top: int | None = None) -> Tensor:
    """Singular values of the covariance of features (N, D), high to low: min(N, D) of them, float64.

    The covariance is (1/N) sum (z - mean)(z - mean)^T, as in the paper's appendix. Its singular values are
    those of the Gram matrix (N, N) as well, apart from zeros, so the smaller of the two is decomposed. With
    ``top``, only that many, by a randomised method: for when both N and D are large.

    >>> spectrum(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    if features.dim() != 2 or 0 in features.shape:
        raise ValueError(f"features are {tuple(features.shape)}; they must be (N, D), at least one of each")
    if top is not None and not 1 <= top <= min(features.shape):
        raise ValueError(f"top is {top}; it must be from 1 to {min(features.shape)}, the smaller of N and D")
    if features.device.type == "mps":  # it has no 64 bits
        features = features.cpu()
    n, d = features.shape
    if top is not None:
        centred = features.float() - features.float().mean(0)
        # a few more directions than asked for, and powers, make the last ones asked for accurate
        with seeded(0, centred.device):
            values = torch.svd_lowrank(centred, q=min(top + 20, n, d), niter=4)[1][:top]
        return values.double() ** 2 / n
    # in 64 bits, since the products are squares; a part at a time, since the features may fill memory
    mean = features.double().mean(0) if n >= d else None
    product = torch.zeros(min(n, d), min(n, d), dtype=torch.float64, device=features.device)
    for part in features.split(4096, dim=1 if n < d else 0):
        wide = part.double()
        wide -= wide.mean(0) if mean is None else mean
        product += wide @ wide.T if mean is None else wide.T @ wide
    return torch.linalg.eigvalsh(product / n).flip(0).clamp_min(0)


def effective_rank(values: Tensor) -> float:
    """How many directions are used: exp of the entropy of singular values (Roy & Vetterli 2007).

    ``values`` are of the covariance; their roots are, up to a factor, the singular values of the features,
    which is the definition the training log uses too.

    >>> round(effective_rank(torch.ones(5)), 6)
    5.0
    """
    roots = values.double().clamp_min(0).sqrt()
    shares = roots / roots.sum().clamp_min(1e-12)
    return math.exp(-(shares * shares.clamp_min(1e-12).log()).sum().item())


def layer_spectrum(layer: str, features: Tensor) -> LayerSpectrum:
    """The spectrum of a layer's features (N, D), and its effective rank."""
    values = spectrum(features)
    index, rank = spaced(len(values), 300), effective_rank(values)
    return LayerSpectrum(layer, features.shape[1], rank, len(values), index, values.cpu()[index].tolist())


def spaced(total: int, count: int) -> list[int]:
    """At most ``count`` indices below ``total``: all of the first third, then further and further apart."""
    if total <= count:
        return list(range(total))
    near = count // 3
    far = np.geomspace(near, total - 1, count - near + 1)[1:].round().astype(int)
    return sorted({*range(near), *far.tolist()})
