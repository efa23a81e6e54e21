"""Linear classifiers by the dozen: SGD on many at once, which share their inputs and one matrix product."""

import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NOTHING = 1e-15  # smaller than this is zero: denormal numbers make a CPU ten times slower
DECAYS = 0.6, 0.8  # shares of the epochs after which the rate is a tenth
SCATTERED = 2**26  # bytes of codes that are one-hot at a time


class Rates(NamedTuple):
    """Hyper-parameters of one probe: learning rate, weight of the L1 norm, weight decay."""

    lr: float
    l1: float = 0.0
    l2: float = 0.0


class Probes(NamedTuple):
    """Linear classifiers side by side: for each temperature ``probes`` of them, class after class."""

    weight: Tensor  # (temperatures, features, probes * classes)
    bias: Tensor  # (temperatures, 1, probes * classes)

    def scores(self, x: Tensor) -> Tensor:
        """Scores (temperatures, batch, probes * classes) of dense inputs, or of codes given as rows."""
        if x.is_floating_point():
            return torch.baddbmm(self.bias, x, self.weight)
        return (F.embedding_bag(x, self.weight[0], mode="sum") + self.bias[0])[None]


@torch.no_grad()
def train(
    inputs: Callable[[int, Tensor], Tensor],  # epoch and indices to x
    features: int,
    indices: Tensor,  # of the images to train on
    labels: Tensor,  # of all images
    classes: int,
    grids: Sequence[Sequence[Rates]],  # per temperature, as many for each
    *,
    epochs: int,
    batch_size: int = 256,
    momentum: float = 0.9,
    nesterov: bool = False,
    seed: int = 0,
    after_epoch: Callable[[], None] = lambda: None,
) -> Probes:
    """All probes of a grid at once, from zero, by SGD on the cross-entropy, rate x0.1 at 60 % and 80 %.

    Each is what it would be if trained alone on the same batches. Nothing in an epoch waits for the device.
    """
    device, probes = labels.device, len(grids[0])
    generator = torch.Generator().manual_seed(seed)
    shape = len(grids), features, probes * classes
    weight, bias = torch.zeros(shape, device=device), torch.zeros(shape[0], 1, shape[2], device=device)
    velocities = torch.zeros_like(weight), torch.zeros_like(bias)
    found = Probes(weight, bias)
    columns = torch.tensor(grids, device=device).repeat_interleave(classes, 1)[:, None]  # (T, 1, columns, 3)
    lr, l1, l2 = columns.unbind(-1)
    penalties = [p if bool(p.any()) else None for p in (l1, l2)]
    update = compiled(_update, device)
    with fast_products(device):
        for epoch in range(epochs):
            rate = lr * 0.1 ** sum(epoch >= share * epochs for share in DECAYS)
            order = indices[torch.randperm(len(indices), generator=generator).to(device)]
            for part in order.split(batch_size):
                x = inputs(epoch, part)
                error = _error(found.scores(x), labels[part], classes)
                gradient = _gradient(x, error, weight)
                update(weight, velocities[0], gradient, rate, *penalties, momentum, nesterov)
                _update(bias, velocities[1], error.sum(1, True), rate, None, None, momentum, nesterov)
            after_epoch()
    return found


@torch.no_grad()
def correct(
    probes: Probes, batches: Iterable[Tensor], labels: Tensor, classes: int, top: int = 5
) -> tuple[Tensor, Tensor]:
    """How many images each probe gets right, (temperatures, probes): first, and among its ``top`` guesses."""
    count = probes.weight.shape[-1] // classes
    first = torch.zeros(len(probes.weight), count, dtype=torch.long, device=labels.device)
    among = torch.zeros_like(first)
    start = 0
    with fast_products(labels.device):
        for x in batches:
            scores = probes.scores(x).unflatten(-1, (count, classes))  # (T, batch, probes, classes)
            truth = labels[start : start + scores.shape[1], None]
            first += (scores.argmax(-1) == truth).sum(1)
            among += (scores.topk(min(top, classes)).indices == truth[..., None]).any(-1).sum(1)
            start += scores.shape[1]
    return first, among


def rows(codes: Tensor, vertices: int) -> Tensor:
    """Codes (..., simplices) as the rows of a probe's weights that they name."""
    return codes.long() + vertices * torch.arange(codes.shape[-1], device=codes.device)


def tiny_to_zero(x: Tensor) -> Tensor:
    """On a CPU, numbers too small to matter as zero."""
    return F.hardshrink(x, NOTHING) if x.device.type == "cpu" else x


@functools.cache
def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """On a GPU the function as one kernel, elsewhere as it is."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return function
    return torch.compile(function)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """On a GPU, matrix products of 32-bit numbers in TF32: 10 bits of mantissa, summed in 32 bits."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _error(scores: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The gradient of the mean cross-entropy in the scores, for each probe its own."""
    share = torch.softmax(scores.unflatten(-1, (-1, classes)), -1)
    share -= F.one_hot(labels, classes)[:, None]
    return tiny_to_zero(share.flatten(-2) / len(labels))


def _gradient(x: Tensor, error: Tensor, weight: Tensor) -> Tensor:
    """The gradient in the weights: x' error, or for codes the errors added up in the rows they name."""
    if x.is_floating_point():
        return x.mT @ error
    batch, simplices = x.shape
    vertices = weight.shape[1] // simplices
    block = max(1, SCATTERED // (4 * batch * vertices))  # simplices
    parts = []
    for start, rows in zip(range(0, simplices, block), x.split(block, 1), strict=True):
        # a product with a few simplices' one-hots adds up faster than an addition for each code
        dense = torch.zeros(batch, rows.shape[1] * vertices, device=x.device)
        parts.append(dense.scatter_(1, rows - start * vertices, 1.0).T @ error[0])
    return torch.cat(parts)[None]


def _update(
    weight: Tensor,
    velocity: Tensor,
    gradient: Tensor,  # is overwritten
    rate: Tensor,
    l1: Tensor | None,
    l2: Tensor | None,
    momentum: float,
    nesterov: bool,
) -> None:
    """SGD as torch.optim has it, with a rate and penalties for each column."""
    if l1 is not None:
        gradient.addcmul_(weight.sign(), l1)
    if l2 is not None:
        gradient.addcmul_(weight, l2)
    velocity.mul_(momentum).add_(gradient)
    direction = gradient.add_(velocity, alpha=momentum) if nesterov else velocity
    weight.addcmul_(direction, rate, value=-1)
