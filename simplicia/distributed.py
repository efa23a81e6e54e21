"""Collectives with gradients for losses and queues; with one process each is the identity.

Every process returns the loss of the global batch. The gradients that reach a process's samples are scaled so
that DDP's average over processes is the gradient of the global batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _collective(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Keep a collective out of compiled code, and skip it with one process."""
    # torch.compiler.disable would import the compiler with this module, which doubles the time of the import
    eager = torch._disable_dynamo(function)

    @functools.wraps(function)
    def wrapped(x: Tensor) -> Tensor:
        return x if world_size() == 1 else eager(x)

    return wrapped


@_collective
def gather(x: Tensor) -> Tensor:
    """Return the rows of all processes in order of rank, with gradient; each has the same number of rows."""
    return _Gather.apply(x.contiguous())


@_collective
def average(x: Tensor) -> Tensor:
    """Return the mean over processes; each process keeps its own gradient, which DDP averages."""
    return _Average.apply(x)


@_collective
def agreed(x: Tensor) -> Tensor:
    """Return the values of process 0, in every process."""
    x = x.contiguous().clone()
    dist.broadcast(x, 0)
    return x


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)  # the loss of every process depends on all samples
        return grad.chunk(world_size())[rank()]


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().clone()
        dist.all_reduce(x)
        return x / world_size()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
