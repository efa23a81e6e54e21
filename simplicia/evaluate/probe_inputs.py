"""What a linear probe is fed: a layer of a frozen network at several temperatures, of plain images or views.

Dense layers come as (temperatures, batch, features). Codes come as (batch, simplices) rows of the probe's
weights, so that what is kept of an image grows with L and not with L * V; on a GPU each batch of them is made
dense, for the products that simplices take.

On a GPU simplices and one-hot vectors come in 16 bits. Their mantissa of 10 bits is that of the TF32 numbers
which products of other layers round to, and values between 0 and 1 need no more range.
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
from simplicia.evaluate.linear import rows, tiny_to_zero
from simplicia.evaluate.multi_temperature import simplices
from simplicia.representation import represent
from simplicia.run import Run

PLAIN_KEPT = 2**30  # bytes of a plain layer kept rather than computed again for each batch
VIEWS_KEPT = {"cuda": 16 * 2**30}  # bytes of views' features kept for the probe that is trained last
VIEWS_KEPT_ELSEWHERE = 2**30


class Inputs:
    """A layer of images, for testing as they are and for training, if ``augment``, in random views."""

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
        self.kept: Tensor | None = None
        if not augment and size <= PLAIN_KEPT:
            self.kept = torch.cat([self.represent(part) for part in self.features.split(256)], dim=-2)
        self.views = _EpochViews(run, images, self.net.encoder) if augment else None

    def plain(self, indices: Tensor) -> Tensor:
        """The layer of images as they are."""
        if self.kept is not None:
            return self._batch(self.kept.index_select(-2, indices))
        return self._batch(self.represent(self.features[indices]))

    def training(self, seed: int, epoch: int, indices: Tensor) -> Tensor:
        """The layer of an epoch's random views; without augmentation that of the images."""
        if self.views is None:
            return self.plain(indices)
        return self._batch(self.represent(self.views.features(seed, epoch)[indices].float()))

    @torch.no_grad()
    def represent(self, features: Tensor) -> Tensor:
        """The layer from the encoder's output: (temperatures, N, features), or codes (N, simplices)."""
        if self.layer == "codes":
            codes = represent(self.net, features, "codes")
            return codes.to(torch.uint8 if self.vertices <= 256 else torch.int32)  # L small numbers
        if self.layer == "sem":
            logits = represent(self.net, features, "embedder").float()  # once for all temperatures
            taus = cast(tuple[float, ...], self.temperatures)
            return tiny_to_zero(simplices(logits, self.vertices, taus, self.dtype))
        return tiny_to_zero(represent(self.net, features, self.layer).float())[None]

    def _batch(self, x: Tensor) -> Tensor:
        """What a probe takes of what is kept: codes as rows, or dense."""
        if self.layer != "codes":
            return x
        named = rows(x, self.vertices)
        if self.dtype != torch.half:
            return named
        return torch.zeros(len(x), self.width, dtype=self.dtype, device=x.device).scatter_(1, named, 1)[None]


class _EpochViews:
    """The encoder's features of every image in a random crop and flip, for each seed and epoch anew.

    The views are a function of (seed, epoch), so all probes of a grid and their retraining see the same ones;
    features are kept where they fit, and computed again where they do not.
    """

    def __init__(self, run: Run, images: Tensor, encoder: Any):
        recipe, self.device = run.recipe, run.device
        stays = choose_loader(images, run.device) is HostLoader
        self.images = images if stays else images.to(run.device)
        # the usual crops, whatever a method was trained with: all are measured alike
        crops, statistics = ViewSettings.crop_flip(), (tuple(run.state["mean"]), tuple(run.state["std"]))
        self.views = Views(crops, recipe.image_size, *statistics)
        self.fast = run.device.type == "cuda"
        self.encoder = encoder
        if self.fast:
            torch.backends.cudnn.benchmark = True
            self.encoder = copy.deepcopy(encoder).to(memory_format=torch.channels_last)
        most = min(2048, max(64, 2**23 // recipe.image_size**2)) if self.fast else 256
        self.chunk = math.ceil(len(images) / math.ceil(len(images) / most))
        self.room = VIEWS_KEPT.get(run.device.type, VIEWS_KEPT_ELSEWHERE)
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.current: tuple[tuple[int, int], Tensor] | None = None

    def features(self, seed: int, epoch: int) -> Tensor:
        """(N, features) of an epoch, in 16 bits on a GPU."""
        key = seed, epoch
        if key in self.kept:
            return self.kept[key]
        if self.current is None or self.current[0] != key:
            self.current = None  # frees the last epoch first
            features = self._compute(mix_seed(seed, epoch))
            if features.nbytes <= self.room:
                self.room -= features.nbytes
                self.kept[key] = features
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
    """In what a layer comes, and its product with a probe's weights is taken."""
    return torch.half if layer in ("sem", "codes") and device.type == "cuda" else torch.float32
