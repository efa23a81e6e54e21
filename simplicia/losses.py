"""The objectives of the seven methods as pure functions of tensors.

All compute in float32 (float64 for float64 inputs), also under autocast. They are correct across processes:
each process returns the loss of the global batch, and DDP's average is the gradient of the global batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.distributed import average, gather, rank, world_size


def widen(x: Any) -> Any:
    """Return 16-bit tensors in float32, everything else as it is."""
    return x.float() if isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x


def _full_precision(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run a loss outside autocast, with 16-bit inputs cast to float32."""

    @functools.wraps(loss)
    def wrapped(*args, **kwargs) -> Tensor:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if len(tensors) < 2 or tensors[0].shape != tensors[1].shape:
            shapes = " and ".join(str(tuple(x.shape)) for x in tensors[:2]) or "no tensors"
            raise ValueError(
                f"{loss.__name__} was given {shapes}; both views must have the same shape (N, D)"
            )
        with torch.autocast(tensors[0].device.type, enabled=False):
            return loss(*map(widen, args), **{k: widen(v) for k, v in kwargs.items()})

    return wrapped


@_full_precision
def nt_xent(z1: Tensor, z2: Tensor, temperature: float | Tensor = 0.2) -> Tensor:
    """SimCLR: each of the 2N embeddings must find its other view among the 2N - 1 others.

    -log( exp(cos(z_i, z_i')/T) / sum_{k != i} exp(cos(z_i, z_k)/T) ), mean over all anchors.

    >>> z = torch.eye(4)
    >>> nt_xent(z, z, temperature=0.2) < nt_xent(z, z.flip(0), temperature=0.2)
    tensor(True)
    """
    z1, z2 = F.normalize(z1, dim=-1), F.normalize(z2, dim=-1)
    gathered = torch.cat([gather(z1), gather(z2)])
    n, total = len(z1), len(z1) * world_size()
    index = rank() * n + torch.arange(n, device=z1.device)  # of this process's rows in the global batch
    logits = torch.cat([z1, z2]) @ gathered.T / temperature
    logits = logits.scatter(1, torch.cat([index, index + total])[:, None], float("-inf"))  # k != i
    return average(F.cross_entropy(logits, torch.cat([index + total, index])))


@_full_precision
def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float | Tensor = 0.2) -> Tensor:
    """MoCo: a query must find its key among the keys of a queue (D, K) with unit columns.

    -log( exp(cos(q, k)/T) / (exp(cos(q, k)/T) + sum_j exp(<q, queue_j>/T)) ); key and queue get no gradient.

    >>> info_nce(torch.eye(2), torch.eye(2), queue=torch.zeros(2, 3), temperature=1.0)
    tensor(0.7437)
    """
    query, key = F.normalize(query, dim=-1), F.normalize(key.detach(), dim=-1)
    positive = (query * key).sum(-1, keepdim=True)
    logits = torch.cat([positive, query @ queue.detach().to(query.dtype)], dim=1) / temperature
    return average(F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long, device=query.device)))


@_full_precision
def byol(prediction: Tensor, target: Tensor) -> Tensor:
    """BYOL, one direction: mean of 2 - 2 cos(prediction, target); the target gets no gradient.

    >>> byol(torch.eye(2), torch.eye(2)), byol(torch.eye(2), -torch.eye(2))
    (tensor(0.), tensor(4.))
    """
    return average(2 - 2 * F.cosine_similarity(prediction, target.detach(), dim=-1).mean())


@_full_precision
def barlow_twins(z1: Tensor, z2: Tensor, lamb: float = 0.0051, scale: float = 0.1) -> Tensor:
    """Barlow Twins: the two views' cross-correlation should be the identity.

    scale * ( sum_i (1 - C_ii)^2 + lamb * sum_{i != j} C_ij^2 ), C = s(z1)^T s(z2) / N, s standardising each
    feature over the batch (biased variance, eps 1e-5).

    >>> z = torch.randn(64, 8)
    >>> barlow_twins(z, z) < barlow_twins(z, z.flip(0))
    tensor(True)
    """
    z1, z2 = (F.batch_norm(gather(z), None, None, training=True, eps=1e-5) for z in (z1, z2))
    correlation = z1.T @ z2 / len(z1)
    on_diagonal = correlation.diagonal()
    off_diagonal = correlation.square().sum() - on_diagonal.square().sum()
    return scale * ((on_diagonal - 1).square().sum() + lamb * off_diagonal)


@_full_precision
def vicreg(z1: Tensor, z2: Tensor, sim: float = 25.0, var: float = 25.0, cov: float = 1.0) -> Tensor:
    """VICReg: equal views (invariance), features that vary (variance), uncorrelated features (covariance).

    sim * mse(z1, z2) + var * sum_views mean_d relu(1 - sqrt(Var_d + 1e-4))
    + cov * sum_views sum_{i != j} Cov_ij^2 / D

    >>> vicreg(torch.zeros(8, 4), torch.zeros(8, 4))  # collapsed: only the variance counts
    tensor(49.5000)
    """
    z1, z2 = gather(z1), gather(z2)
    if len(z1) < 2:
        raise ValueError("vicreg was given 1 sample; a variance needs at least 2")
    loss = sim * F.mse_loss(z1, z2)
    for z in (z1, z2):
        centred = z - z.mean(0)
        covariance = centred.T @ centred / (len(z) - 1)
        variance = covariance.diagonal()
        off_diagonal = covariance.square().sum() - variance.square().sum()
        loss = loss + var * F.relu(1 - (variance + 1e-4).sqrt()).mean() + cov * off_diagonal / z.shape[1]
    return loss


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Soft assignments (N, K) near softmax(scores / epsilon) that use all K prototypes equally.

    Computes in logarithms: exp(scores / epsilon) overflows float32 at a score of 4.4.

    >>> sinkhorn(torch.zeros(4, 2)).sum(1)
    tensor([1., 1., 1., 1.])
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.exp()


@_full_precision
def swav(
    scores1: Tensor,
    scores2: Tensor,
    temperature: float | Tensor = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
    queue1: Tensor | None = None,
    queue2: Tensor | None = None,
) -> Tensor:
    """SwAV: each view's prototype scores must predict the other's Sinkhorn assignment.

    Mean of the two swaps of -sum_k q_k log softmax(scores / T)_k. Queues are scores of earlier samples (the
    same in every process); they join the assignment only.

    >>> scores = torch.eye(3)
    >>> swav(scores, scores) < swav(scores, scores.flip(0))
    tensor(True)
    """

    def assign(scores: Tensor, queue: Tensor | None) -> Tensor:
        batch = gather(scores.detach())
        with_queue = batch if queue is None else torch.cat([batch, queue.detach().to(batch.dtype)])
        q = sinkhorn(with_queue, epsilon, iterations)[: len(batch)]
        return q.chunk(world_size())[rank()]

    def cross_entropy(assignment: Tensor, scores: Tensor) -> Tensor:
        return -(assignment * F.log_softmax(scores / temperature, dim=-1)).sum(-1).mean()

    q1, q2 = assign(scores1, queue1), assign(scores2, queue2)
    return average((cross_entropy(q1, scores2) + cross_entropy(q2, scores1)) / 2)


@_full_precision
def dino(
    student1: Tensor,
    student2: Tensor,
    teacher1: Tensor,
    teacher2: Tensor,
    center: Tensor,
    student_temperature: float | Tensor = 0.1,
    teacher_temperature: float | Tensor = 0.04,
) -> Tensor:
    """DINO: the student of one view must predict the centred, sharpened teacher of the other.

    Mean of the two crossed directions of -sum_k softmax((t - center)/T_t)_k log softmax(s/T_s)_k; the teacher
    gets no gradient.

    >>> s, center = torch.eye(3), torch.zeros(3)
    >>> dino(s, s, s, s, center) < dino(s, s, s.flip(0), s.flip(0), center)
    tensor(True)
    """

    def direction(teacher: Tensor, student: Tensor) -> Tensor:
        p = torch.softmax((teacher.detach() - center.detach()) / teacher_temperature, dim=-1)
        return -(p * F.log_softmax(student / student_temperature, dim=-1)).sum(-1).mean()

    return average((direction(teacher1, student2) + direction(teacher2, student1)) / 2)
