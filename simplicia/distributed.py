"""Processes that train together: collectives with gradients, shared randomness, and what to do if one dies.

With one process each collective is the identity.

Every process returns the loss of the global batch. The gradients that reach a process's samples are scaled so
that DDP's average over processes is the gradient of the global batch.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simplicia.errors import Failed, Interrupted, UserError

T = TypeVar("T")
PATIENT = timedelta(days=1)  # of collectives: a process may be slow, and ``watched_peers`` finds dead ones
LARGE = 1 << 22  # numbers in a matrix whose gradient may be sent in 16 bits


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def local_world_size() -> int:
    """How many of the processes share this machine; all, if their launcher does not say."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", world_size())))


def _collective(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Keep a collective out of compiled code, and skip it with one process."""
    # torch.compiler.disable would import the compiler with this module, which doubles the time of the import
    eager = torch._disable_dynamo(function)

    @functools.wraps(function)
    def wrapped(x: Tensor) -> Tensor:
        return x if world_size() == 1 else eager(x)

    return wrapped


def drawn(draw: Callable[[int], Tensor], rows: int, dim: int = 0) -> Tensor:
    """Return the random numbers of this process's rows: ``draw(rows)`` of the global batch.

    All processes must have the same seed: each draws all numbers, so that N processes use those of one.
    """
    processes = world_size()
    return draw(rows) if processes == 1 else draw(processes * rows).narrow(dim, rank() * rows, rows)


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


def send_large_gradients_in_half(module: nn.Module) -> None:
    """Let DDP average its buckets that hold a large matrix in bf16, and the others in 32 bits."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def send(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        is_large = any(p.numel() >= LARGE for p in bucket.parameters())
        return (default_hooks.bf16_compress_hook if is_large else default_hooks.allreduce_hook)(group, bucket)

    for part in module.modules():
        if isinstance(part, nn.parallel.DistributedDataParallel):
            part.register_comm_hook(None, send)


def from_leader(work: Callable[[], T]) -> T:
    """Return what process 0 computes; the error of a user or a disk is raised in every process."""
    if world_size() == 1:
        return work()
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = work()
        except (UserError, OSError) as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, 0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def largest(number: int) -> int:
    """Return the largest of the processes' numbers, without waiting for a GPU."""
    if world_size() == 1:
        return number
    shared = torch.tensor(number)
    dist.all_reduce(shared, dist.ReduceOp.MAX, _host_group())
    return int(shared)


@functools.cache
def _host_group() -> Any:
    return dist.new_group(backend="gloo", timeout=PATIENT)


def is_of_peers(error: RuntimeError) -> bool:
    """Whether a collective failed, as it does when another process was killed."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def watched_peers(patience: float = 30.0, interval: float = 2.0) -> Iterator[None]:
    """End this process if another one dies, or does not answer for ``patience`` seconds, during the block.

    The processes leave the block together, unless an error ends it. A thread exchanges signs of life: it
    answers while its process is busy, but not if that is stopped, and it can end a process whose main thread
    waits in a collective that never returns.
    """
    if world_size() == 1:
        yield
        return
    group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
    is_leaving, has_failed = threading.Event(), threading.Event()

    def watch() -> None:
        try:
            leaving = 0
            while leaving < world_size():
                is_leaving.wait(interval)
                sign = torch.tensor(int(is_leaving.is_set()))
                dist.all_reduce(sign, group=group)
                leaving = int(sign)
        except RuntimeError:
            # usually the main thread notices a dead process too, and knows more
            if not is_leaving.is_set() and not has_failed.wait(5.0):
                why = f"another process of this training ended, or did not answer for {patience:g} s"
                print(f"simplicia: {why}; the last checkpoint is kept", file=sys.stderr, flush=True)
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except Interrupted:
        is_leaving.set()
        thread.join()  # process 0 may still be saving
        raise
    except RuntimeError as error:
        has_failed.set()
        if is_of_peers(error):
            raise Failed("another process of this training ended") from error
        raise
    except BaseException:
        has_failed.set()
        raise
    is_leaving.set()
    thread.join()


def leave() -> None:
    """Destroy the processes' groups; this may wait for a GPU that waits for a dead process, but not long."""
    if dist.is_initialized():
        end = threading.Timer(30.0, os._exit, [1])
        end.daemon = True
        end.start()
        dist.destroy_process_group()
        end.cancel()


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
