"""Linear probes: train many at once by SGD with one matrix product, and classify images with them."""

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.devices import allow_variants
from simplicia.representation import represent
from simplicia.run import Run

SMALLEST = 1e-15  # smaller numbers count as 0: denormal ones make a CPU ten times slower
DECAYS = 0.6, 0.8  # shares of the epochs after which the rate falls to a tenth
SCALE = 256  # errors are at most 1 / batch; 16 bits are most precise near 1
RECORDED_BYTES = 2**24  # steps on inputs up to this size are recorded, which copies the inputs


class Rates(NamedTuple):
    """Hyper-parameters of one probe: learning rate, weight of the L1 norm, weight decay."""

    lr: float
    l1: float = 0.0
    l2: float = 0.0


Grids = Sequence[Sequence[Rates]]  # one per temperature, of equal lengths


class Probes(NamedTuple):
    """Linear classifiers side by side: several probes per temperature, each with a column per class."""

    weight: Tensor  # (temperatures, features, probes * classes)
    bias: Tensor  # (temperatures, 1, probes * classes)

    def scores(self, x: Tensor) -> Tensor:
        """Scores (temperatures, batch, probes * classes) of dense inputs, or of codes given as rows."""
        if x.dtype == torch.half:
            return _product(x, self.weight.half()).add_(self.bias)
        if x.is_floating_point():
            return torch.baddbmm(self.bias, x, self.weight)
        return (F.embedding_bag(x, self.weight[0], mode="sum") + self.bias[0])[None]

    def finite(self, classes: int) -> Tensor:
        """Which probes did not diverge, (temperatures, probes)."""
        columns = self.weight.isfinite().all(1) & self.bias.isfinite().all(1)
        return columns.unflatten(1, (-1, classes)).all(2)


@torch.no_grad()
def train(
    inputs: Callable[[int, Tensor], Tensor],  # (epoch, indices) -> x
    features: int,
    indices: Tensor,  # of the training images
    labels: Tensor,  # of all images
    classes: int,
    grids: Grids,
    *,
    epochs: int,
    batch_size: int = 256,
    momentum: float = 0.9,
    nesterov: bool = False,
    cosine: bool = False,  # decay the rate by a cosine to 0 instead of x0.1 at 60 % and 80 %
    seed: int = 0,
    after_epoch: Callable[[], None] = lambda: None,
) -> Probes:
    """Train all probes of a grid from zero on the cross-entropy.

    Each one equals a probe trained alone on the same batches. No step waits for the device, except the one
    that is recorded.
    """
    generator = torch.Generator().manual_seed(seed)
    step = _Step(grids, features, classes, labels.device, momentum, nesterov)
    steps, total = itertools.count(), epochs * math.ceil(len(indices) / batch_size)
    with fast_products(labels.device):
        for epoch in range(epochs):
            step.decay(0.1 ** sum(epoch >= share * epochs for share in DECAYS))
            order = indices[torch.randperm(len(indices), generator=generator).to(labels.device)]
            for batch in order.split(batch_size):
                if cosine:
                    step.decay((1 + math.cos(math.pi * next(steps) / total)) / 2)
                step(inputs(epoch, batch), labels[batch])
            after_epoch()
    return step.probes


class _Step:
    """One SGD step of a grid of probes.

    Products of 16-bit inputs are taken in 16 bits, whose 10-bit mantissa is that of TF32, and summed in 32;
    the gradient of the weights is written in 16 bits, and the weights stay in 32. On a GPU a step on few
    features takes longer to launch than to compute, so the fourth is recorded as a graph and replayed.
    """

    def __init__(self, grids: Grids, features: int, classes: int, device: torch.device, *rule: Any):
        shapes = ((len(grids), rows, len(grids[0]) * classes) for rows in (features, 1))
        self.probes = Probes(*(torch.zeros(shape, device=device) for shape in shapes))
        self.half: Tensor | None = None  # a copy of the weights in 16 bits
        self.velocities = tuple(torch.zeros_like(p) for p in self.probes)
        rates = torch.tensor(grids, device=device).repeat_interleave(classes, 1)[:, None]  # (T, 1, C, 3)
        self.lr, *penalties = rates.unbind(-1)
        self.rate = self.lr.clone()
        self.penalties = [p if bool(p.any()) else None for p in penalties]
        self.classes, self.calls = classes, 0
        self.rule = rule  # momentum, nesterov
        self.error, self.update = compiled(_error, device), compiled(_update, device)
        self.inputs: tuple[Tensor, ...] = ()  # the graph reads from here
        self.graph: torch.cuda.CUDAGraph | None = None

    def decay(self, factor: float) -> None:
        torch.mul(self.lr, factor, out=self.rate)

    def __call__(self, x: Tensor, labels: Tensor) -> None:
        if self.half is None and x.dtype == torch.half:
            self.half = self.probes.weight.half()
        if x.is_cuda and x.nbytes <= RECORDED_BYTES and not self.inputs:
            self.inputs = torch.empty_like(x), torch.empty_like(labels)
        fits = bool(self.inputs) and self.inputs[0].shape == x.shape  # the last batch of an epoch is smaller
        self.calls += fits
        if not fits or self.calls <= 3:  # until everything is compiled and warm
            self._take(x, labels)
            return
        for recorded, given in zip(self.inputs, (x, labels), strict=True):
            recorded.copy_(given)
        if self.graph is None:
            self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(x.device)
            with torch.cuda.device(x.device), torch.cuda.graph(self.graph, stream=stream):
                self._take(*self.inputs)
        self.graph.replay()

    def _take(self, x: Tensor, labels: Tensor) -> None:
        weight, bias = self.probes
        probes = self.probes if self.half is None else Probes(self.half, bias)
        scale = 1 if self.half is None else SCALE
        error = self.error(probes.scores(x), labels, self.classes, scale)
        if not x.is_floating_point():  # a product with one-hot codes is faster than one addition per code
            x = torch.zeros(1, len(x), weight.shape[1], device=x.device).scatter_(2, x[None], 1.0)
        gradient, rule = x.mT @ error.to(x.dtype), (scale, *self.rule)
        self.update(weight, self.velocities[0], gradient, self.rate, *self.penalties, *rule, self.half)
        _update(bias, self.velocities[1], error.sum(1, True), self.rate, None, None, *rule)


@torch.no_grad()
def correct(
    probes: Probes, inputs: Callable[[Tensor], Tensor], indices: Tensor, labels: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Which images each probe gets right, (temperatures, images, probes), and how many in five guesses."""
    count = probes.weight.shape[-1] // classes
    among = torch.zeros(len(probes.weight), count, dtype=torch.long, device=labels.device)
    hits = []
    with fast_products(labels.device):
        for batch in indices.split(256):
            x, truth = inputs(batch), labels[batch, None]
            if x.dtype == torch.half:
                probes = Probes(probes.weight.half(), probes.bias)
            scores = probes.scores(x).unflatten(-1, (count, classes))  # (T, batch, probes, classes)
            hits.append(scores.argmax(-1) == truth)
            among += (scores.topk(min(5, classes)).indices == truth[..., None]).any(-1).sum(1)
    return torch.cat(hits, 1), among


def rows(codes: Tensor, vertices: int) -> Tensor:
    """Turn codes (..., simplices) into the rows of a probe's weights that they select."""
    return codes.long() + vertices * torch.arange(codes.shape[-1], device=codes.device)


def tiny_to_zero(x: Tensor) -> Tensor:
    """Flush numbers too small to matter to zero, on a CPU."""
    return F.hardshrink(x, SMALLEST) if x.device.type == "cpu" else x


def runs_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on a device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@functools.cache
def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compile a function into one kernel on a GPU; elsewhere return it unchanged."""
    if not runs_triton(device):
        return function
    allow_variants()
    return torch.compile(function)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Take 32-bit matrix products in TF32 on a GPU: 10 bits of mantissa, summed in 32 bits."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _error(scores: Tensor, labels: Tensor, classes: int, scale: int) -> Tensor:
    """``scale`` times the gradient of each probe's mean cross-entropy with respect to its scores."""
    share = torch.softmax(scores.unflatten(-1, (-1, classes)), -1)
    share = share - F.one_hot(labels, classes)[:, None]
    return tiny_to_zero(share.flatten(-2) * (scale / len(labels)))


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, batch, features) @ weight (T, features, columns), both in 16 bits; the result in 32.

    Splits the features into parts and adds these up: one product over many features with few results would
    leave most of a GPU idle.
    """
    features, columns = weight.shape[1:]
    most = min(16, features // 1024, 8192 // columns)
    parts = next((n for n in range(most, 1, -1) if features % (8 * n) == 0), 1)  # loads are 16 bytes wide
    stacks = zip(x.unflatten(-1, (parts, -1)).transpose(1, 2), weight.unflatten(1, (parts, -1)), strict=True)
    if x.is_cuda:
        return torch.stack([torch.bmm(a, b, out_dtype=torch.float32).sum(0) for a, b in stacks])
    return torch.stack([(a.float() @ b.float()).sum(0) for a, b in stacks])


def _update(
    weight: Tensor,
    velocity: Tensor,
    gradient: Tensor,  # times ``scale``; overwritten
    rate: Tensor,
    l1: Tensor | None,
    l2: Tensor | None,
    scale: int,
    momentum: float,
    nesterov: bool,
    half: Tensor | None = None,  # receives a copy of the weight
) -> None:
    """SGD as in torch.optim, with a rate and penalties for each column."""
    if scale != 1:
        gradient = gradient.float() / scale
    if l1 is not None:
        gradient.addcmul_(weight.sign(), l1)
    if l2 is not None:
        gradient.addcmul_(weight, l2)
    velocity.mul_(momentum).add_(gradient)
    direction = gradient.add_(velocity, alpha=momentum) if nesterov else velocity
    weight.addcmul_(direction, rate, value=-1)
    if half is not None:
        half.copy_(weight)


@dataclass
class FittedProbe:
    """Linear classifiers on a layer of a frozen run, one per seed, and what a result says about them."""

    run: Run
    classifiers: Probes  # weight (1, features, seeds * classes), bias
    classes: int
    kind: str
    details: dict[str, Any]  # network, layer and temperature are among them

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Scores (seeds, N, classes) of a batch of uint8 images."""
        network, layer, temperature = (self.details[name] for name in ("network", "layer", "temperature"))
        net: Any = self.run.network(network)
        weight = self.classifiers.weight
        h = represent(net, net.encoder(self.run.view(images)).float(), layer, temperature).to(weight.device)
        x = rows(h, net.bottleneck.vertices) if layer == "codes" else h.to(weight.dtype)[None]
        with fast_products(weight.device):
            return self.classifiers.scores(x)[0].unflatten(-1, (-1, self.classes)).transpose(0, 1)

    def predict(self, images: Tensor, among: Tensor | None = None) -> Tensor:
        """Predict the classes (seeds, N) of images, ``among`` some of the classes (None: all)."""
        possible = torch.arange(self.classes) if among is None else among.sort().values
        possible = possible.to(self.classifiers.weight.device)
        guesses = [self.scores(batch)[..., possible].argmax(-1) for batch in images.split(256)]
        return possible[torch.cat(guesses, 1)]

    def correct(self, images: Tensor, labels: Tensor, among: Tensor | None = None) -> list[int]:
        """How many images each classifier gets right."""
        predicted = self.predict(images, among)
        return (predicted == labels.to(predicted.device)).sum(1).tolist()
