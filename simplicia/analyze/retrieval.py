"""Retrieval: which images share most codes with an image, and are they of its class?"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def nearest(codes: Tensor, queries: Tensor, k: int, vertices: int) -> tuple[Tensor, Tensor]:
    """The k other images with most codes in common with each query, and the share in common: (Q, k) both.

    ``codes`` are (N, L) integers, ``queries`` the indices of some of them. Of equally near images the lower
    index comes first. A sum over simplices of products of one-hot vectors, some simplices at a time.
    """
    n, simplices = codes.shape
    k = min(k, n - 1)
    shared = torch.zeros(len(queries), n, device=codes.device)
    for part in codes.split(max(1, 2**23 // (n * vertices)), dim=1):
        bank = F.one_hot(part.long(), vertices).float().flatten(1)
        shared.addmm_(bank[queries], bank.T)
    count = shared.round().long()
    count.scatter_(1, queries[:, None], -1)  # an image is not its own neighbour
    order = count * n + torch.arange(n - 1, -1, -1, device=codes.device)
    found = order.topk(k).indices
    return found, count.gather(1, found).double() / simplices


@torch.no_grad()
def nearest_by_cosine(features: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k other images of largest cosine with each query, and that cosine: what codes are compared with."""
    unit = F.normalize(features.float(), dim=1)
    cosine = unit[queries] @ unit.T
    cosine.scatter_(1, queries[:, None], -2.0)
    best = cosine.topk(min(k, len(features) - 1))
    return best.indices, best.values


def precision(found: Tensor, queries: Tensor, labels: Tensor, ks: list[int]) -> list[float]:
    """The mean share of a query's first k neighbours that have its label, for each k."""
    agree = (labels[found] == labels[queries][:, None]).double()
    return [agree[:, :k].mean().item() for k in ks]


def chance(labels: Tensor) -> float:
    """The precision of neighbours picked blindly: how often two images have the same label."""
    n = len(labels)
    counts = torch.bincount(labels).double()
    return ((counts * (counts - 1)).sum() / (n * (n - 1))).item()


def curves(
    found: Tensor, queries: Tensor, labels: Tensor, superclass: Tensor | None, ks: list[int]
) -> dict[str, Any]:
    """Precision by class and, where there are superclasses, by superclass."""
    by_super = None if superclass is None else precision(found, queries, superclass[labels], ks)
    return {"by_class": precision(found, queries, labels, ks), "by_superclass": by_super}
