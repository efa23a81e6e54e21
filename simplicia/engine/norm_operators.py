"""BatchNorm per view as operators: Triton kernels that a compiler and autograd know.

A channels-last map or a batch of vectors is a matrix of rows and channels, view after view. Maps are tall:
many programs sum parts of the rows, the last program to finish adds the parts, and a second launch applies
the result. Vectors are few: one program handles entire columns. Sums are float32 in a fixed order, so results
repeat bit for bit. Backward reads x and the gradient: it computes a ReLU's mask (unless a residual was added)
and a simplex's probabilities from x again.

Programs are counted in ``arrived``, an int32 for each block of channels, 0 between launches. Each layer has
its own, since layers run concurrently on two streams. An operator leaves it unchanged and therefore does not
declare it as mutated: autograd can save it for backward, and a compiler copies nothing.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from simplicia.engine import norm_kernels as kernels
from simplicia.engine import runner

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILE = 4096  # elements a program holds at once
PARTS_AT_ONCE = 32  # parts of a sum that are read at once: with more, every program takes more registers
BLOCK = 64  # channels of a map per program, at most
PROGRAMS = 264  # of a sum over a map: two for each multiprocessor of an H100 or H200


def fits(x: Tensor, residual: Tensor | None = None) -> bool:
    """Whether the kernels can read these tensors: rows of channels, and a residual of the same layout."""
    if not runner.runs_kernels(x.device) or x.dtype not in DTYPES or x.dim() not in (2, 4):
        return False
    if residual is not None and (residual.dtype != x.dtype or residual.shape != x.shape):
        return False
    return _in_rows(x) and (residual is None or _in_rows(residual))


@torch.library.custom_op("simplicia::view_statistics", mutates_args=("mean", "variance", "batches"))
def view_statistics(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    batches: Tensor,
    arrived: Tensor,
    views: int,
    eps: float,
    momentum: float,
) -> Tensor:
    """Scale, shift, mean and 1/deviation of each view and channel; moves the running mean and variance."""
    channels, rows = x.shape[1], _rows(views, x)
    statistics = x.new_empty(4, views, channels, dtype=torch.float32)
    running = weight, bias, mean, variance, batches, statistics, rows, eps, momentum
    if x.dim() == 2:
        tile = _column_tile(rows, channels)
        kernels.column_statistics[(triton.cdiv(channels, tile["B"]),)](
            x, *running, VIEWS=views, C=channels, **tile
        )
        return statistics
    tile, parts, chunk = _map_parts(rows, channels, views)
    partial = x.new_empty(views, 2, parts, channels, dtype=torch.float32)
    kind = {"VIEWS": views, "C": channels, "P": PARTS_AT_ONCE}
    kernels.sums[parts, triton.cdiv(channels, tile["B"]), views](
        x, partial, arrived, *running, chunk, **kind, **tile
    )
    return statistics


@torch.library.custom_op("simplicia::normalise", mutates_args=())
def normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    arrived: Tensor,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """x * scale + shift (+ residual) (and ReLU). The gradient is BatchNorm's: the statistics come from x."""
    views, channels = statistics.shape[1:]
    rows, y = _rows(views, x, residual), torch.empty_like(x)
    tile = _map_tile(channels)
    grid = triton.cdiv(rows, tile["R"]), triton.cdiv(channels, tile["B"]), views
    kind = {"RELU": relu, "RESIDUAL": residual is not None}
    kernels.apply[grid](
        x, x if residual is None else residual, statistics, y, rows, C=channels, **kind, **tile
    )
    return y


@torch.library.custom_op("simplicia::normalise_backward", mutates_args=())
def normalise_backward(
    grad: Tensor,
    aside: Tensor | None,
    x: Tensor,
    y: Tensor | None,
    statistics: Tensor,
    arrived: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight, bias and residual; ``y`` is needed if a residual was added.

    ``aside`` is the second gradient of an output that was returned twice (with a residual only).
    """
    views, channels = statistics.shape[1:]
    rows, dx = _rows(views, x, grad, aside, y), torch.empty_like(x)
    weights = statistics.new_empty(channels), statistics.new_empty(channels)  # of weight and bias
    dresidual = torch.empty_like(x) if y is not None else x.new_empty(0)
    kind = {"RELU": relu, "C": channels}
    if x.dim() == 2:
        assert y is None and aside is None, "vectors have no residual"
        tile = _column_tile(rows, channels)
        nothing = x, x, 1.0
        kind |= {"VIEWS": views, "V": 0, "PAD": 1, "PER_ROW": 0}
        kernels.column_backward[(triton.cdiv(channels, tile["B"]),)](
            grad, x, *nothing, statistics, dx, *weights, rows, **kind, **tile
        )
        return dx, *weights, dresidual
    kind["RESIDUAL"] = y is not None
    tile, parts, chunk = _map_parts(rows, channels, views)
    partial = statistics.new_empty(views, 2, parts, channels)
    blocks = triton.cdiv(channels, tile["B"])
    given = grad, grad if aside is None else aside, x, x if y is None else y
    factors = torch.empty_like(statistics[:3])
    settled = partial, arrived, factors, *weights
    sums = {"VIEWS": views, "FORKED": aside is not None, "P": PARTS_AT_ONCE}
    kernels.gradient_sums[parts, blocks, views](
        *given, statistics, *settled, dresidual, rows, chunk, **sums, **kind, **tile
    )
    grid = triton.cdiv(rows, tile["R"]), blocks, views
    masked = grad if y is None else dresidual
    kernels.gradient_apply[grid](masked, x, statistics, factors, dx, rows, **kind, **tile)
    return dx, *weights, dresidual


@torch.library.custom_op("simplicia::batch_simplicial", mutates_args=())
def batch_simplicial(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    inverse: Tensor | None,
    scale: float,
    vertices: int,
) -> tuple[Tensor, Tensor]:
    """softmax(normalised x * scale) - 1/V for each simplex, computed in float32, and its log-normaliser.

    ``inverse`` (one element, or one per row) multiplies the scale. Without its mean 1/V, a near-uniform
    simplex keeps its differences in 16 bits; adding 1/V gives the probabilities.
    """
    views, channels = statistics.shape[1:]
    rows, centred, normaliser = _rows(views, x), torch.empty_like(x), _one_per_simplex(x, vertices)
    tile = _simplex_tile(vertices)
    grid = triton.cdiv(rows, tile["R"]), triton.cdiv(channels // vertices, tile["B"] // tile["PAD"]), views
    kind = {"C": channels, "V": vertices, "PER_ROW": _per_row(inverse)}
    kernels.simplicial[grid](
        x, x if inverse is None else inverse, scale, statistics, centred, normaliser, rows, **kind, **tile
    )
    return centred, normaliser


@torch.library.custom_op("simplicia::batch_simplicial_backward", mutates_args=())
def batch_simplicial_backward(
    grad: Tensor,
    x: Tensor,
    normaliser: Tensor,
    statistics: Tensor,
    inverse: Tensor | None,
    scale: float,
    vertices: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    views, channels = statistics.shape[1:]
    rows, dx = _rows(views, x, grad), torch.empty_like(x)
    weights = statistics.new_empty(channels), statistics.new_empty(channels)
    tile = _simplex_tile(vertices)
    grid = (triton.cdiv(channels // vertices, tile["B"] // tile["PAD"]),)
    given = grad, x, normaliser, x if inverse is None else inverse, scale
    kind = {"RELU": False, "C": channels, "VIEWS": views, "V": vertices, "PER_ROW": _per_row(inverse)}
    kernels.column_backward[grid](*given, statistics, dx, *weights, rows, **kind, **tile)
    return dx, *weights


@view_statistics.register_fake
def _(x, weight, bias, mean, variance, batches, arrived, views, eps, momentum):
    return x.new_empty(4, views, x.shape[1], dtype=torch.float32)


@normalise.register_fake
def _(x, weight, bias, statistics, arrived, residual, relu):
    return torch.empty_like(x)


@normalise_backward.register_fake
def _(grad, aside, x, y, statistics, arrived, relu):
    weights = statistics.new_empty(x.shape[1]), statistics.new_empty(x.shape[1])
    return torch.empty_like(x), *weights, x.new_empty(0) if y is None else torch.empty_like(x)


@batch_simplicial.register_fake
def _(x, weight, bias, statistics, inverse, scale, vertices):
    return torch.empty_like(x), _one_per_simplex(x, vertices)


@batch_simplicial_backward.register_fake
def _(grad, x, normaliser, statistics, inverse, scale, vertices):
    return torch.empty_like(x), statistics.new_empty(x.shape[1]), statistics.new_empty(x.shape[1])


def _keep_normalise(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, _, _, statistics, arrived, residual, ctx.relu = inputs
    ctx.save_for_backward(x, None if residual is None else output, statistics, arrived)


def _normalise_gradients(ctx: Any, grad: Tensor) -> tuple:
    saved = ctx.saved_tensors
    x, y, *_ = saved
    grad = grad.contiguous(memory_format=_layout(x))
    dx, dweight, dbias, dresidual = normalise_backward(grad, None, *saved, ctx.relu)
    return dx, dweight, dbias, None, None, None if y is None else dresidual, None


def _keep_simplicial(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, _, _, statistics, inverse, ctx.scale, ctx.vertices = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, output[1], statistics, inverse)


def _simplicial_gradients(ctx: Any, grad: Tensor, _: Any) -> tuple:
    given = grad.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.vertices
    return *batch_simplicial_backward(*given), None, None, None, None


class Fork(torch.autograd.Function):
    """``normalise`` with residual and ReLU, returned twice: backward adds both gradients as it reads them."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        x, _, _, statistics, arrived, _ = given
        y = normalise(*given, True)
        ctx.save_for_backward(x, y, statistics, arrived)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        grads = tuple(grad.contiguous(memory_format=_layout(saved[0])) for grad in grads)
        dx, dweight, dbias, dresidual = normalise_backward(*grads, *saved, True)
        return dx, dweight, dbias, None, None, dresidual


normalise.register_autograd(_normalise_gradients, setup_context=_keep_normalise)
batch_simplicial.register_autograd(_simplicial_gradients, setup_context=_keep_simplicial)


def _layout(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format


def _in_rows(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=_layout(x))


def _rows(views: int, x: Tensor, *others: Tensor | None) -> int:
    """The rows of a view. A compiler must keep the layouts that it traced."""
    assert all(t is None or _in_rows(t) for t in (x, *others)), "a tensor has an unexpected layout"
    return x.numel() // (views * x.shape[1])


def _one_per_simplex(x: Tensor, vertices: int) -> Tensor:
    return x.new_empty(len(x), x.shape[1] // vertices, dtype=torch.float32)


def _map_tile(channels: int) -> dict[str, int]:
    block = min(BLOCK, triton.next_power_of_2(channels))
    return {"R": TILE // block, "B": block, "num_warps": 8}


def _map_parts(rows: int, channels: int, views: int) -> tuple[dict[str, int], int, int]:
    """The tile, the number of parts that a view's rows are summed in, and the rows of a part."""
    tile = _map_tile(channels)
    wanted = max(1, PROGRAMS // (views * triton.cdiv(channels, tile["B"])))
    chunk = triton.cdiv(triton.cdiv(rows, wanted), tile["R"]) * tile["R"]
    return tile, triton.cdiv(rows, chunk), chunk


def _column_tile(rows: int, channels: int) -> dict[str, int]:
    # memory moves at least 32 bytes of a row; more if that leaves enough programs
    block = 64 if channels >= 64 * PROGRAMS else min(16, triton.next_power_of_2(channels))
    return {"R": min(TILE // block, triton.next_power_of_2(rows)), "B": block, "num_warps": 8}


def _simplex_tile(vertices: int) -> dict[str, int]:
    pad = triton.next_power_of_2(vertices)
    block = max(128, pad)
    return {"R": max(1, TILE // 2 // block), "B": block, "PAD": pad, "num_warps": 4}


def _per_row(inverse: Tensor | None) -> int:
    """0: no tensor of temperatures, 1: one for all rows, 2: one for each row."""
    return 0 if inverse is None else 1 if inverse.numel() == 1 else 2
