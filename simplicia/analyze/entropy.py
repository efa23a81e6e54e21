"""How sparse are the simplices? Histograms of their entropies, as in the paper's section on pre-training."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from simplicia.sem import entropy


class EntropyHistogram:
    """Counts entropies of simplices in equal bins from 0 to ln V, batch by batch."""

    def __init__(self, vertices: int, bins: int = 100, device: torch.device | str = "cpu"):
        self.vertices, self.top = vertices, math.log(vertices)
        self.counts = torch.zeros(bins, dtype=torch.int64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, probabilities: Tensor) -> None:
        """Simplices (N, L*V)."""
        nats = entropy(probabilities, self.vertices).flatten()
        self.total += nats.sum(dtype=torch.float64)
        bins = len(self.counts)
        # rounding may lead past either end: those belong to the bin at that end
        place = (nats * (bins / self.top if self.top else 0.0)).long().clamp_(0, bins - 1)
        self.counts += torch.bincount(place, minlength=bins)

    def result(self) -> dict[str, Any]:
        """``counts`` of each bin, the bins' ``edges``, and the ``mean`` over ``count`` simplices, in nats."""
        count = int(self.counts.sum())
        bins = len(self.counts)
        return {
            "counts": self.counts.tolist(),
            "edges": [self.top * i / bins for i in range(bins + 1)],
            "count": count,
            "mean": self.total.item() / max(count, 1),
        }


def entropy_histogram(batches: Iterable[Tensor], vertices: int, bins: int = 100) -> dict[str, Any]:
    """The histogram of the entropies of simplices that come in batches (N, L*V), never all in memory."""
    histogram: EntropyHistogram | None = None
    for batch in batches:
        histogram = histogram or EntropyHistogram(vertices, bins, batch.device)
        histogram.add(batch)
    if histogram is None:
        raise ValueError("there are no simplices to take the entropy of")
    return histogram.result()
