"""Retrieval: the images most similar to a query, and how many of them are of its class."""

from collections.abc import Callable

import torch
from torch import Tensor

from simplicia.neighbours import overlap


@torch.no_grad()
def nearest(
    rows: Tensor, queries: Tensor, k: int, similarity: Callable[[Tensor, Tensor], Tensor] = overlap
) -> tuple[Tensor, Tensor]:
    """The k other images most similar to each query, and the similarity: (Q, k) both.

    ``rows`` are the codes (N, L) of all images, or features (N, D) with ``neighbours.cosine``; ``queries``
    the indices of some of them. Of equally similar images the lower index comes first.

    >>> codes = torch.tensor([[0, 1], [0, 1], [2, 2]])
    >>> nearest(codes, torch.tensor([0]), k=1)
    (tensor([[1]]), tensor([[1.]]))
    """
    scores = similarity(rows[queries], rows)
    scores.scatter_(1, queries[:, None], -torch.inf)  # an image is not its own neighbour
    values, indices = scores.sort(dim=1, descending=True, stable=True)
    k = min(k, len(rows) - 1)
    return indices[:, :k], values[:, :k]


def precision(neighbours: Tensor, queries: Tensor, labels: Tensor, ks: list[int]) -> list[float]:
    """The mean share of a query's first k neighbours that have its label, for each k."""
    agree = (labels[neighbours] == labels[queries][:, None]).double()
    return [agree[:, :k].mean().item() for k in ks]


def chance(labels: Tensor) -> float:
    """The precision of random neighbours: how often two images have the same label."""
    n = len(labels)
    counts = torch.bincount(labels).double()
    return ((counts * (counts - 1)).sum() / (n * (n - 1))).item()
