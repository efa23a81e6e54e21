"""LARS, SGD and the moving average in one pass over memory: Triton kernels for all tensors at once.

The arithmetic is that of ``optim.LARS`` and ``TargetMethod.after_step``. One pass reads weight, gradient,
momentum and target and writes weight, momentum, target and the 16-bit copies that the next forward uses.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from simplicia.errors import UserError

CHUNK = 16384  # of one tensor, what a program takes at a time
BLOCK = 2048  # of a chunk, what is in flight at once


@dataclass
class Slot:
    """A weight and what goes with it. All tensors of a slot have the same shape and memory layout."""

    weight: Tensor  # float32
    source: Tensor  # the tensor whose .grad is this weight's: itself, or its 16-bit copy
    velocity: Tensor
    decay: float
    trust: bool
    target: Tensor | None = None  # float32
    target_copy: Tensor | None = None  # bfloat16, of the target
    rate: Tensor | None = None  # 0-d: multiplies the update


class FusedUpdate:
    """``update()`` moves every slot. Addresses come from tables: gradients may be a captured graph's."""

    def __init__(self, slots: list[Slot], lr: Tensor, momentum: float, eta: float, ema: Tensor | None):
        device = lr.device
        self.slots, self.lr, self.momentum, self.eta = slots, lr, momentum, eta
        self.one = torch.ones((), device=device)
        self.ema = self.one if ema is None else ema
        sizes = torch.tensor([slot.weight.numel() for slot in slots])
        chunks = (sizes + CHUNK - 1) // CHUNK
        first = torch.cat([torch.zeros(1, dtype=torch.long), chunks.cumsum(0)])
        owner = torch.repeat_interleave(torch.arange(len(slots)), chunks)
        self.owner = owner.to(device, torch.int32)
        self.place = (torch.arange(len(owner)) - first[owner]).to(device, torch.int32)
        self.first = first.to(device, torch.int32)
        self.size = sizes.to(device)
        self.decay = torch.tensor([slot.decay for slot in slots], device=device)
        self.trusted = torch.tensor([float(slot.trust) for slot in slots], device=device)
        self.squares = torch.zeros(2, len(owner), device=device)  # per chunk, of weights and of gradients
        self.ratio = torch.ones(len(slots), device=device)
        self.pointers = torch.zeros(7, len(slots), dtype=torch.int64, device=device)
        self.half_grad = torch.zeros(len(slots), dtype=torch.int32, device=device)
        # sixteen bytes at a time, eight numbers of 16 bits, need sizes (and addresses, which the allocator
        # gives) that allow it
        self.options = {
            "CHUNK": CHUNK,
            "BLOCK": BLOCK,
            "ALIGNED": bool((sizes % 8 == 0).all()),
            "num_warps": 4,
        }
        self.half_velocity = slots[0].velocity.dtype == torch.bfloat16

    def find_gradients(self) -> None:
        """Read where everything lies now; to be called when gradients have their final addresses."""

        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        rows, half = [], []
        for slot in self.slots:
            grad = slot.source.grad
            if grad is None:
                shape = tuple(slot.weight.shape)
                raise UserError(f"a weight of shape {shape} gets no gradient, which --engine eager allows")
            assert grad.stride() == slot.weight.stride(), "a gradient lies otherwise"
            copy = slot.source if slot.source.dtype == torch.bfloat16 else None
            rate = self.one if slot.rate is None else slot.rate
            tensors = slot.weight, grad, slot.velocity, slot.target, copy, slot.target_copy, rate
            rows.append([address(t) for t in tensors])
            half.append(int(grad.dtype == torch.bfloat16))
        self.pointers.copy_(torch.tensor(rows).T)
        self.half_grad.copy_(torch.tensor(half))

    def measure_weights(self) -> None:
        """Take the weights' norms, which each update then keeps up to date."""
        self._launch(_square, self.squares, WEIGHTS=True)

    def rehearse(self) -> None:
        """Compile the kernels by an update that changes nothing."""
        kept = self.lr, self.ema, self.momentum, self.pointers[6].clone()
        zero = torch.zeros_like(self.one)
        self.lr, self.ema, self.momentum = zero, self.one, 1.0
        self.pointers[6] = zero.data_ptr()
        self.update()
        self.lr, self.ema, self.momentum = kept[:3]
        self.pointers[6] = kept[3]

    def update(self) -> None:
        """One step of all weights, momenta, targets and copies."""
        count, chunks = len(self.slots), len(self.owner)
        self._launch(_square, self.squares, WEIGHTS=False)
        of_slots = self.first, self.decay, self.trusted
        _trust[(count,)](
            self.squares, *of_slots, self.lr, self.ratio, self.eta, chunks, BLOCK=4096, num_warps=16
        )
        changing = self.ratio, self.decay, self.lr, self.ema, self.squares, self.momentum
        self._launch(_move, *changing, HALF_VELOCITY=self.half_velocity)

    def _launch(self, kernel: Any, *arguments: Any, **more: Any) -> None:
        tables = self.pointers, self.half_grad, self.owner, self.place, self.size
        sizes = len(self.slots), len(self.owner)
        kernel[(len(self.owner),)](*tables, *arguments, *sizes, **more, **self.options)


@triton.jit
def _span(chunk, owner, place, size, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """A chunk's slot, and where in it the chunk starts and ends."""
    slot = tl.load(owner + chunk)
    start = tl.load(place + chunk).to(tl.int64) * CHUNK
    end = tl.minimum(tl.load(size + slot), start + CHUNK)
    if ALIGNED:
        end = tl.multiple_of(end, 8)
    return slot, start, end


@triton.jit
def _at(address, kind: tl.constexpr, ALIGNED: tl.constexpr):
    """A pointer to the tensor at an address."""
    pointer = address.to(tl.pointer_type(kind))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _end(address, start, end, ALIGNED: tl.constexpr):
    """Where a chunk ends in a tensor that may not be there."""
    end = tl.where(address != 0, end, start)
    if ALIGNED:
        end = tl.multiple_of(end, 8)
    return end


@triton.jit
def _gradient(address, half, offsets, inside, ALIGNED: tl.constexpr):
    if half == 1:
        g = tl.load(_at(address, tl.bfloat16, ALIGNED) + offsets, mask=inside, other=0.0).to(tl.float32)
    else:
        g = tl.load(_at(address, tl.float32, ALIGNED) + offsets, mask=inside, other=0.0)
    return g


@triton.jit
def _square(
    pointers,
    half_grad,
    owner,
    place,
    size,
    squares,
    COUNT,
    CHUNKS,
    WEIGHTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    chunk = tl.program_id(0)
    slot, start, end = _span(chunk, owner, place, size, CHUNK, ALIGNED)
    total = tl.zeros([BLOCK], tl.float32)
    if WEIGHTS:
        address, half, row = tl.load(pointers + slot), 0, chunk
    else:
        address, half, row = tl.load(pointers + COUNT + slot), tl.load(half_grad + slot), chunk + CHUNKS
    for at in range(start, end, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        x = _gradient(address, half, offsets, offsets < end, ALIGNED)
        total += x * x
    tl.store(squares + row, tl.sum(total))


@triton.jit
def _trust(squares, first, decay, trusted, lr, ratio, eta, CHUNKS, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    start, end = tl.load(first + slot), tl.load(first + slot + 1)
    p_sum = tl.zeros([BLOCK], tl.float32)
    g_sum = tl.zeros([BLOCK], tl.float32)
    for at in range(start, end, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        p_sum += tl.load(squares + offsets, mask=offsets < end, other=0.0)
        g_sum += tl.load(squares + CHUNKS + offsets, mask=offsets < end, other=0.0)
    p_norm, g_norm = tl.sqrt(tl.sum(p_sum)), tl.sqrt(tl.sum(g_sum))
    rate = tl.maximum(tl.load(lr), 1e-12)
    value = eta * p_norm / (g_norm + tl.load(decay + slot) * p_norm + 1e-8) / rate
    meaningful = (p_norm > 0) & (g_norm > 0) & (tl.load(trusted + slot) > 0)
    tl.store(ratio + slot, tl.where(meaningful, tl.minimum(value, 1.0), 1.0))


@triton.jit
def _move(
    pointers,
    half_grad,
    owner,
    place,
    size,
    ratio,
    decay,
    lr,
    ema,
    squares,
    momentum,
    COUNT,
    CHUNKS,
    HALF_VELOCITY: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    rate, follow = tl.load(lr), 1 - tl.load(ema)
    velocity_kind: tl.constexpr = tl.bfloat16 if HALF_VELOCITY else tl.float32
    chunk = tl.program_id(0)
    slot, start, end = _span(chunk, owner, place, size, CHUNK, ALIGNED)
    weight = _at(tl.load(pointers + slot), tl.float32, ALIGNED)
    grad, half = tl.load(pointers + COUNT + slot), tl.load(half_grad + slot)
    velocity = _at(tl.load(pointers + 2 * COUNT + slot), velocity_kind, ALIGNED)
    target_address = tl.load(pointers + 3 * COUNT + slot)
    copy_address = tl.load(pointers + 4 * COUNT + slot)
    target_copy_address = tl.load(pointers + 5 * COUNT + slot)
    copy_end = _end(copy_address, start, end, ALIGNED)
    target_end = _end(target_address, start, end, ALIGNED)
    target_copy_end = _end(target_copy_address, start, end, ALIGNED)
    target = _at(target_address, tl.float32, ALIGNED)
    copy = _at(copy_address, tl.bfloat16, ALIGNED)
    target_copy = _at(target_copy_address, tl.bfloat16, ALIGNED)
    share = tl.load(ratio + slot) * tl.load(
        tl.load(pointers + 6 * COUNT + slot).to(tl.pointer_type(tl.float32))
    )
    shrink = tl.load(decay + slot)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(start, end, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < end
        followed = offsets < target_end
        p = tl.load(weight + offsets, mask=inside, other=0.0)  # all loads first: they wait together
        v = tl.load(velocity + offsets, mask=inside, other=0.0).to(tl.float32)
        t = tl.load(target + offsets, mask=followed, other=0.0)
        g = _gradient(grad, half, offsets, inside, ALIGNED)
        v = momentum * v + share * (g + shrink * p)
        p = p - rate * v
        t = t + follow * (p - t)
        total += tl.where(inside, p * p, 0.0)
        tl.store(velocity + offsets, v.to(velocity_kind), mask=inside)
        tl.store(weight + offsets, p, mask=inside)
        tl.store(copy + offsets, p.to(tl.bfloat16), mask=offsets < copy_end)
        tl.store(target + offsets, t, mask=followed)
        tl.store(target_copy + offsets, t.to(tl.bfloat16), mask=offsets < target_copy_end)
    tl.store(squares + chunk, tl.sum(total))
