"""Inputs of linear probes: a layer of a frozen network at several temperatures, of plain images or views.

Dense layers are (temperatures, batch, features). Codes are (batch, simplices) rows of the probe's weights, so
that the memory per image grows with L and not with L * V; on a GPU each batch of them is made dense, to use
the products of 16-bit simplices.

On a GPU simplices and one-hot vectors have 16 bits. Their mantissa of 10 bits is that of TF32, to which
products of other layers round, and values between 0 and 1 need no more range.
"""

import copy
import math
from typing import Any, cast

import torch
from torch import Tensor

from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.loaders import HostLoader, choose_loader, mix_seed
from simplicia.devices import seeded
from simplicia.evaluate.features import batches_of, encoder_features, gather, pick, smallest_integer
from simplicia.evaluate.sgd import rows, runs_triton, tiny_to_zero
from simplicia.neighbours import one_hots
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import simplicial

PLAIN_CACHE = 2**30  # bytes of a plain layer that are cached rather than computed for each batch
VIEWS_CACHE = {"cuda": 16 * 2**30, "cpu": 2**30}  # bytes of features of views, cached for the retraining


class Inputs:
    """A layer of plain images and, with ``augment``, of random views of them for training."""

    def __init__(
        self,
        run: Run,
        images: Tensor,
        layer: str,
        temperatures: tuple[float | None, ...],
        network: str = "online",
        augment: bool = False,
    ):
        self.net = run.network(network)
        bottleneck: Any = self.net.bottleneck
        self.layer, self.temperatures, self.dtype = layer, temperatures, precision(layer, run.device)
        self.vertices = bottleneck.vertices if layer in ("sem", "codes") else 1
        self.features = encoder_features(run, images, network)
        self.device = run.device
        one = self.represent(pick(self.features, torch.zeros(1, dtype=torch.long), self.device))
        self.width = one.shape[-1] * (self.vertices if layer == "codes" else 1)
        self.cache: Tensor | None = None
        if not augment and len(images) * one.nbytes <= PLAIN_CACHE:
            parts = batches_of(self.features, self.device)
            self.cache = torch.cat([self.represent(part) for part in parts], dim=-2)
        self.views = _EpochViews(run, images, self.net.encoder) if augment else None

    def plain(self, indices: Tensor) -> Tensor:
        """The layer of plain images."""
        if self.cache is not None:
            return self._batch(self.cache.index_select(-2, indices))
        return self._batch(self.represent(pick(self.features, indices, self.device)))

    def training(self, seed: int, epoch: int, indices: Tensor) -> Tensor:
        """The layer of an epoch's random views; without augmentation, of plain images."""
        if self.views is None:
            return self.plain(indices)
        return self._batch(self.represent(pick(self.views.features(seed, epoch), indices, self.device)))

    @torch.no_grad()
    def represent(self, features: Tensor) -> Tensor:
        """Compute the layer from encoder features: (temperatures, N, features), or codes (N, simplices)."""
        if self.layer == "codes":
            return represent(self.net, features, "codes").to(smallest_integer(self.vertices))
        if self.layer == "sem":
            logits = represent(self.net, features, "embedder").float()
            taus = cast(tuple[float, ...], self.temperatures)
            return tiny_to_zero(simplices(logits, self.vertices, taus, self.dtype))
        return tiny_to_zero(represent(self.net, features, self.layer).float())[None]

    def _batch(self, x: Tensor) -> Tensor:
        """The form a probe takes: dense, or codes as rows of its weights."""
        if self.layer != "codes":
            return x
        is_dense = self.dtype == torch.half
        return one_hots(x, self.vertices, self.dtype)[None] if is_dense else rows(x, self.vertices)


class _EpochViews:
    """The encoder's features of a random crop and flip of every image, drawn for each seed and epoch.

    Views are a function of (seed, epoch), so all probes of a grid and their retraining see the same ones.
    Features are cached as far as memory allows, and otherwise computed again.
    """

    def __init__(self, run: Run, images: Tensor, encoder: Any):
        size, self.device = run.recipe.image_size, run.device
        stays = not isinstance(images, Tensor) or choose_loader(images, run.device) is HostLoader
        self.images = images if stays else images.to(run.device)
        # the standard crops, whatever the method was trained with, so that results compare
        self.views = Views(ViewSettings.crop_flip(), size, tuple(run.state["mean"]), tuple(run.state["std"]))
        self.fast, self.encoder = run.device.type == "cuda", encoder
        if self.fast:
            torch.backends.cudnn.benchmark = True
            self.encoder = copy.deepcopy(encoder).to(memory_format=torch.channels_last)
        most = min(2048, max(64, 2**23 // size**2)) if self.fast else 256
        self.chunk = math.ceil(len(images) / math.ceil(len(images) / most))
        self.free_bytes = VIEWS_CACHE.get(run.device.type, VIEWS_CACHE["cpu"])
        self.cache: dict[tuple[int, int], Tensor] = {}
        self.temporary: tuple[int, int] | None = None  # an epoch for which the cache has no space

    @torch.no_grad()
    def features(self, seed: int, epoch: int) -> Tensor:
        """Features (N, features) of an epoch, in 16 bits on a GPU."""
        key = seed, epoch
        if key in self.cache:
            return self.cache[key]
        if self.temporary is not None:
            self.cache.pop(self.temporary, None)  # before this epoch needs memory
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast)
        with seeded(mix_seed(seed, epoch), self.device), autocast:
            features = self.cache[key] = gather(
                map(self._view, self.images.split(self.chunk)), len(self.images)
            )
        is_small = features.nbytes <= self.free_bytes
        self.free_bytes -= features.nbytes * is_small
        self.temporary = None if is_small else key
        return features

    def _view(self, images: Tensor) -> Tensor:
        view = self.views(images.to(self.device))[0]
        return self.encoder(view.to(memory_format=torch.channels_last) if self.fast else view)


def precision(layer: str, device: torch.device) -> torch.dtype:
    """The type of a layer, and of its product with a probe's weights."""
    return torch.half if layer in ("sem", "codes") and device.type == "cuda" else torch.float32


def simplices(logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """(N, L * V) to (temperatures, N, L * V). On a GPU the logits are read once for all temperatures."""
    if not runs_triton(logits.device):
        return torch.stack([simplicial(logits, vertices, tau).to(dtype) for tau in temperatures])
    from simplicia.evaluate.multi_temperature_kernel import multi_temperature

    return multi_temperature(logits, vertices, temperatures, dtype)
