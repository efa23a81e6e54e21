"""Retrieval: the images that share most codes with a query, and how many of them are of its class."""

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
    neighbours = order.topk(k).indices
    return neighbours, count.gather(1, neighbours).double() / simplices


@torch.no_grad()
def nearest_by_cosine(features: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k other images of largest cosine with each query, and that cosine: the baseline of the codes."""
    unit = F.normalize(features.float(), dim=1)
    cosine = unit[queries] @ unit.T
    cosine.scatter_(1, queries[:, None], -2.0)
    best = cosine.topk(min(k, len(features) - 1))
    return best.indices, best.values


def precision(neighbours: Tensor, queries: Tensor, labels: Tensor, ks: list[int]) -> list[float]:
    """The mean share of a query's first k neighbours that have its label, for each k."""
    agree = (labels[neighbours] == labels[queries][:, None]).double()
    return [agree[:, :k].mean().item() for k in ks]


def chance(labels: Tensor) -> float:
    """The precision of random neighbours: how often two images have the same label."""
    n = len(labels)
    counts = torch.bincount(labels).double()
    return ((counts * (counts - 1)).sum() / (n * (n - 1))).item()
