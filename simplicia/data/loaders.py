"""Shuffled batches of uint8 images, held on the device or streamed from host memory.

The order of an epoch is a function of (seed, epoch), so a run can resume at any step.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class DeviceLoader:
    """Holds all images (N, 3, H, W) on the device; the last incomplete batch of an epoch is dropped."""

    fixed_rows: Tensor | None = None  # the rows of ``images`` that hold every batch, if they never change

    def __init__(
        self,
        images: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        *,
        aspect_ratios: Tensor | None = None,
        micro_batches: int = 1,  # of a batch; each is split over the processes
    ):
        self.batch_size, self.seed, self.device, self.rank, self.world = batch_size, seed, device, rank, world
        self.micro_batches = micro_batches
        self.count, self.batches = len(images), len(images) // batch_size
        self.orders: dict[int, Tensor] = {}  # of the last two epochs
        self._store(images, aspect_ratios)

    def _store(self, images: Tensor, aspect_ratios: Tensor | None) -> None:
        self.index_device = self.device  # where images are indexed
        self.images = images.to(self.device)
        self.aspect_ratios = None if aspect_ratios is None else aspect_ratios.to(self.device)

    def indices(self, step: int) -> Tensor:
        """The images that this process sees at a step, counted from the start of training."""
        epoch, batch = divmod(step, self.batches)
        if epoch not in self.orders:
            generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
            order = torch.randperm(self.count, generator=generator).to(self.index_device)
            # two: a loader that works ahead changes to and fro between them
            self.orders = dict([*self.orders.items(), (epoch, order)][-2:])
        global_batch = self.orders[epoch][batch * self.batch_size : (batch + 1) * self.batch_size]
        return self.share(global_batch)

    def share(self, batch: Tensor) -> Tensor:
        """The rows of a global batch that this process takes: its part of each micro-batch."""
        return batch.unflatten(0, (self.micro_batches, self.world, -1))[:, self.rank].flatten(0, 1)

    def fetch(self, step: int, indices: Tensor) -> Tensor:
        """Make a step's images available; returns their rows in ``images``."""
        return indices

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The images, and their aspect ratios if known, of rows that ``fetch`` returned."""
        return self.images[rows], None if self.aspect_ratios is None else self.aspect_ratios[rows]

    def close(self) -> None:
        """Stop what works ahead."""


class HostLoader(DeviceLoader):
    """Keeps the images in host memory: ``images`` is the current batch, and a thread gathers the next.

    ``images`` never moves, so a captured step can read it. Two pinned buffers alternate: one may still be
    copied to the device while the thread fills the other.
    """

    def _store(self, images: Tensor, aspect_ratios: Tensor | None) -> None:
        def batch_of(values: Tensor) -> Tensor:
            return values.new_empty((self.batch_size // self.world, *values.shape[1:]), device=self.device)

        self.index_device = torch.device("cpu")
        self.host_images, self.host_aspect_ratios = images, aspect_ratios
        self.images = batch_of(images)
        self.aspect_ratios = None if aspect_ratios is None else batch_of(aspect_ratios)
        self.fixed_rows: Tensor = torch.arange(len(self.images), device=self.device)
        pinned = self.device.type == "cuda"
        self.buffers = [
            torch.empty(self.images.shape, dtype=images.dtype, pin_memory=pinned) for _ in range(2)
        ]
        self.copied = [torch.cuda.Event() if pinned else None for _ in range(2)]
        self.thread = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[Tensor]] | None = None

    def fetch(self, step: int, indices: Tensor) -> Tensor:
        if self.ahead is None or self.ahead[0] != step:
            self.ahead = self._gather_ahead(step, indices)
        self.images.copy_(self.ahead[1].result(), non_blocking=True)
        if self.aspect_ratios is not None and self.host_aspect_ratios is not None:
            self.aspect_ratios.copy_(self.host_aspect_ratios[indices], non_blocking=True)
        copied = self.copied[step % 2]
        if copied is not None:
            copied.record()
        self.ahead = self._gather_ahead(step + 1, self.indices(step + 1))
        return self.fixed_rows

    def _gather_ahead(self, step: int, indices: Tensor) -> tuple[int, Future[Tensor]]:
        """Gather a batch in the thread, once its buffer is free.

        The thread makes no CUDA calls, which could interfere with the capture of a graph.
        """
        buffer, copied = self.buffers[step % 2], self.copied[step % 2]
        if copied is not None:
            copied.synchronize()
        return step, self.thread.submit(torch.index_select, self.host_images, 0, indices, out=buffer)


def choose_loader(images: Tensor, device: torch.device, where: str = "auto") -> type[DeviceLoader]:
    """The loader for "device" or "host"; else the device, if images fill at most half its free memory."""
    if where not in ("device", "host") and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return HostLoader if images.nbytes > free // 2 else DeviceLoader
    return HostLoader if where == "host" else DeviceLoader


def mix_seed(*numbers: int) -> int:
    """One well-spread 63-bit seed from several small numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
