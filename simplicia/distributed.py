"""Collectives with gradients for losses and queues; with one process each is the identity.

Every process returns the loss of the global batch. The gradients that reach a process's samples are scaled so
that DDP's average over processes is the gradient of the global batch.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather(x: Tensor) -> Tensor:
    """The rows of all processes in order of rank, with gradient. Each process has the same number of rows."""
    return x if world_size() == 1 else _gathered(x)


def average(x: Tensor) -> Tensor:
    """The mean over processes; each process keeps its own gradient, which DDP averages."""
    return x if world_size() == 1 else _averaged(x)


def agreed(x: Tensor) -> Tensor:
    """The values of process 0, in every process."""
    return x if world_size() == 1 else _broadcast(x)


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


@torch.compiler.disable  # no collectives inside compiled code
def _gathered(x: Tensor) -> Tensor:
    return _Gather.apply(x.contiguous())


@torch.compiler.disable
def _averaged(x: Tensor) -> Tensor:
    return _Average.apply(x)


@torch.compiler.disable
def _broadcast(x: Tensor) -> Tensor:
    x = x.contiguous().clone()
    dist.broadcast(x, 0)
    return x
