"""Weighted k-nearest-neighbour votes over features (Wu et al., https://arxiv.org/abs/1805.01978)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.progress import tracked

COMPARISONS = 2**27  # codes compared at a time
EXACT = 256  # bfloat16 is exact for integers up to this
ONE_HOT_VERTICES = 128  # up to this many, multiplying one-hots is faster on a CPU than comparing codes


def cosine(queries: Tensor, bank: Tensor) -> Tensor:
    """Cosine similarities: (M, D) and (N, D) -> (M, N)."""
    return F.normalize(queries.float(), dim=-1) @ F.normalize(bank.float(), dim=-1).T


@torch.no_grad()
def overlap(queries: Tensor, bank: Tensor) -> Tensor:
    """Share of simplices whose codes agree: (M, L) and (N, L) integers -> (M, N) from 0 to 1."""
    vertices = 1 + int(torch.stack([queries.amax(), bank.amax()]).max())
    if not bank.is_cuda and vertices > ONE_HOT_VERTICES:
        chunk = max(1, COMPARISONS // bank.numel())
        agree = torch.cat([(part[:, None] == bank).sum(-1) for part in queries.split(chunk)])
        return agree / bank.shape[1]
    dtype = torch.bfloat16 if bank.is_cuda else torch.float32
    agree = torch.zeros(len(queries), len(bank), device=bank.device)
    for some, others in zip(queries.split(EXACT, 1), bank.split(EXACT, 1), strict=True):
        agree += one_hots(some, vertices, dtype) @ one_hots(others, vertices, dtype).T
    return agree / bank.shape[1]


def one_hots(codes: Tensor, vertices: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (N, L) codes as (N, L * vertices)."""
    n, simplices = codes.shape
    columns = codes.long() + vertices * torch.arange(simplices, device=codes.device)
    return torch.zeros(n, simplices * vertices, dtype=dtype, device=codes.device).scatter_(1, columns, 1)


@torch.no_grad()
def nearest(
    bank: Tensor,  # (N, D)
    queries: Tensor,  # (M, D)
    k: int,
    similarity: Callable[[Tensor, Tensor], Tensor] = cosine,
    represent: Callable[[Tensor], Tensor] = lambda x: x,
    chunk: int = 2048,
) -> tuple[Tensor, Tensor]:
    """Return similarities and indices of each query's k nearest rows, both (M, k), computed in chunks.

    ``represent`` maps a chunk to the vectors to compare, so that a wide layer never exists for all images.
    """
    best = [(torch.empty(len(part), 0), torch.empty(len(part), 0)) for part in queries.split(chunk)]
    parts = tracked(bank.split(chunk), "comparing with images", len(bank))
    for start, rows in zip(range(0, len(bank), chunk), parts, strict=True):
        represented = represent(rows)
        for i, part in enumerate(queries.split(chunk)):
            scores = similarity(represent(part), represented)
            indices = torch.arange(start, start + len(rows), device=scores.device).expand_as(scores)
            all_scores = torch.cat([best[i][0].to(scores), scores], 1)
            all_indices = torch.cat([best[i][1].to(indices), indices], 1)
            top = all_scores.topk(min(k, all_scores.shape[1]))
            best[i] = top.values, all_indices.gather(1, top.indices)
    return torch.cat([scores for scores, _ in best]), torch.cat([indices for _, indices in best])


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

    Overlaps of codes are often equal. All images as near as the k-th share the votes that the nearer ones
    leave, so that the order of the images does not matter.
    """
    scores, indices = nearest(bank, queries, k, similarity, represent, chunk)
    weights = ((scores - scores[:, :1]) / temperature).exp()  # relative to the nearest, whose vote is 1
    votes = torch.zeros(len(queries), classes, device=scores.device)
    labels = labels.to(scores.device)
    if similarity is not overlap:
        return votes.scatter_add_(1, labels[indices], weights)
    last = scores[:, -1:]
    votes.scatter_add_(1, labels[indices], weights * (scores > last))
    ties = torch.zeros_like(votes)  # per class, the images exactly as near as the k-th
    parts = tracked(bank.split(chunk), "counting votes of images", len(bank))
    for rows, some in zip(parts, labels.split(chunk), strict=True):
        represented, one_hot = represent(rows), F.one_hot(some, classes)
        for count, kth, part in zip(ties.split(chunk), last.split(chunk), queries.split(chunk), strict=True):
            count += (similarity(represent(part), represented) == kth).to(ties) @ one_hot.to(ties)
    remaining = (scores == last).sum(1, keepdim=True)
    return votes + weights[:, -1:] * remaining * ties / ties.sum(1, keepdim=True)
