"""Linear classifiers by the dozen: SGD on many at once, which share their inputs and one matrix product."""

import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from simplicia.devices import allow_variants

NOTHING = 1e-15  # smaller than this is zero: denormal numbers make a CPU ten times slower
DECAYS = 0.6, 0.8  # shares of the epochs after which the rate is a tenth
SCATTERED = 2**26  # bytes of codes that are one-hot at a time
SCALE = 256  # of errors in 16 bits, which hold best what is near 1; they are at most 1 / batch
COPIED = 2**24  # bytes of inputs up to which a step is recorded: it reads them from where they are copied to


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

    Each is what it would be if trained alone on the same batches. No step waits for the device, but for the
    one that is recorded.
    """
    generator = torch.Generator().manual_seed(seed)
    step = _Step(grids, features, classes, labels.device, momentum, nesterov)
    with fast_products(labels.device):
        for epoch in range(epochs):
            step.decay(0.1 ** sum(epoch >= share * epochs for share in DECAYS))
            order = indices[torch.randperm(len(indices), generator=generator).to(labels.device)]
            for part in order.split(batch_size):
                step(inputs(epoch, part), labels[part])
            after_epoch()
    return step.probes


class _Step:
    """SGD on a grid of probes, by one batch at a time.

    Inputs in 16 bits have both products taken in 16 bits, whose mantissa of 10 is TF32's, and summed in 32;
    the weights' gradient is written in 16, and what is learned stays in 32. On a GPU a step on few features,
    which would take longer to launch than to compute, is recorded once and replayed.
    """

    def __init__(
        self,
        grids: Sequence[Sequence[Rates]],
        features: int,
        classes: int,
        device: torch.device,
        momentum: float,
        nesterov: bool,
    ):
        shape = len(grids), features, len(grids[0]) * classes
        self.probes = Probes(
            torch.zeros(shape, device=device), torch.zeros(shape[0], 1, shape[2], device=device)
        )
        self.half: Tensor | None = None  # a copy of the weights in 16 bits
        self.velocities = tuple(torch.zeros_like(p) for p in self.probes)
        columns = torch.tensor(grids, device=device).repeat_interleave(classes, 1)[:, None]  # (T, 1, C, 3)
        self.lr, l1, l2 = columns.unbind(-1)
        self.rate = self.lr.clone()
        self.penalties = [p if bool(p.any()) else None for p in (l1, l2)]
        self.classes, self.momentum, self.nesterov = classes, momentum, nesterov
        self.error, self.update = compiled(_error, device), compiled(_update, device)
        self.record: _Record | None = None
        self.first = True

    def decay(self, factor: float) -> None:
        torch.mul(self.lr, factor, out=self.rate)

    def __call__(self, x: Tensor, labels: Tensor) -> None:
        if self.first:
            self.first = False
            if x.dtype == torch.half:
                self.half = self.probes.weight.half()
            if x.is_cuda and x.nbytes <= COPIED:
                self.record = _Record(x, labels)
        if self.record is not None and self.record.takes(x, labels):
            self.record.run(self._take, x, labels)
        else:
            self._take(x, labels)

    def _take(self, x: Tensor, labels: Tensor) -> None:
        weight, bias = self.probes
        probes = self.probes if self.half is None else Probes(self.half, bias)
        scale = 1 if self.half is None else SCALE
        error = self.error(probes.scores(x), labels, self.classes, scale)
        gradient, rule = _gradient(x, error, weight), (scale, self.momentum, self.nesterov)
        bias_gradient = error.sum(1, True)
        self.update(weight, self.velocities[0], gradient, self.rate, *self.penalties, *rule, self.half)
        _update(bias, self.velocities[1], bias_gradient, self.rate, None, None, *rule)


class _Record:
    """A function of tensors on a GPU, recorded at its fourth call and from then on replayed as one graph."""

    def __init__(self, *inputs: Tensor):
        self.inputs = tuple(map(torch.empty_like, inputs))  # from where the graph reads
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def takes(self, *inputs: Tensor) -> bool:
        """Whether inputs have the shapes that are recorded; the last batch of an epoch may not."""
        return all(mine.shape == x.shape for mine, x in zip(self.inputs, inputs, strict=True))

    def run(self, function: Callable[..., None], *inputs: Tensor) -> None:
        self.calls += 1
        if self.calls <= 3:  # until all is compiled and warm
            function(*inputs)
            return
        for mine, x in zip(self.inputs, inputs, strict=True):
            mine.copy_(x)
        if self.graph is None:
            device = inputs[0].device
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.device(device), torch.cuda.graph(self.graph, stream=torch.cuda.Stream(device)):
                function(*self.inputs)
        self.graph.replay()


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
            if x.dtype == torch.half and probes.weight.dtype != torch.half:
                probes = Probes(probes.weight.half(), probes.bias)
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
    allow_variants()
    return torch.compile(function)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """On a GPU, matrix products of 32-bit numbers in TF32: 10 bits of mantissa, summed in 32 bits."""
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
    """``scale`` times the gradient of the mean cross-entropy in the scores, for each probe its own."""
    share = torch.softmax(scores.unflatten(-1, (-1, classes)), -1)
    share = share - F.one_hot(labels, classes)[:, None]
    return tiny_to_zero(share.flatten(-2) * (scale / len(labels)))


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, batch, features) with weight (T, features, columns), both in 16 bits; the result in 32.

    In parts of the features that are added up: one product over many of them, with few results, would leave
    most of a GPU idle.
    """
    features, columns = weight.shape[1:]
    most = min(16, features // 1024, 8192 // columns)
    fitting = (n for n in range(most, 1, -1) if features % (8 * n) == 0)  # 16 bytes are read at once
    parts = next(fitting, 1)
    return torch.stack(
        [
            _wide(a.unflatten(-1, (parts, -1)).transpose(0, 1), b.unflatten(0, (parts, -1))).sum(0)
            for a, b in zip(x, weight, strict=True)
        ]
    )


def _wide(a: Tensor, b: Tensor) -> Tensor:
    """The products of two stacks of 16-bit matrices in 32 bits."""
    if a.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _gradient(x: Tensor, error: Tensor, weight: Tensor) -> Tensor:
    """The gradient in the weights: x' error, or for codes the errors added up in the rows they name."""
    if x.is_floating_point():
        return x.mT @ error.to(x.dtype)
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
    gradient: Tensor,  # times ``scale``; is overwritten
    rate: Tensor,
    l1: Tensor | None,
    l2: Tensor | None,
    scale: int,
    momentum: float,
    nesterov: bool,
    half: Tensor | None = None,  # a copy of the weight to be written too
) -> None:
    """SGD as torch.optim has it, with a rate and penalties for each column."""
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
