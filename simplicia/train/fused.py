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

CHUNK = 4096


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
        # sixteen bytes at a time need sizes (and addresses, which the allocator gives) that allow it
        self.options = {"CHUNK": CHUNK, "ALIGNED": bool((sizes % 16 == 0).all()), "num_warps": 8}
        self.half_velocity = slots[0].velocity.dtype == torch.bfloat16

    def find_gradients(self) -> None:
        """Read where everything lies now; to be called when gradients have their final addresses."""

        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        rows, half = [], []
        for slot in self.slots:
            grad = slot.source.grad
            assert grad is not None and grad.stride() == slot.weight.stride(), "a gradient lies otherwise"
            copy = None if slot.source is slot.weight else slot.source
            rate = self.one if slot.rate is None else slot.rate
            tensors = slot.weight, grad, slot.velocity, slot.target, copy, slot.target_copy, rate
            rows.append([address(t) for t in tensors])
            half.append(int(grad.dtype == torch.bfloat16))
        self.pointers.copy_(torch.tensor(rows).T)
        self.half_grad.copy_(torch.tensor(half))

    def measure_weights(self) -> None:
        """Take the weights' norms, which each update then keeps up to date."""
        self._launch(_square, self.squares, len(self.slots), len(self.owner), WEIGHTS=True)

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
        self._launch(_square, self.squares, count, chunks, WEIGHTS=False)
        of_slots = self.first, self.decay, self.trusted
        _trust[(count,)](
            self.squares, *of_slots, self.lr, self.ratio, self.eta, chunks, BLOCK=4096, num_warps=16
        )
        changing = self.ratio, self.decay, self.lr, self.ema, self.squares, self.momentum
        self._launch(_move, *changing, count, HALF_VELOCITY=self.half_velocity)

    def _launch(self, kernel: Any, *arguments: Any, **more: Any) -> None:
        tables = self.pointers, self.half_grad, self.owner, self.place, self.size
        kernel[(len(self.owner),)](*tables, *arguments, **more, **self.options)


@triton.jit
def _part(owner, place, size, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """This program's slot, and its elements of it."""
    chunk = tl.program_id(0)
    slot = tl.load(owner + chunk)
    offsets = tl.load(place + chunk).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    end = tl.load(size + slot)
    if ALIGNED:
        end = tl.multiple_of(end, 16)
    return slot, offsets, offsets < end


@triton.jit
def _at(address, offsets, kind: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to elements of the tensor at an address."""
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(kind)) + offsets


@triton.jit
def _gradient(pointers, half_grad, slot, offsets, inside, COUNT, ALIGNED: tl.constexpr):
    address = tl.load(pointers + COUNT + slot)
    if tl.load(half_grad + slot) == 1:
        g = tl.load(_at(address, offsets, tl.bfloat16, ALIGNED), mask=inside, other=0.0).to(tl.float32)
    else:
        g = tl.load(_at(address, offsets, tl.float32, ALIGNED), mask=inside, other=0.0)
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
    ALIGNED: tl.constexpr,
):
    slot, offsets, inside = _part(owner, place, size, CHUNK, ALIGNED)
    if WEIGHTS:
        p = tl.load(_at(tl.load(pointers + slot), offsets, tl.float32, ALIGNED), mask=inside, other=0.0)
        tl.store(squares + tl.program_id(0), tl.sum(p * p))
    else:
        g = _gradient(pointers, half_grad, slot, offsets, inside, COUNT, ALIGNED)
        tl.store(squares + CHUNKS + tl.program_id(0), tl.sum(g * g))


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
    HALF_VELOCITY: tl.constexpr,
    CHUNK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    slot, offsets, inside = _part(owner, place, size, CHUNK, ALIGNED)
    p_at = _at(tl.load(pointers + slot), offsets, tl.float32, ALIGNED)
    if HALF_VELOCITY:
        v_at = _at(tl.load(pointers + 2 * COUNT + slot), offsets, tl.bfloat16, ALIGNED)
    else:
        v_at = _at(tl.load(pointers + 2 * COUNT + slot), offsets, tl.float32, ALIGNED)
    p = tl.load(p_at, mask=inside, other=0.0)
    v = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
    g = _gradient(pointers, half_grad, slot, offsets, inside, COUNT, ALIGNED)
    rate = tl.load(tl.load(pointers + 6 * COUNT + slot).to(tl.pointer_type(tl.float32)))
    v = momentum * v + rate * tl.load(ratio + slot) * (g + tl.load(decay + slot) * p)
    p = p - tl.load(lr) * v
    tl.store(v_at, v.to(v_at.dtype.element_ty), mask=inside)
    tl.store(p_at, p, mask=inside)
    tl.store(squares + tl.program_id(0), tl.sum(tl.where(inside, p * p, 0.0)))
    copy = tl.load(pointers + 4 * COUNT + slot)
    if copy != 0:
        tl.store(_at(copy, offsets, tl.bfloat16, ALIGNED), p.to(tl.bfloat16), mask=inside)
    target = tl.load(pointers + 3 * COUNT + slot)
    if target != 0:
        t_at = _at(target, offsets, tl.float32, ALIGNED)
        t = tl.load(t_at, mask=inside, other=0.0)
        t = t + (1 - tl.load(ema)) * (p - t)
        tl.store(t_at, t, mask=inside)
        target_copy = tl.load(pointers + 5 * COUNT + slot)
        if target_copy != 0:
            tl.store(_at(target_copy, offsets, tl.bfloat16, ALIGNED), t.to(tl.bfloat16), mask=inside)
