"""Weighted k-nearest-neighbour votes over features (Wu et al., https://arxiv.org/abs/1805.01978)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

COMPARED = 2**27  # codes compared at a time
EXACT = 256  # counts up to here are exact in 16 bits
FEW = 128  # vertices up to which a CPU multiplies one-hots faster than it compares codes


def cosine(queries: Tensor, bank: Tensor) -> Tensor:
    """(M, D) and (N, D) -> (M, N)."""
    return F.normalize(queries.float(), dim=-1) @ F.normalize(bank.float(), dim=-1).T


@torch.no_grad()
def overlap(queries: Tensor, bank: Tensor) -> Tensor:
    """Share of simplices whose codes agree: (M, L) and (N, L) integers -> (M, N) from 0 to 1."""
    vertices = 1 + int(torch.stack([queries.amax(), bank.amax()]).max())
    if bank.is_cuda or vertices <= FEW:
        return _by_products(queries, bank, vertices) / bank.shape[1]
    chunk = max(1, COMPARED // bank.numel())
    agree = [(part[:, None] == bank).sum(-1) for part in queries.split(chunk)]
    return torch.cat(agree) / bank.shape[1]


def _by_products(queries: Tensor, bank: Tensor, vertices: int) -> Tensor:
    """How many codes agree: products of one-hots, some simplices at a time."""
    kind = torch.bfloat16 if bank.is_cuda else torch.float32
    agree = torch.zeros(len(queries), len(bank), device=bank.device)
    for some, others in zip(queries.split(EXACT, 1), bank.split(EXACT, 1), strict=True):
        agree += _one_hots(some, vertices, kind) @ _one_hots(others, vertices, kind).T
    return agree


def _one_hots(codes: Tensor, vertices: int, kind: torch.dtype) -> Tensor:
    """(N, L) codes as (N, L * vertices)."""
    n, simplices = codes.shape
    places = codes.long() + vertices * torch.arange(simplices, device=codes.device)
    return torch.zeros(n, simplices * vertices, dtype=kind, device=codes.device).scatter_(1, places, 1)


@torch.no_grad()
def nearest(
    bank: Tensor,  # (N, D)
    queries: Tensor,  # (M, D)
    k: int,
    similarity: Callable[[Tensor, Tensor], Tensor] = cosine,
    represent: Callable[[Tensor], Tensor] = lambda x: x,
    chunk: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Similarity and index of each query's k nearest, (M, k), by chunks of both.

    ``represent`` turns a chunk into what is compared, so that a wide layer is never held for all images.
    """
    best = [(torch.empty(len(part), 0), torch.empty(len(part), 0)) for part in queries.split(chunk)]
    for start, rows in zip(range(0, len(bank), chunk), bank.split(chunk), strict=True):
        represented = represent(rows)
        for i, part in enumerate(queries.split(chunk)):
            found = similarity(represent(part), represented)
            places = torch.arange(start, start + len(rows), device=found.device).expand_as(found)
            values = torch.cat([best[i][0].to(found), found], 1)
            both = torch.cat([best[i][1].to(places), places], 1)
            top = values.topk(min(k, values.shape[1]))
            best[i] = top.values, both.gather(1, top.indices)
    similarities, indices = zip(*best, strict=True)
    return torch.cat(similarities), torch.cat(indices)


@torch.no_grad()
def vote(
    bank: Tensor,  # (N, D) features of labelled images
    labels: Tensor,  # (N,)
    queries: Tensor,  # (M, D)
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    similarity: Callable[[Tensor, Tensor], Tensor] = cosine,
    represent: Callable[[Tensor], Tensor] = lambda x: x,
    chunk: int = 2048,
) -> Tensor:
    """Scores (M, classes): a query's k nearest vote for their labels with weight exp(similarity / T).

    Overlaps have few values: all images that are as near as the k-th share the places that the nearer ones
    leave, so that the order of the images decides nothing.
    """
    found, indices = nearest(bank, queries, k, similarity, represent, chunk)
    weights = ((found - found[:, :1]) / temperature).exp()  # relative to the nearest, whose vote is 1
    votes = torch.zeros(len(queries), classes, device=found.device)
    labels = labels.to(found.device)
    if similarity is not overlap:
        return votes.scatter_add_(1, labels[indices], weights)
    last = found[:, -1:]
    votes.scatter_add_(1, labels[indices], weights * (found > last))
    ties = torch.zeros_like(votes)
    for rows, theirs in zip(bank.split(chunk), F.one_hot(labels, classes).split(chunk), strict=True):
        represented = represent(rows)
        for here, limit, part in zip(ties.split(chunk), last.split(chunk), queries.split(chunk), strict=True):
            here += (similarity(represent(part), represented) == limit).to(ties) @ theirs.to(ties)
    left = (found == last).sum(1, keepdim=True)
    return votes + weights[:, -1:] * left * ties / ties.sum(1, keepdim=True)
