"""Inputs of linear probes: a layer of a frozen network at several temperatures, of plain images or views.

Dense layers are (temperatures, batch, features). Codes are (batch, simplices) rows of the probe's weights, so
that the memory per image grows with L and not with L * V; on a GPU each batch of them is made dense, to use
the products of 16-bit simplices.

On a GPU simplices and one-hot vectors have 16 bits. Their mantissa of 10 bits is that of TF32, to which
products of other layers round, and values between 0 and 1 need no more range.
"""

import copy
import math
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.loaders import HostLoader, choose_loader, mix_seed
from simplicia.devices import seeded
from simplicia.evaluate.features import encoder_features
from simplicia.evaluate.multi_temperature import simplices
from simplicia.evaluate.sgd import rows, tiny_to_zero
from simplicia.representation import represent
from simplicia.run import Run

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
        self.run, self.layer, self.temperatures = run, layer, temperatures
        self.net = run.network(network)
        self.features = encoder_features(run, images, network)
        bottleneck: Any = self.net.bottleneck
        self.vertices = bottleneck.vertices if layer in ("sem", "codes") else 1
        self.dtype = precision(layer, run.device)
        one = represent(self.net, self.features[:1], layer, temperatures[0])
        self.width = one.shape[-1] * (self.vertices if layer == "codes" else 1)
        bytes_each = 1 if layer == "codes" else self.dtype.itemsize
        size = len(images) * len(temperatures) * one.numel() * bytes_each
        self.cache: Tensor | None = None
        if not augment and size <= PLAIN_CACHE:
            self.cache = torch.cat([self.represent(part) for part in self.features.split(256)], dim=-2)
        self.views = _EpochViews(run, images, self.net.encoder) if augment else None

    def plain(self, indices: Tensor) -> Tensor:
        """The layer of plain images."""
        if self.cache is not None:
            return self._batch(self.cache.index_select(-2, indices))
        return self._batch(self.represent(self.features[indices]))

    def training(self, seed: int, epoch: int, indices: Tensor) -> Tensor:
        """The layer of an epoch's random views; without augmentation, of plain images."""
        if self.views is None:
            return self.plain(indices)
        return self._batch(self.represent(self.views.features(seed, epoch)[indices].float()))

    @torch.no_grad()
    def represent(self, features: Tensor) -> Tensor:
        """Compute the layer from encoder features: (temperatures, N, features), or codes (N, simplices)."""
        if self.layer == "codes":
            codes = represent(self.net, features, "codes")
            return codes.to(torch.uint8 if self.vertices <= 256 else torch.int32)
        if self.layer == "sem":
            logits = represent(self.net, features, "embedder").float()
            taus = cast(tuple[float, ...], self.temperatures)
            return tiny_to_zero(simplices(logits, self.vertices, taus, self.dtype))
        return tiny_to_zero(represent(self.net, features, self.layer).float())[None]

    def _batch(self, x: Tensor) -> Tensor:
        """The form a probe takes: dense, or codes as rows of its weights."""
        if self.layer != "codes":
            return x
        selected = rows(x, self.vertices)
        if self.dtype != torch.half:
            return selected
        zeros = torch.zeros(len(x), self.width, dtype=self.dtype, device=x.device)
        return zeros.scatter_(1, selected, 1)[None]


class _EpochViews:
    """The encoder's features of a random crop and flip of every image, drawn for each seed and epoch.

    Views are a function of (seed, epoch), so all probes of a grid and their retraining see the same ones.
    Features are cached as far as memory allows, and otherwise computed again.
    """

    def __init__(self, run: Run, images: Tensor, encoder: Any):
        recipe, self.device = run.recipe, run.device
        stays = choose_loader(images, run.device) is HostLoader
        self.images = images if stays else images.to(run.device)
        # the standard crops, whatever the method was trained with, so that results compare
        crops, statistics = ViewSettings.crop_flip(), (tuple(run.state["mean"]), tuple(run.state["std"]))
        self.views = Views(crops, recipe.image_size, *statistics)
        self.fast = run.device.type == "cuda"
        self.encoder = encoder
        if self.fast:
            torch.backends.cudnn.benchmark = True
            self.encoder = copy.deepcopy(encoder).to(memory_format=torch.channels_last)
        most = min(2048, max(64, 2**23 // recipe.image_size**2)) if self.fast else 256
        self.chunk = math.ceil(len(images) / math.ceil(len(images) / most))
        self.free_bytes = VIEWS_CACHE.get(run.device.type, VIEWS_CACHE["cpu"])
        self.cache: dict[tuple[int, int], Tensor] = {}
        self.current: tuple[tuple[int, int], Tensor] | None = None

    def features(self, seed: int, epoch: int) -> Tensor:
        """Features (N, features) of an epoch, in 16 bits on a GPU."""
        key = seed, epoch
        if key in self.cache:
            return self.cache[key]
        if self.current is None or self.current[0] != key:
            self.current = None  # free the last epoch first
            features = self._compute(mix_seed(seed, epoch))
            if features.nbytes <= self.free_bytes:
                self.free_bytes -= features.nbytes
                self.cache[key] = features
                return features
            self.current = key, features
        return self.current[1]

    @torch.no_grad()
    def _compute(self, seed: int) -> Tensor:
        half = torch.autocast("cuda", torch.bfloat16) if self.fast else nullcontext()
        parts = []
        with seeded(seed, self.device), half:
            for images in self.images.split(self.chunk):
                view = self.views(images.to(self.device))[0]
                parts.append(self.encoder(view.to(memory_format=torch.channels_last) if self.fast else view))
        return torch.cat(parts)


def precision(layer: str, device: torch.device) -> torch.dtype:
    """The type of a layer, and of its product with a probe's weights."""
    return torch.half if layer in ("sem", "codes") and device.type == "cuda" else torch.float32
