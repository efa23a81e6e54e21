"""Image sets too large for the device: they stay in the host's memory, and batches go there one by one."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from simplicia.data.resident import Resident


class Streamed(Resident):
    """As `Resident`, of images that stay in the host's memory: ``images`` is one batch, the next on its way.

    A batch is always at the same place, so that a captured step finds it. Two buffers take turns, since one
    is still being copied to the device when a thread begins to fill the other.
    """

    def __init__(self, images: Tensor, *arguments: Any, aspects: Tensor | None = None, **more: Any):
        self.host, self.host_aspects = images, aspects
        super().__init__(images, *arguments, aspects=aspects, **more)
        device = self.images.device
        self.places: Tensor = torch.arange(self.mine, device=device)
        pinned = device.type == "cuda"
        self.buffers = [torch.empty(self.images.shape, dtype=torch.uint8, pin_memory=pinned) for _ in "ab"]
        self.copied = [torch.cuda.Event() if pinned else None for _ in "ab"]
        self.thread = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[Tensor]] | None = None

    def fetch(self, step: int, indices: Tensor) -> Tensor:
        if self.ahead is None or self.ahead[0] != step:
            self.ahead = self._ask(step, indices)
        self.images.copy_(self.ahead[1].result(), non_blocking=True)
        if self.aspects is not None and self.host_aspects is not None:
            self.aspects.copy_(self.host_aspects[indices], non_blocking=True)
        copied = self.copied[step % 2]
        if copied is not None:
            copied.record()
        self.ahead = self._ask(step + 1, self.indices(step + 1))
        return self.places

    def _ask(self, step: int, indices: Tensor) -> tuple[int, Future[Tensor]]:
        """Have a batch gathered, once its buffer is free.

        The thread that gathers makes no calls to the device, which could meet the capture of a graph.
        """
        buffer, copied = self.buffers[step % 2], self.copied[step % 2]
        if copied is not None:
            copied.synchronize()
        return step, self.thread.submit(torch.index_select, self.host, 0, indices, out=buffer)

    def _placed(self, what: Tensor, device: torch.device) -> Tensor:
        return torch.empty((self.mine, *what.shape[1:]), dtype=what.dtype, device=device)

    def _ordered(self, order: Tensor) -> Tensor:
        return order


def place_images(images: Tensor, device: torch.device, where: str = "auto") -> type[Resident]:
    """What keeps images where they are asked for: "device", "host", or "auto" for what fits the device."""
    if where == "auto" and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return Streamed if images.nbytes > free // 2 else Resident
    return Streamed if where == "host" else Resident
