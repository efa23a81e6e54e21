"""What the losses and queues need of several processes; in one process each of these is the identity.

The convention that makes DDP right: every process returns the loss of the whole batch, and the gradients that
reach a process's own samples are such that DDP's average over processes is the whole batch's gradient.
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
    """All processes' rows in order of rank, with gradient. All must hold equally many."""
    return x if world_size() == 1 else _gathered(x)


def average(x: Tensor) -> Tensor:
    """The mean of a value over processes; its gradient stays each process's own, for DDP to average."""
    return x if world_size() == 1 else _averaged(x)


def agreed(x: Tensor) -> Tensor:
    """The first process's values, for all."""
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
        dist.all_reduce(grad)  # every process's loss depends on every process's samples
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


@torch.compiler.disable  # processes wait for each other outside of compiled code
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
