"""Images decoded when they are needed: sets of any size train and are measured in little memory.

Views are cropped from the full picture. Their boxes are drawn for the global batch from (seed, step), and
each process takes its share of them. So nothing has to be saved: a resumed run sees the same crops, whatever
the number of threads.
"""

import math
import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplicia.data.augmentation import ViewSettings
from simplicia.data.crops import TRIES, Box, centre_square, crop_encoded, random_box
from simplicia.data.decoding import attempt, explain, read_ahead
from simplicia.data.loaders import DeviceLoader, mix_seed
from simplicia.data.sources import Names, Source
from simplicia.data.workers import Workers, pin, shared, unpin
from simplicia.distributed import local_world_size
from simplicia.errors import UserError
from simplicia.progress import say

AHEAD = 2  # batches that are decoded ahead of the step
AT_A_TIME = 8  # images that a worker takes: waking it costs time
MOST_READERS = 8  # threads that decode for measuring: more wait for each other
CROPS = 0xC20B5  # sets the seeds of crops apart from those of orders
SAMPLE = 1024  # images that the statistics of colours are taken from
MOST_UNREADABLE = 0.01  # share of the images


@dataclass(eq=False, repr=False)
class StreamedImages:
    """Stands for a tensor (N, 3, size, size) uint8 of centre squares, which are decoded when asked for.

    Indexing gives another one, of fewer images; ``split`` and ``to`` give tensors.
    """

    source: Source
    size: int
    keep_aspect: bool = False
    threads: int = 0  # or processes, for the views of a training (0: one per CPU core)
    most_unreadable: float = MOST_UNREADABLE
    problems: dict[int, str] = field(default_factory=dict)  # why images cannot be read, by row of the index
    total: int = 0  # images that share the problems (0: these)

    dtype = torch.uint8
    reported = False  # whether a problem was

    def __post_init__(self) -> None:
        self.threads = self.threads or default_threads()
        self.total = self.total or len(self.source)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.size, self.size))

    @property
    def ndim(self) -> int:
        return 4

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    @property
    def files(self) -> Names:
        """The name of each image."""
        return self.source.entries

    def __getitem__(self, indices: Any) -> "StreamedImages":
        rows = np.arange(len(self))[indices if isinstance(indices, slice) else np.asarray(indices)]
        return replace(self, source=self.source.only(rows))

    def to(self, device: torch.device | str) -> Tensor:
        """All of the images, decoded."""
        return torch.cat(list(self.split(256))).to(device)

    def split(self, count: int) -> Iterator[Tensor]:
        """Batches of the images, each decoded by threads while the one before is in use.

        An image that cannot be read is an error: nothing is measured on another one in its place.
        """
        for start, (batch, reasons) in zip(range(0, len(self), count), self.decoded(count), strict=True):
            for i, reason in reasons.items():
                raise UserError(
                    f"{self.source.root} has an image that cannot be read, {self.files[start + i]!r} "
                    f"({reason}); remove it, or leave it out with simplicia pack"
                )
            yield batch

    def decoded(self, count: int) -> Iterator[tuple[Tensor, dict[int, str]]]:
        """Batches, and why some of their images, by position, are missing and black."""
        black = torch.zeros(self.shape[1:], dtype=torch.uint8)
        threads = min(self.threads, MOST_READERS)
        for batch in read_ahead(partial(attempt, self._square), range(len(self)), count, threads):
            errors = {i: square for i, square in enumerate(batch) if isinstance(square, Exception)}
            squares = torch.stack([black if isinstance(square, Exception) else square for square in batch])
            yield squares, {i: explain(error) for i, error in errors.items()}

    def _square(self, i: int) -> Tensor:
        """The centre square of an image."""
        data = self.source.read(i)
        return crop_encoded(data, lambda *shape: [centre_square(*shape)], self.size)[0].contiguous()

    def views(self, i: int, draws: np.ndarray, settings: ViewSettings, size: int, out: Tensor) -> None:
        """Decode the views (V, 3, size, size) of an image, or of the next one if it cannot be read."""

        def boxes(height: int, width: int) -> list[Box]:
            top, left, h, w = (0, 0, height, width) if self.keep_aspect else centre_square(height, width)
            drawn = [random_box(d, h, w, settings.crop_scale, settings.crop_ratio) for d in draws.tolist()]
            return [(top + t, left + x, *sides) for t, x, *sides in drawn]  # type: ignore[misc]

        for j in self._instead_of(i):
            try:
                data = self.source.read(j)
                for k, image in enumerate(crop_encoded(data, boxes, size, settings.interpolation)):
                    out[k].copy_(image)
                return
            except MemoryError:
                raise
            except Exception as error:
                self.add_problems({int(self.source.rows[j]): explain(error)})
        raise UserError(f"no image of {self.source.root} can be read")

    def _instead_of(self, i: int) -> Iterator[int]:
        """An image, and those that stand in for it, in turn: the next ones of its class, if it has one."""
        yield i
        labels, count = self.source.labels, len(self)
        for j in (k % count for k in range(i + 1, i + count)):
            if labels is None or labels[j] == labels[i]:
                yield j

    def add_problems(self, problems: dict[int, str]) -> None:
        """Note why images cannot be read; a UserError if they are too many."""
        self.problems.update(problems)
        count = len(self.problems)
        if problems and count > self.most_unreadable * self.total:
            raise UserError(
                f"{self.describe_problems()}: more than {100 * self.most_unreadable:g} % of {self.total:,}; "
                "repair or remove them, or give a larger --max-unreadable"
            )

    def describe_problems(self) -> str:
        """How many images could not be read, such as which one, and why."""
        row, reason = min(list(self.problems.items()))
        everything = replace(self.source, rows=None)
        several = "1 image" if len(self.problems) == 1 else f"{len(self.problems)} images"
        return f"{several} of {self.source.root} cannot be read, such as {everything.name(row)!r} ({reason})"

    def report_problems(self) -> None:
        """Name the first image that could not be read."""
        if self.problems and not self.reported:
            say([f"{self.describe_problems()}; another image stands in for each"])
            self.reported = True

    def sample(self) -> Iterator[Tensor]:
        """Some of the images, always the same: enough to take the statistics of colours from."""
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(self))[:SAMPLE]
        for batch, reasons in self[np.sort(order)].decoded(128):
            readable = [i for i in range(len(batch)) if i not in reasons]
            if readable:
                yield batch[readable]


class StreamLoader(DeviceLoader):
    """Decodes batches of views ahead of the step; ``images`` is the current one, (n, views, 3, size, size).

    The batches are a ring of ``AHEAD`` + 1 buffers. ``images`` never moves, so a captured step can read it.
    """

    def __init__(
        self,
        images: StreamedImages,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        *,
        views: ViewSettings,
        size: int,
        micro_batches: int = 1,
    ):
        self.stream, self.settings, self.size = images, views, size
        self.workers = Workers(images.threads, self._decode)
        self.pending: dict[
            int, list[tuple[Future, Any]]
        ] = {}  # by step: parts of a batch, and what they take
        where: Any = seed, device, rank, world
        super().__init__(images, batch_size, *where, micro_batches=micro_batches)  # type: ignore[arg-type]

    def _store(self, images: Any, aspect_ratios: Tensor | None) -> None:
        self.index_device = torch.device("cpu")
        shape = (self.batch_size // self.world, len(self.settings.blur), 3, self.size, self.size)
        self.images = torch.empty(shape, dtype=torch.uint8, device=self.device)
        self.aspect_ratios = None
        self.fixed_rows: Tensor = torch.arange(len(self.images), device=self.device)
        self.buffers = [shared(shape) for _ in range(AHEAD + 1)]
        self.pinned = False
        on_gpu = self.device.type == "cuda"
        self.copied = [torch.cuda.Event() if on_gpu else None for _ in self.buffers]

    def fetch(self, step: int, indices: Tensor) -> Tensor:
        for earlier in [other for other in self.pending if not step <= other <= step + AHEAD]:
            self._forget(earlier)
        for later in range(step, step + AHEAD + 1):
            if later not in self.pending:
                self._decode_ahead(later, indices if later == step else self.indices(later))
        for future, part in self.pending.pop(step):
            self.stream.add_problems(self.workers.result(future, *part))
        self.stream.report_problems()
        slot = step % len(self.buffers)
        self.images.copy_(self.buffers[slot], non_blocking=True)
        copied = self.copied[slot]
        if copied is not None:
            copied.record()
        return self.fixed_rows

    def _decode_ahead(self, step: int, indices: Tensor) -> None:
        """Decode a batch in the workers, once its buffer is free."""
        slot = step % len(self.buffers)
        copied = self.copied[slot]
        if copied is not None:
            copied.synchronize()
        generator = torch.Generator().manual_seed(mix_seed(self.seed, step, CROPS))
        shape = self.batch_size, len(self.settings.blur), 2 * TRIES + 2
        draws = self.share(torch.rand(shape, generator=generator, dtype=torch.float64)).numpy()
        rows, self.pending[step] = indices.numpy(), []
        for start in range(0, len(rows), AT_A_TIME):
            which = slice(start, start + AT_A_TIME)
            part = slot, start, rows[which], draws[which]
            self.pending[step].append((self.workers.submit(*part), part))
        if self.device.type == "cuda" and not self.pinned:  # now that the workers have started
            self.pinned = all(pin(buffer) for buffer in self.buffers)

    def _decode(self, slot: int, start: int, rows: np.ndarray, draws: np.ndarray) -> dict[int, str]:
        """Decode a part of a batch; returns the problems that came up."""
        before = len(self.stream.problems)
        for out, i, draw in zip(range(start, start + len(rows)), rows.tolist(), draws, strict=True):
            self.stream.views(i, draw, self.settings, self.size, self.buffers[slot][out])
        return dict(list(self.stream.problems.items())[before:])

    def _forget(self, step: int) -> None:
        """Let go of a batch that is no longer wanted; its buffer is free afterwards."""
        for future, _ in self.pending.pop(step):
            if not future.cancel():
                with suppress(Exception):
                    future.result()

    def close(self) -> None:
        for step in list(self.pending):
            self._forget(step)
        self.workers.close()
        if self.pinned:
            self.pinned = False
            for buffer in self.buffers:
                unpin(buffer)


def default_threads() -> int:
    """The CPU cores that this process may use, divided among the processes of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_world_size())
