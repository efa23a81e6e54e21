"""Multinomial logistic regression along a path of regularisers, on dense features or on codes.

The objective, for n samples with features x_i and labels y_i, is

    sum_i -log softmax(W x_i + b)[y_i]  +  (regulariser / 2) * |W|^2,        b unregularised,

which is ``sklearn.linear_model.LogisticRegression(C=1 / regulariser)``. (With two classes scikit-learn keeps
one weight vector w instead of -w/2 and w/2, and its C is 2 / regulariser.)

The objective depends on the features only through their inner products. With fewer samples than features,
"rotate" fits in the space that the samples span, where |W| is the same; with fewer features it rotates them
to their principal axes, which helps to converge. "direct" fits sets that are large both ways as they are:
instead of multiplying codes it gathers and sums rows of W, and likewise for the gradient. Both run in float64
on the features' device.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.errors import UserError, unknown
from simplicia.neighbours import one_hots
from simplicia.representation import sparse_codes

SOLVERS = ("auto", "rotate", "direct", "sklearn")
ROTATE = 8192  # largest eigenproblem that is affordable
TOLERANCE = 1e-7  # distance to the optimum, relative to the loss
CHOOSING = 1e-4  # the same while choosing a regulariser: validation accuracies settle much earlier
STEPS, MOST_STEPS = 10, 5000  # of L-BFGS: between two tests for convergence, and in total
BLOCK = 2**26  # numbers in a temporary block of one-hot codes
PIECE = 2**27  # codes gathered per call: offsets are 32-bit


class Codes:
    """A one-hot matrix (samples, simplices * vertices), stored as integer codes (samples, simplices)."""

    def __init__(self, codes: Tensor, vertices: int):
        self.vertices, self.device = vertices, codes.device
        offsets = torch.arange(codes.shape[1], device=codes.device, dtype=torch.int32) * vertices
        self.columns = codes.int() + offsets  # of the ones
        self.shape = (len(codes), codes.shape[1] * vertices)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def join(self, other: "Codes") -> "Codes":
        return Codes(torch.cat([self.columns, other.columns]) % self.vertices, self.vertices)

    def times(self, weight: Tensor) -> Tensor:
        """X weight: for each sample, the sum of the rows that its codes select."""
        parts = self.columns.split(max(1, PIECE // self.columns.shape[1]))
        return torch.cat([F.embedding_bag(part, weight, mode="sum") for part in parts])

    def transposed_times(self, errors: Tensor) -> Tensor:
        """X^T errors: for each feature, the sum of the rows of the samples that have it."""
        if not self._rows:
            step = max(1, PIECE // len(self.columns))  # simplices
            counts = self.squares().split(step * self.vertices)
            for part, count in zip(self.columns.split(step, 1), counts, strict=True):
                order = part.argsort(0).T.flatten().int()  # samples, by simplex, then by code
                self._rows.append((order, F.pad(count.cumsum(0)[:-1], (1, 0)).int()))
        return torch.cat([F.embedding_bag(order, errors, start, mode="sum") for order, start in self._rows])

    def squares(self) -> Tensor:
        """The sum of squares of each feature: how many samples have it."""
        counts = torch.zeros(self.shape[1], dtype=torch.float64, device=self.device)
        for part in self.columns.split(256):
            counts += torch.bincount(part.flatten(), minlength=self.shape[1])
        return counts

    def inner(self, other: "Codes") -> Tensor:
        """How many codes each pair shares; integers, so exact in float32."""
        total = torch.zeros(self.shape[0], other.shape[0], device=self.device)
        step = max(1, BLOCK // (sum(total.shape) * self.vertices))
        for some, others in zip(self.columns.split(step, 1), other.columns.split(step, 1), strict=True):
            dense, others_dense = (one_hots(m % self.vertices, self.vertices) for m in (some, others))
            total.addmm_(dense, others_dense.T)
        return total.double()

    def sparse(self) -> Any:
        """The matrix in scipy's format."""
        return sparse_codes(self.columns % self.vertices, self.vertices)


class Dense:
    """Dense features with the interface of `Codes`."""

    def __init__(self, features: Tensor):
        self.features, self.device = features.double(), features.device
        self.shape = tuple(features.shape)

    def join(self, other: "Dense") -> "Dense":
        return Dense(torch.cat([self.features, other.features]))

    def times(self, weight: Tensor) -> Tensor:
        return self.features @ weight

    def transposed_times(self, errors: Tensor) -> Tensor:
        return self.features.T @ errors

    def squares(self) -> Tensor:
        return self.features.square().sum(0)

    def inner(self, other: "Dense") -> Tensor:
        return self.features @ other.features.T

    def sparse(self) -> Any:
        return self.features.cpu().numpy()


Matrix = Codes | Dense


class Fit(NamedTuple):
    """A fitted classifier: ``features.times(weight) + bias`` are its scores."""

    weight: Tensor  # (features, classes)
    bias: Tensor  # (classes,)
    loss: float  # the objective above
    converged: bool


def fit(
    matrix: Matrix, labels: Tensor, classes: int, regularisers: Sequence[float], solver: str = "auto"
) -> Iterator[Fit]:
    """Fit each regulariser, starting from the fit before it: give the strongest first."""
    rotated, fits = _fits(matrix, labels, classes, regularisers, solver, TOLERANCE)
    return map(rotated.back, fits) if rotated else fits


def predict_along(
    matrix: Matrix, labels: Tensor, classes: int, regularisers: Sequence[float], solver: str, other: Matrix
) -> Iterator[tuple[Tensor, bool]]:
    """For each regulariser, strongest first: the classes of other samples, and whether the fit converged."""
    rotated, fits = _fits(matrix, labels, classes, regularisers, solver, CHOOSING)
    other = rotated.rotate(other) if rotated else other
    for fitted in fits:
        yield (other.times(fitted.weight) + fitted.bias).argmax(1), fitted.converged


def _fits(
    matrix: Matrix, labels: Tensor, classes: int, regularisers: Sequence[float], solver: str, tolerance: float
) -> "tuple[Rotated | None, Iterator[Fit]]":
    """The rotation, if there is one, and the fits of what it rotated."""
    solver = choose_solver(matrix, labels, classes, solver)
    if solver == "sklearn":
        return None, _sklearn(matrix, labels, classes, regularisers)
    rotated = Rotated(matrix) if solver == "rotate" else None
    return rotated, solve(rotated.train if rotated else matrix, labels, classes, regularisers, tolerance)


def choose_solver(matrix: Matrix, labels: Tensor, classes: int, solver: str = "auto") -> str:
    """Resolve "auto"; a UserError for data that no solver can fit."""
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    missing = (torch.bincount(labels, minlength=classes) == 0).sum().item()
    if missing:
        raise UserError(f"{missing} of {classes} classes have no sample to fit; each needs at least one")
    if isinstance(matrix, Dense) and (bad := (~matrix.features.isfinite()).any(1).sum().item()):
        raise UserError(f"the features of {bad} of {len(labels)} samples are not finite numbers")
    side = matrix.shape[0] if isinstance(matrix, Codes) else min(matrix.shape)
    return solver if solver != "auto" else "rotate" if side <= ROTATE else "direct"


class Rotated:
    """Centred samples in the space they span, or in their principal axes, and the way there and back."""

    def __init__(self, matrix: Any):
        self.matrix, self.mean = matrix, _mean(matrix)
        self.by_samples = isinstance(matrix, Codes) or matrix.shape[0] <= matrix.shape[1]
        if self.by_samples:
            inner = matrix.inner(matrix)
            self.row_mean, self.mean_inner = inner.mean(0), inner.mean()
            square = inner - self.row_mean - self.row_mean[:, None] + self.mean_inner
        else:
            centred = matrix.features - self.mean
            square = centred.T @ centred
        values, vectors = torch.linalg.eigh(square)
        nonzero = values > values[-1] * len(values) * torch.finfo(torch.float64).eps
        lengths = values[nonzero].sqrt()
        # maps inner products with the samples, or the features themselves, to the new axes
        self.axes = vectors[:, nonzero] / lengths if self.by_samples else vectors[:, nonzero]
        self.train = Dense(vectors[:, nonzero] * lengths) if self.by_samples else self.rotate(matrix)

    def rotate(self, other: Any) -> Dense:
        """Express other samples in the same axes."""
        if not self.by_samples:
            return Dense((other.features - self.mean) @ self.axes)
        inner = other.inner(self.matrix)
        return Dense((inner - inner.mean(1, keepdim=True) - self.row_mean + self.mean_inner) @ self.axes)

    def back(self, fit: Fit) -> Fit:
        """Turn a fit in the new axes into one for the features."""
        weight = self.axes @ fit.weight
        if self.by_samples:
            weight = self.matrix.transposed_times(weight)
        return fit._replace(weight=weight, bias=fit.bias - self.mean @ weight)


def solve(
    matrix: Matrix, labels: Tensor, classes: int, regularisers: Sequence[float], tolerance: float = TOLERANCE
) -> Iterator[Fit]:
    """Fit by L-BFGS with a strong Wolfe line search, starting from the fit before.

    Features are centred, which only changes b, and scaled by the curvature at the end of the last fit. The
    objective is `regulariser`-convex in W, so |gradient|^2 / (2 regulariser) bounds the distance to the
    optimum. A fit has converged when this bound, with a similar one for b, is below `tolerance` of the loss,
    or when the loss stops falling and a bound from the curvature is.
    """
    n, mean, target = len(labels), _mean(matrix), labels[:, None]
    spread = (matrix.squares() - n * mean.square()).clamp(min=0)
    prior = (torch.bincount(labels, minlength=classes).double() / n).log()
    point = torch.cat([prior.new_zeros(matrix.shape[1], classes), prior[None]])  # W, and below it b
    curvature = prior.new_tensor(1 / classes)  # mean of p (1 - p)

    def evaluate(point: Tensor, regulariser: float) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, its gradient and the curvature."""
        weight, bias = point[:-1], point[-1]
        scores = matrix.times(weight) - mean @ weight + bias
        above = scores - scores.gather(1, target)  # the right class
        most = above.amax(1, keepdim=True)  # at least 0
        wrong = (above - most).exp().scatter(1, target, 0.0)
        # sum up 1 - p of the right class instead of subtracting: it may be far below the precision of p
        excess, right = wrong.sum(1, keepdim=True), (-most).exp()
        errors = (wrong / (right + excess)).scatter(1, target, -excess / (right + excess))
        loss = (most + torch.log1p(torch.expm1(-most) + excess)).sum()
        loss = loss + regulariser / 2 * weight.square().sum()
        total = errors.sum(0)
        gradient = matrix.transposed_times(errors) - mean[:, None] * total + regulariser * weight
        return loss, torch.cat([gradient, total[None]]), (errors.abs() * (1 - errors.abs())).mean()

    last = point
    options: dict[str, Any] = {"history_size": 20, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    for i, regulariser in enumerate(regularisers):
        start = point
        if i > 1:  # extrapolate: weights are nearly linear in the logarithm of the regulariser
            two, one = regularisers[i - 2 : i]
            ratio = math.log(regulariser / one) / math.log(one / two) if one != two else 0.0
            ahead = start + ratio * (start - last)
            if evaluate(ahead, regulariser)[0] < evaluate(start, regulariser)[0]:
                point = ahead
        last = start
        scale = torch.cat([regulariser + spread * curvature, n * curvature[None]]).rsqrt()[:, None]
        scaled = point / scale
        optimizer = torch.optim.LBFGS([scaled], max_iter=STEPS, line_search_fn="strong_wolfe", **options)

        def closure(v: Tensor = scaled, s: Tensor = scale, r: float = regulariser) -> Tensor:
            loss, gradient, _ = evaluate(v * s, r)
            v.grad = gradient * s
            return loss

        before, converged = torch.inf, False
        for _ in range(0, MOST_STEPS, STEPS):
            optimizer.step(closure)
            point = scaled * scale
            loss, gradient, curvature = evaluate(point, regulariser)
            weight_gap = gradient[:-1].square().sum() / (2 * regulariser)
            gap = weight_gap + gradient[-1].square().sum() / (n * curvature)
            if not loss < before:
                gap = (gradient * scale).square().sum()
            converged = bool(gap <= tolerance * loss)
            if converged or not loss < before:
                break
            before = loss.item()
        yield Fit(point[:-1], point[-1] - mean @ point[:-1], loss.item(), converged)


def _mean(matrix: Matrix) -> Tensor:
    ones = torch.ones(matrix.shape[0], 1, dtype=torch.float64, device=matrix.device)
    return matrix.transposed_times(ones)[:, 0] / len(ones)


def _sklearn(matrix: Matrix, labels: Tensor, classes: int, regularisers: Sequence[float]) -> Iterator[Fit]:
    """Fit by scikit-learn, codes as a sparse matrix."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    x, y = matrix.sparse(), labels.cpu().numpy()
    model = LogisticRegression(tol=1e-8, max_iter=MOST_STEPS, warm_start=True)
    for regulariser in regularisers:
        model.set_params(C=(2 if classes == 2 else 1) / regulariser)
        with warnings.catch_warnings():  # the fit records whether it converged
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x, y)
        weight, bias = (torch.from_numpy(v).to(matrix.device) for v in (model.coef_.T, model.intercept_))
        if classes == 2:
            weight, bias = torch.cat([-weight, weight], 1) / 2, torch.cat([-bias, bias]) / 2
        weight, bias = weight.double().contiguous(), bias.double()
        scores = matrix.times(weight) + bias
        loss = F.cross_entropy(scores, labels, reduction="sum") + regulariser / 2 * weight.square().sum()
        yield Fit(weight, bias, loss.item(), int(model.n_iter_.max()) < MOST_STEPS)
