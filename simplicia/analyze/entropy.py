"""How sparse are the simplices? Histograms of their entropies, as in the paper's section on pre-training."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from simplicia.sem import entropy


class EntropyHistogram:
    """Counts entropies of simplices in equal bins from 0 to ln V, batch by batch."""

    def __init__(self, vertices: int, bins: int = 100):
        self.vertices, self.bins, self.top = vertices, bins, math.log(vertices)
        self.counts: Any = 0  # tensors once there are simplices, on their device
        self.total: Any = 0

    def add(self, probabilities: Tensor) -> None:
        """Simplices (N, L*V)."""
        nats = entropy(probabilities, self.vertices).flatten()
        # rounding may lead past either end: those belong to the bin at that end
        bin = (nats * (self.bins / self.top if self.top else 0.0)).long().clamp_(0, self.bins - 1)
        self.counts += torch.bincount(bin, minlength=self.bins)
        self.total += nats.sum(dtype=torch.float64)

    def result(self) -> dict[str, Any]:
        """``counts`` of each bin, the bins' ``edges``, and the ``mean`` over ``count`` simplices, in nats."""
        if isinstance(self.counts, int):
            raise ValueError("there are no simplices to take the entropy of")
        count, edges = int(self.counts.sum()), [self.top * i / self.bins for i in range(self.bins + 1)]
        mean = self.total.item() / max(count, 1)
        return {"counts": self.counts.tolist(), "edges": edges, "count": count, "mean": mean}


def entropy_histogram(batches: Iterable[Tensor], vertices: int, bins: int = 100) -> dict[str, Any]:
    """The histogram of the entropies of simplices that come in batches (N, L*V), never all in memory."""
    histogram = EntropyHistogram(vertices, bins)
    for batch in batches:
        histogram.add(batch)
    return histogram.result()
