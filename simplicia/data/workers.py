"""Workers that decode images: a few threads, or on Linux more than a few processes.

Only one thread at a time runs Python, and many of them wait for that turn longer than they decode. On 16
cores, 16 threads took two crops of 1,030 photographs a second, and 16 processes, which also open plain JPEGs
without Pillow, of 4,330.
"""

import ctypes
import gc
import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from simplicia.progress import plural, say

MOST_THREADS = 4  # more workers are processes, where a process can be copied
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
LEFT_TO_PARENT = "SIGINT", "SIGHUP", "SIGUSR1"

_work: Callable[..., Any]  # of this process, if it is a worker


class Workers:
    """Call a function in ``count`` threads or processes. It must not use the device.

    Processes are copies of this one: they see its memory as it is when they start, and write to ``shared``
    tensors. If one is killed, threads take over.
    """

    def __init__(self, count: int, work: Callable[..., Any]):
        self.count, self.work = count, work
        self.in_processes = are_processes(count)
        self.executor: Executor | None = None

    def submit(self, *arguments: Any) -> Future:
        if self.executor is None:
            self.executor = self._start()
        try:
            return self.executor.submit(self._function, *arguments)
        except BrokenExecutor:
            self._replace()
            return self.submit(*arguments)

    def result(self, future: Future, *arguments: Any) -> Any:
        """What a call with these arguments gave, once it is done."""
        try:
            return future.result()
        except BrokenExecutor:
            self._replace()
            return self.work(*arguments)

    def close(self) -> None:
        if self.executor is not None:
            self.executor.shutdown()
            self.executor = None

    @property
    def _function(self) -> Callable[..., Any]:
        return _call if self.in_processes else self.work

    def _start(self) -> Executor:
        if not self.in_processes:
            return ThreadPoolExecutor(self.count)
        from simplicia.data.image_files import share_pixels

        context = multiprocessing.get_context("fork")
        begin: Any = _begin
        share = partial(share_pixels, self.count, context.Lock())
        inherited = self.work, os.getpid(), share  # not pickled
        executor = ProcessPoolExecutor(self.count, context, begin, inherited)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # workers use nothing that a thread may hold
            executor.submit(os.getpid).result()  # starts all of them
        return executor

    def _replace(self) -> None:
        if self.in_processes:
            self.in_processes = False
            self.close()
            say(["a process that decodes images was killed; threads go on in its place"])


def are_processes(count: int) -> bool:
    """Whether so many workers are processes."""
    return count > MOST_THREADS and sys.platform == "linux"


def describe(count: int) -> str:
    return plural(count, "process" if are_processes(count) else "thread")


def shared(shape: Sequence[int]) -> Tensor:
    """A uint8 tensor that processes which start later share; not in /dev/shm, which may be small."""
    size = torch.Size(shape).numel()
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).view(*shape)


def pin(tensor: Tensor) -> bool:
    """Let a GPU copy shared memory directly; returns whether it does."""
    return int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)) == 0


def unpin(tensor: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def _begin(work: Callable[..., Any], parent: int, share: Callable[[], None]) -> None:
    """Make a copied process a worker: one thread, no signals of the parent's, and never without it."""
    global _work
    _work = work
    share()
    gc.freeze()  # objects of the parent are not freed here
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in LEFT_TO_PARENT:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _call(*arguments: Any) -> Any:
    return _work(*arguments)
