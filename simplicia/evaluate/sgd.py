"""Train many linear classifiers at once by SGD; they share their inputs and one matrix product."""

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.devices import allow_variants

SMALLEST = 1e-15  # smaller numbers count as 0: denormal ones make a CPU ten times slower
DECAYS = 0.6, 0.8  # shares of the epochs after which the rate falls to a tenth
ONE_HOT_BYTES = 2**26  # of codes that are one-hot at a time
SCALE = 256  # errors are at most 1 / batch; 16 bits are most precise near 1
RECORDED_BYTES = 2**24  # steps on inputs up to this size are recorded, which copies the inputs


class Rates(NamedTuple):
    """Hyper-parameters of one probe: learning rate, weight of the L1 norm, weight decay."""

    lr: float
    l1: float = 0.0
    l2: float = 0.0


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
    grids: Sequence[Sequence[Rates]],  # one per temperature, of equal lengths
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
    steps = itertools.count()
    total = epochs * math.ceil(len(indices) / batch_size)
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

    def __init__(
        self,
        grids: Sequence[Sequence[Rates]],
        features: int,
        classes: int,
        device: torch.device,
        *rule: Any,  # momentum, nesterov
    ):
        columns = len(grids[0]) * classes
        zeros = (torch.zeros(len(grids), rows, columns, device=device) for rows in (features, 1))
        self.probes = Probes(*zeros)
        self.half: Tensor | None = None  # a copy of the weights in 16 bits
        self.velocities = tuple(torch.zeros_like(p) for p in self.probes)
        rates = torch.tensor(grids, device=device).repeat_interleave(classes, 1)[:, None]  # (T, 1, C, 3)
        self.lr, *penalties = rates.unbind(-1)
        self.rate = self.lr.clone()
        self.penalties = [p if bool(p.any()) else None for p in penalties]
        self.classes, self.rule = classes, rule
        self.error, self.update = compiled(_error, device), compiled(_update, device)
        self.inputs: tuple[Tensor, Tensor] | None = None  # the graph reads from here
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def decay(self, factor: float) -> None:
        torch.mul(self.lr, factor, out=self.rate)

    def __call__(self, x: Tensor, labels: Tensor) -> None:
        if self.half is None and x.dtype == torch.half:
            self.half = self.probes.weight.half()
        if x.is_cuda and x.nbytes <= RECORDED_BYTES and self.inputs is None:
            self.inputs = torch.empty_like(x), torch.empty_like(labels)
        if self.inputs is None or self.inputs[0].shape != x.shape:  # the last batch of an epoch is smaller
            self._take(x, labels)
            return
        self.calls += 1
        if self.calls <= 3:  # until everything is compiled and warm
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
        gradient, rule = _gradient(x, error, weight), (scale, *self.rule)
        bias_gradient = error.sum(1, True)
        self.update(weight, self.velocities[0], gradient, self.rate, *self.penalties, *rule, self.half)
        _update(bias, self.velocities[1], bias_gradient, self.rate, None, None, *rule)


@torch.no_grad()
def correct(probes: Probes, batches: Iterable[Tensor], labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Count the images each probe gets right, (temperatures, probes): top-1 and top-5."""
    count = probes.weight.shape[-1] // classes
    first = torch.zeros(len(probes.weight), count, dtype=torch.long, device=labels.device)
    among = torch.zeros_like(first)
    start = 0
    with fast_products(labels.device):
        for x in batches:
            if x.dtype == torch.half and probes.weight.dtype != torch.half:
                probes = Probes(probes.weight.half(), probes.bias)
            scores = probes.scores(x).unflatten(-1, (count, classes))  # (T, batch, probes, classes)
            truth = labels[start : start + scores.shape[1], None]
            first += (scores.argmax(-1) == truth).sum(1)
            among += (scores.topk(min(5, classes)).indices == truth[..., None]).any(-1).sum(1)
            start += scores.shape[1]
    return first, among


def rows(codes: Tensor, vertices: int) -> Tensor:
    """Turn codes (..., simplices) into the rows of a probe's weights that they select."""
    return codes.long() + vertices * torch.arange(codes.shape[-1], device=codes.device)


def tiny_to_zero(x: Tensor) -> Tensor:
    """Flush numbers too small to matter to zero, on a CPU."""
    return F.hardshrink(x, SMALLEST) if x.device.type == "cpu" else x


@functools.cache
def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compile a function into one kernel on a GPU; elsewhere return it unchanged."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
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
    fitting = (n for n in range(most, 1, -1) if features % (8 * n) == 0)  # loads are 16 bytes wide
    parts = next(fitting, 1)
    stacks = x.unflatten(-1, (parts, -1)).transpose(1, 2), weight.unflatten(1, (parts, -1))
    if x.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):
        products = [torch.bmm(a, b, out_dtype=torch.float32) for a, b in zip(*stacks, strict=True)]
    else:
        products = [a.float() @ b.float() for a, b in zip(*stacks, strict=True)]
    return torch.stack([product.sum(0) for product in products])


def _gradient(x: Tensor, error: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weights: x' error; for codes, the sum of the errors of each row's images."""
    if x.is_floating_point():
        return x.mT @ error.to(x.dtype)
    batch, simplices = x.shape
    vertices = weight.shape[1] // simplices
    block = max(1, ONE_HOT_BYTES // (4 * batch * vertices))  # simplices
    parts = []
    for start, rows in zip(range(0, simplices, block), x.split(block, 1), strict=True):
        # a product with the one-hot codes of some simplices is faster than one addition per code
        dense = torch.zeros(batch, rows.shape[1] * vertices, device=x.device)
        parts.append(dense.scatter_(1, rows - start * vertices, 1.0).T @ error[0])
    return torch.cat(parts)[None]


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
