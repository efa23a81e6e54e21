"""Inputs of linear probes: a layer of a frozen network at several temperatures, of plain images or views.

Dense layers are (temperatures, batch, features). Codes are (batch, simplices) rows of the probe's weights, so
that the memory per image grows with L and not with L * V; on a GPU each batch of them is made dense, to use
the products of 16-bit simplices.

On a GPU simplices and one-hot vectors have 16 bits. Their mantissa of 10 bits is that of TF32, to which
products of other layers round, and values between 0 and 1 need no more range.
"""

import copy
import functools
import importlib.util
import math
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from simplicia.data.augmentation import Views, ViewSettings
from simplicia.data.loaders import HostLoader, choose_loader, mix_seed
from simplicia.devices import seeded
from simplicia.evaluate.features import encoder_features, smallest_integer
from simplicia.evaluate.sgd import rows, tiny_to_zero
from simplicia.neighbours import one_hots
from simplicia.representation import represent
from simplicia.run import Run
from simplicia.sem import simplicial

PLAIN_CACHE = 2**30  # bytes of a plain layer that are cached rather than computed for each batch
VIEWS_CACHE = {"cuda": 16 * 2**30, "cpu": 2**30}  # bytes of features of views, cached for the retraining
TILE = 2048  # values that a program of the kernel computes


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
        recipe, self.device = run.recipe, run.device
        self.images = images if choose_loader(images, run.device) is HostLoader else images.to(run.device)
        # the standard crops, whatever the method was trained with, so that results compare
        crops, statistics = ViewSettings.crop_flip(), (tuple(run.state["mean"]), tuple(run.state["std"]))
        self.views = Views(crops, recipe.image_size, *statistics)
        self.fast, self.encoder = run.device.type == "cuda", encoder
        if self.fast:
            torch.backends.cudnn.benchmark = True
            self.encoder = copy.deepcopy(encoder).to(memory_format=torch.channels_last)
        most = min(2048, max(64, 2**23 // recipe.image_size**2)) if self.fast else 256
        self.chunk = math.ceil(len(images) / math.ceil(len(images) / most))
        self.free_bytes = VIEWS_CACHE.get(run.device.type, VIEWS_CACHE["cpu"])
        self.cache: dict[tuple[int, int], Tensor] = {}
        self.last: dict[tuple[int, int], Tensor] = {}  # an epoch for which the cache has no space

    def features(self, seed: int, epoch: int) -> Tensor:
        """Features (N, features) of an epoch, in 16 bits on a GPU."""
        key = seed, epoch
        if key not in self.cache and key not in self.last:
            self.last.clear()  # before the next epoch needs memory
            features = self._compute(mix_seed(seed, epoch))
            is_small = features.nbytes <= self.free_bytes
            self.free_bytes -= features.nbytes * is_small
            (self.cache if is_small else self.last)[key] = features
        return self.cache[key] if key in self.cache else self.last[key]

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


def simplices(
    logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(N, L * V) to (temperatures, N, L * V). On a GPU the logits are read once for all temperatures."""
    if not logits.is_cuda or importlib.util.find_spec("triton") is None:
        return torch.stack([simplicial(logits, vertices, tau).to(dtype) for tau in temperatures])
    return at_once(logits, vertices, temperatures, dtype)


def at_once(logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """``simplices`` by its kernel."""
    import triton

    from simplicia.evaluate.multi_temperature_kernel import softmaxes

    logits = logits.contiguous()
    out = torch.empty(len(temperatures), *logits.shape, dtype=dtype, device=logits.device)
    count, pad = logits.numel() // vertices, triton.next_power_of_2(vertices)
    block = max(1, TILE // pad)
    scales = _inverse(temperatures, logits.device)
    with torch.cuda.device_of(logits):  # a kernel runs on the current one
        softmaxes[(triton.cdiv(count, block),)](
            logits, out, scales, count, len(temperatures), vertices, pad, block
        )
    return out


@functools.cache
def _inverse(temperatures: tuple[float, ...], device: torch.device) -> Tensor:
    """1 / temperature, infinite for 0."""
    return 1 / torch.tensor(temperatures, device=device)
