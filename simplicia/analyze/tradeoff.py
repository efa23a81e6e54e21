"""Theorem 1 on a run: its margin, the expressivity of its simplices, and the loss of a classifier on them.

The theorem's vectors lie in [-1, 1]. Those of a run do not, so they are divided by their largest magnitude;
the temperature is divided by it too, which leaves the softmax as it was.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.analyze.bound import expressivity, expressivity_base, expressivity_supremum, gap_term
from simplicia.data.datasets import ImageSet
from simplicia.errors import UserError
from simplicia.evaluate import logistic
from simplicia.evaluate.features import encoder_features
from simplicia.evaluate.logistic import Dense, Fit
from simplicia.provenance import versions
from simplicia.run import Run
from simplicia.sem import SimplicialEmbedding, simplicial

SAMPLES = 2000
SEED = 0
ROUNDS = 8  # of pairing images at random
ELEMENTS = 2**24  # of a batch of simplices held at once
Layer = Callable[[Tensor], Tensor]  # from the embedder's output to vectors of the same shape
MARGINS = {"least": 0, "percentile_1": 1, "median": 50}  # percentiles


@torch.no_grad()
def tradeoff(
    run: Run,
    train: ImageSet,
    test: ImageSet | None = None,
    temperatures: Sequence[float] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0),
    samples: int = SAMPLES,
    network: str = "online",
) -> dict[str, Any]:
    """Each term of Theorem 1 at each temperature, and without the softmax (temperature None).

    On at most ``samples`` images, paired at random several times: every simplex on whose code a pair agrees
    counts. With labels a logistic regression is trained (L2 penalty of weight 1, as scikit-learn has it) and
    tested, on the classes of those images.
    """
    start, run = time.monotonic(), run.in_64_bits()
    sem = run.network(network).bottleneck
    if not isinstance(sem, SimplicialEmbedding):
        raise UserError(f"{run.path} was trained without SEM; the theorem's terms are those of simplices")
    if sem.vertices < 2:
        raise UserError(f"{run.path} has simplices of 1 vertex; the theorem's margin needs at least 2")
    if not temperatures or any(not 0 < t < math.inf for t in temperatures):
        raise UserError(f"temperatures are {list(temperatures)}; each must be above 0")
    generator = torch.Generator().manual_seed(SEED)

    def sample(images: ImageSet) -> tuple[Tensor, Tensor | None]:  # images may be sorted by class
        chosen = torch.randperm(len(images), generator=generator)[:samples]
        features = encoder_features(run, images.images[chosen], network)
        return features, None if images.labels is None else images.labels[chosen].to(features.device)

    features, labels = sample(train)
    if len(features) < 2:
        raise UserError(f"{train.name} has {len(features)} image; pairs need at least 2")
    scale, gaps = _scale_and_gaps(sem, features)
    margins = {name: gaps[len(gaps) * percent // 100].item() for name, percent in MARGINS.items()}
    layers: list[Layer] = [lambda z: z / scale]
    layers += [lambda z, t=t: simplicial(z, sem.vertices, t) for t in temperatures]
    measured, agreeing = _largest_distances(sem, features, layers, generator)
    held = sample(test) if test is not None else None
    classes = torch.empty(0) if labels is None else labels.unique()  # the sample may lack some
    rows: list[dict[str, Any]] = []
    for temperature, layer, largest in zip([None, *temperatures], layers, measured, strict=True):
        row: dict[str, Any] = {"temperature": temperature, "measured": largest}
        if temperature is None:
            row["supremum"] = row["bound"] = expressivity_base(sem.vertices, margins["least"])
        else:
            point = sem.vertices, temperature / scale, margins["least"]
            row |= {"supremum": expressivity_supremum(*point), "bound": expressivity(*point)}
        if labels is not None:
            x, y = Dense(layer(sem.logits(features))), torch.searchsorted(classes, labels)
            (fitted,) = logistic.fit(x, y, len(classes), [1.0])
            row["train_loss"] = _loss(fitted, x, y)
            row["lipschitz"] = lipschitz(fitted.weight)
            if held is not None and held[1] is not None:
                known = torch.isin(held[1], classes)
                x, y = Dense(layer(sem.logits(held[0][known]))), torch.searchsorted(classes, held[1][known])
                row["test_loss"] = _loss(fitted, x, y)
            row["term"] = gap_term(largest, sem.simplices, row["lipschitz"])
        rows.append(row)
    return {
        "protocol": "Theorem 1 on data",
        "run": run.recipe.name,
        "dataset": train.name,
        "network": network,
        "simplices": sem.simplices,
        "vertices": sem.vertices,
        "pretrain_temperature": float(sem.temperature),
        "pretrain_step": run.step,
        "run_id": run.state.get("id"),
        "scale": scale,
        "margin": margins,
        "images": len(features),
        "agreeing_pairs": agreeing,
        "rows": rows,
        "seed": SEED,
        "seconds": time.monotonic() - start,
        **versions(run.device),
    }


def _batches(sem: SimplicialEmbedding, features: Tensor) -> Iterator[Tensor]:
    """The embedder's output, (batch, simplices * vertices)."""
    return map(sem.logits, features.split(max(1, ELEMENTS // sem.out_features)))


def _scale_and_gaps(sem: SimplicialEmbedding, features: Tensor) -> tuple[float, Tensor]:
    """The largest magnitude, and the sorted gaps between the largest component and the next, in its units."""
    largest, gaps = [], []
    for z in _batches(sem, features):
        first, second = z.unflatten(1, (-1, sem.vertices)).topk(2).values.unbind(-1)
        largest.append(z.abs().amax())
        gaps.append((first - second).flatten())
    scale = torch.stack(largest).amax()
    return scale.item(), torch.cat(gaps).sort().values.double() / scale


def _largest_distances(
    sem: SimplicialEmbedding, features: Tensor, layers: list[Layer], generator: torch.Generator
) -> tuple[list[float], int]:
    """The largest squared distance of vectors with equal codes in each layer; and among how many pairs."""
    best = torch.zeros(len(layers), device=features.device)
    agreeing = torch.zeros((), dtype=torch.long, device=features.device)
    for _ in range(ROUNDS):
        order = torch.randperm(len(features), generator=generator).to(features.device)
        partners = features[order.roll(1)]
        for one, two in zip(_batches(sem, features[order]), _batches(sem, partners), strict=True):
            codes = [z.unflatten(1, (-1, sem.vertices)).argmax(-1) for z in (one, two)]
            same = codes[0] == codes[1]
            agreeing += same.sum()
            squares = (((f(one) - f(two)) ** 2).unflatten(1, (-1, sem.vertices)) for f in layers)
            best = torch.maximum(best, torch.stack([s.sum(-1).mul(same).amax() for s in squares]))
    return best.tolist(), int(agreeing)


def _loss(fitted: Fit, x: Dense, labels: Tensor) -> float:
    """The mean cross-entropy of a classifier."""
    return F.cross_entropy(x.times(fitted.weight) + fitted.bias, labels).item()


def lipschitz(weight: Tensor) -> float:
    """A Lipschitz constant of the loss of a linear classifier (features, classes): sqrt(2) times its norm."""
    return math.sqrt(2) * torch.linalg.matrix_norm(weight, 2).item()
