"""Weighted k-nearest-neighbour votes over features (Wu et al., https://arxiv.org/abs/1805.01978)."""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def vote(
    bank: Tensor,  # (N, D) features of labelled images
    labels: Tensor,  # (N,)
    queries: Tensor,  # (M, D)
    classes: int,
    k: int = 20,
    temperature: float = 0.07,
    chunk: int = 512,
) -> Tensor:
    """Scores (M, classes): a query's k nearest by cosine vote for their labels with weight exp(cos / T)."""
    bank = F.normalize(bank.float(), dim=-1)
    k = min(k, len(bank))
    scores = []
    for part in queries.split(chunk):
        similarity, nearest = (F.normalize(part.float(), dim=-1) @ bank.T).topk(k)
        weights = (
            (similarity - 1) / temperature
        ).exp()  # relative to a perfect match, so that nothing overflows
        votes = torch.zeros(len(part), classes, device=bank.device)
        scores.append(votes.scatter_add_(1, labels.to(bank.device)[nearest], weights))
    return torch.cat(scores)


@torch.no_grad()
def overlap(queries: Tensor, bank: Tensor, chunk: int = 64) -> Tensor:
    """Share of simplices whose codes agree: (M, L) and (N, L) integers -> (M, N) from 0 to 1."""
    agree = [(part[:, None] == bank).float().mean(-1) for part in queries.split(chunk)]
    return torch.cat(agree)
