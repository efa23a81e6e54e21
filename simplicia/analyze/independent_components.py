"""Independent components of features: the control that SEM's coherent features are compared with."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from simplicia.errors import UserError


@dataclass(frozen=True)
class Ica:
    """A fitted transform: ``ica(features)`` gives the components of other features."""

    mean: Tensor  # (features,)
    weight: Tensor  # (components, features), whitening included
    converged: bool  # False: the components are those of the last iteration
    iterations: int

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean.to(features)) @ self.weight.to(features).T


def ica(features: Tensor, components: int, seed: int = 0, iterations: int = 500) -> tuple[Tensor, Ica]:
    """Components (N, components) of features (N, features), each of unit variance, and the fitted transform.

    scikit-learn's FastICA on whitened features. Components are known up to order and sign.
    """
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    if features.dim() != 2 or not features.is_floating_point() or not features.isfinite().all():
        given = f"{tuple(features.shape)} {features.dtype}"
        raise UserError(f"features are {given}; they must be (N, features), real and finite")
    samples, width = features.shape
    if not 1 <= components <= min(samples - 1, width):  # centred, N samples span N - 1 dimensions
        raise UserError(
            f"components is {components}; {samples} samples of {width} features have from 1 to "
            f"{min(samples - 1, width)}"
        )
    x = features.detach().double().cpu()
    rounding = max(x.shape) * torch.finfo(features.dtype).eps
    rank = int(torch.linalg.matrix_rank(x - x.mean(0), rtol=rounding))
    if components > rank:
        raise UserError(
            f"components is {components}, but the features vary in {rank} dimensions; give that or less"
        )
    solver = FastICA(components, whiten="unit-variance", random_state=seed, max_iter=iterations, tol=1e-4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        solver.fit(x.numpy())
    fitted = Ica(
        mean=torch.from_numpy(solver.mean_),
        weight=torch.from_numpy(solver.components_.copy()),
        converged=not any(issubclass(w.category, ConvergenceWarning) for w in said),
        iterations=int(solver.n_iter_),
    )
    return fitted(features.detach().double()).to(features.dtype), fitted
