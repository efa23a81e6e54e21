"""The update of a very large layer inside the matrix product that makes its gradient: a Triton kernel.

The projector's first layer behind a simplicial embedding has 266 million weights and a batch of a few hundred
rows. Its gradient, slope^T x, is cheap to make and dear to write and read again. So each tile of it goes
straight into LARS or SGD, momentum, moving average and 16-bit copies, and never exists as a whole. LARS needs
the gradient's norm beforehand, which two small products give: |S^T X|^2 is the sum of (S S^T) * (X X^T).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from simplicia.train.fused import Slot

TILE = {"BO": 128, "BI": 128, "BK": 64, "PARTS": 4, "num_warps": 8, "num_stages": 3}


class ProductUpdate:
    """``update(x, slope)`` moves a linear layer's weight, given its input and its output's gradient."""

    def __init__(self, slot: Slot, lr: Tensor, momentum: float, eta: float, ema: Tensor | None):
        self.slot, self.lr, self.momentum, self.eta = slot, lr, momentum, eta
        one = torch.ones((), device=lr.device)
        self.ema = one if ema is None else ema
        self.rate = one if slot.rate is None else slot.rate
        self.out, self.into = slot.weight.shape
        tiles = triton.cdiv(self.out, TILE["BO"]) * triton.cdiv(self.into, TILE["BI"])
        self.squares = torch.zeros(tiles, device=lr.device)  # of the weights, tile by tile

    def measure_weights(self) -> None:
        """Take the weight's norm, which each update then keeps up to date."""
        self.squares.zero_()
        self.squares[0] = self.slot.weight.norm() ** 2

    def update(self, x: Tensor, slope: Tensor) -> None:
        """One step of the weight, its momentum, its target and the copies."""
        self._move(x, slope, self.rate * self._trust(x, slope), (self.lr, self.ema), self.momentum)

    def rehearse(self, x: Tensor, slope: Tensor) -> None:
        """Compile the kernels by an update that changes nothing."""
        zero = torch.zeros_like(self.lr)
        self._trust(x, slope)
        self._move(x, slope, zero, (zero, zero + 1), 1.0)

    def _move(
        self, x: Tensor, slope: Tensor, share: Tensor, rates: tuple[Tensor, Tensor], momentum: float
    ) -> None:
        slot = self.slot
        target, target_copy = (t if t is not None else slot.weight for t in (slot.target, slot.target_copy))
        tensors = slot.weight, slot.velocity, slot.source, target, target_copy
        kind: dict[str, Any] = {"ROWS": len(x), "IN": self.into, "OUT": self.out}
        kind |= {"TARGET": slot.target is not None}
        _move_by_product[(len(self.squares),)](
            x, slope, *tensors, share, *rates, self.squares, slot.decay, momentum, **kind, **TILE
        )

    def _trust(self, x: Tensor, slope: Tensor) -> Tensor:
        """LARS's trust ratio, of which plain SGD has 1."""
        if not self.slot.trust:
            return torch.ones_like(self.lr)
        g_norm = product_norm(x, slope)
        p_norm = self.squares.sum().sqrt()
        ratio = self.eta * p_norm / (g_norm + self.slot.decay * p_norm + 1e-8) / self.lr.clamp_min(1e-12)
        return torch.where((p_norm > 0) & (g_norm > 0), ratio.clamp_max(1.0), 1.0)


def product_norm(x: Tensor, slope: Tensor) -> Tensor:
    """The norm of slope^T x, from rows by rows instead of out by in."""
    # the long sum in parts: one product of few rows would leave most of a GPU idle
    parts = max(n for n in range(1, 33) if x.shape[1] % (8 * n) == 0 or n == 1)
    pieces = x.unflatten(1, (parts, -1)).transpose(0, 1)
    near, far = (_gram(t) for t in (slope[None], pieces))
    return (near * far.sum(0)).sum().clamp_min(0).sqrt()


def _gram(x: Tensor) -> Tensor:
    if x.is_cuda and x.dtype != torch.float32:
        return torch.bmm(x, x.mT, out_dtype=torch.float32)
    return torch.bmm(x.float(), x.float().mT)


@triton.jit
def _tile(
    g, o, i, weight, velocity, copy, target, target_copy, share, shrink, rate, follow, momentum,
    IN: tl.constexpr, OUT: tl.constexpr, TARGET: tl.constexpr,
):  # fmt: skip
    """Move the weights of rows o and columns i by their gradient; returns the sum of their squares."""
    at = o.to(tl.int64)[:, None] * IN + i[None, :]
    inside = (o < OUT)[:, None] & (i < IN)[None, :]
    p = tl.load(weight + at, mask=inside, other=0.0)
    v = tl.load(velocity + at, mask=inside, other=0.0).to(tl.float32)
    v = momentum * v + share * (g + shrink * p)
    p = p - rate * v
    tl.store(velocity + at, v.to(velocity.dtype.element_ty), mask=inside)
    tl.store(weight + at, p, mask=inside)
    tl.store(copy + at, p.to(copy.dtype.element_ty), mask=inside)
    if TARGET:
        t = tl.load(target + at, mask=inside, other=0.0)
        t = t + follow * (p - t)
        tl.store(target + at, t, mask=inside)
        tl.store(target_copy + at, t.to(target_copy.dtype.element_ty), mask=inside)
    return tl.sum(tl.where(inside, p * p, 0.0))


@triton.jit
def _halves(x):
    """The left and the right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), [0, 2, 1]))


@triton.jit
def _move_by_product(
    x,
    slope,
    weight,
    velocity,
    copy,
    target,
    target_copy,
    share,
    lr,
    ema,
    squares,
    shrink,
    momentum,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TARGET: tl.constexpr,
    BO: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
):
    # all outputs of some inputs one after the other: x is read once, slope stays in the cache
    tile, blocks = tl.program_id(0), tl.cdiv(OUT, BO)
    first_o, first_i = tile % blocks * BO, tile // blocks * BI
    o, i = first_o + tl.arange(0, BO), first_i + tl.arange(0, BI)
    g = tl.zeros([BO, BI], tl.float32)
    for k in range(0, ROWS, BK):
        rows = k + tl.arange(0, BK)
        there = (rows < ROWS)[:, None]
        s = tl.load(slope + rows[:, None] * OUT + o[None, :], mask=there & (o < OUT)[None, :], other=0.0)
        given = tl.load(x + rows[:, None] * IN + i[None, :], mask=there & (i < IN)[None, :], other=0.0)
        g = tl.dot(tl.trans(s), given, g)
    factors = tl.load(share), shrink, tl.load(lr), 1 - tl.load(ema), momentum
    tensors = weight, velocity, copy, target, target_copy
    # in parts, which need fewer registers
    PART: tl.constexpr = BI // PARTS
    part = first_i + tl.arange(0, PART)
    total = 0.0
    if PARTS == 1:
        total += _tile(g, o, i, *tensors, *factors, IN, OUT, TARGET)
    elif PARTS == 2:
        a, b = _halves(g)
        total += _tile(a, o, part, *tensors, *factors, IN, OUT, TARGET)
        total += _tile(b, o, part + PART, *tensors, *factors, IN, OUT, TARGET)
    else:
        left, right = _halves(g)
        a, b = _halves(left)
        total += _tile(a, o, part, *tensors, *factors, IN, OUT, TARGET)
        total += _tile(b, o, part + PART, *tensors, *factors, IN, OUT, TARGET)
        a, b = _halves(right)
        total += _tile(a, o, part + 2 * PART, *tensors, *factors, IN, OUT, TARGET)
        total += _tile(b, o, part + 3 * PART, *tensors, *factors, IN, OUT, TARGET)
    tl.store(squares + tile, total)
