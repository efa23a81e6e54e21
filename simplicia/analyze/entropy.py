"""How sparse are the simplices? Histograms of their entropies, as in the paper's section on pre-training."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from simplicia.sem import entropy


def entropy_histogram(batches: Iterable[Tensor], vertices: int, bins: int = 100) -> dict[str, Any]:
    """Count the entropies of simplices that come in batches (N, L*V), in equal bins from 0 to ln V.

    Returns ``counts`` of each bin, the bins' ``edges``, and the ``mean`` over ``count`` simplices, in nats.

    >>> histogram = entropy_histogram([torch.full((2, 4), 0.5)], vertices=2, bins=4)
    >>> histogram["counts"], round(histogram["mean"], 4)
    ([0, 0, 0, 4], 0.6931)
    """
    top = math.log(vertices)
    counts: Any = 0  # tensors once there are simplices, on their device
    total: Any = 0
    for batch in batches:
        nats = entropy(batch, vertices).flatten()
        # rounding may lead past either end: those belong to the bin at that end
        bin = (nats * (bins / top if top else 0.0)).long().clamp_(0, bins - 1)
        counts += torch.bincount(bin, minlength=bins)
        total += nats.sum(dtype=torch.float64)
    if isinstance(counts, int):
        raise ValueError("there are no simplices to take the entropy of")
    count, edges = int(counts.sum()), [top * i / bins for i in range(bins + 1)]
    return {"counts": counts.tolist(), "edges": edges, "count": count, "mean": total.item() / max(count, 1)}
