"""A whole image set on the device; the order of its batches is a function of (seed, epoch)."""

import torch
from torch import Tensor


class Resident:
    """Images (N, 3, H, W) uint8 on a device, in shuffled batches; the last incomplete one is dropped."""

    places: Tensor | None = None  # where in ``images`` every batch lies, if there is such a place

    def __init__(
        self,
        images: Tensor,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
        *,
        aspects: Tensor | None = None,
    ):
        self.mine = batch_size // world  # images of a batch that this process sees
        self.images = self._placed(images, device)
        self.aspects = None if aspects is None else self._placed(aspects, device)
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.count, self.batches = len(images), len(images) // batch_size
        self.epoch = -1
        self.order = torch.empty(0)

    def indices(self, step: int) -> Tensor:
        """Which images this process sees at a step, counted from the start of training."""
        epoch, batch = divmod(step, self.batches)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            self.order = self._ordered(torch.randperm(self.count, generator=generator))
            self.epoch = epoch
        whole = self.order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return whole.chunk(self.world)[self.rank]

    def fetch(self, step: int, indices: Tensor) -> Tensor:
        """Where in ``images`` those of a step are."""
        return indices

    def take(self, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """The images at places that ``fetch`` said, and their aspects, if they have such."""
        return self.images[places], None if self.aspects is None else self.aspects[places]

    def _placed(self, what: Tensor, device: torch.device) -> Tensor:
        """What of the images, or of their aspects, is on the device."""
        return what.to(device)

    def _ordered(self, order: Tensor) -> Tensor:
        """An epoch's order, where images are gathered."""
        return order.to(self.images.device)


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several small numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state ^ (number & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
