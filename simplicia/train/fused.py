"""LARS, SGD and the moving average in one pass over memory: Triton kernels for all tensors at once.

The arithmetic is that of ``optim.LARS`` and ``TargetMethod.after_step``. One pass reads weight, gradient, momentum
and target and writes weight, momentum, target and the 16-bit copies that the next forward uses.
"""

from dataclasses import dataclass

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
    """``update()`` moves every slot. Addresses are read from tables, so gradients may be those of a captured graph."""

    def __init__(self, slots: list[Slot], lr: Tensor, momentum: float, eta: float, ema: Tensor | None):
        device = lr.device
        self.slots, self.lr, self.momentum, self.eta = slots, lr, momentum, eta
        self.ema = torch.ones((), device=device) if ema is None else ema
        sizes = [slot.weight.numel() for slot in slots]
        chunks = [-(-size // CHUNK) for size in sizes]
        first = torch.tensor([0, *torch.tensor(chunks).cumsum(0).tolist()])
        owner = torch.repeat_interleave(torch.arange(len(slots)), torch.tensor(chunks))
        self.owner = owner.to(device, torch.int32)
        self.place = (torch.arange(len(owner)) - first[owner]).to(device, torch.int32)
        self.first = first.to(device, torch.int32)
        self.size = torch.tensor(sizes, device=device)
        self.decay = torch.tensor([slot.decay for slot in slots], device=device)
        self.trusted = torch.tensor([float(slot.trust) for slot in slots], device=device)
        self.partial = torch.zeros(2, len(owner), device=device)
        self.ratio = torch.ones(len(slots), device=device)
        self.one = torch.ones((), device=device)
        self.half_velocity = slots[0].velocity.dtype == torch.bfloat16
        self.pointers = torch.zeros(7, len(slots), dtype=torch.int64, device=device)
        self.half_grad = torch.zeros(len(slots), dtype=torch.int32, device=device)

    def find_gradients(self) -> None:
        """Read where everything lies now; to be called when gradients have their final addresses."""

        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        rows = []
        for slot in self.slots:
            grad = slot.source.grad
            assert grad is not None and grad.stride() == slot.weight.stride(), "a gradient lies otherwise"
            copy = None if slot.source is slot.weight else slot.source
            rate = self.one if slot.rate is None else slot.rate
            tensors = slot.weight, grad, slot.velocity, slot.target, copy, slot.target_copy, rate
            rows.append([address(t) for t in tensors])
        self.pointers.copy_(torch.tensor(rows).T)
        self.half_grad.copy_(torch.tensor([int(s.source.grad.dtype == torch.bfloat16) for s in self.slots]))  # type: ignore[union-attr]

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
        tables = self.pointers, self.half_grad, self.owner, self.place, self.size
        grid = (len(self.owner),)
        count = len(self.slots)
        _norms[grid](*tables, self.partial, count, len(self.owner), CHUNK=CHUNK, num_warps=8)
        _ratios[(count,)](
            self.partial, self.first, self.decay, self.trusted, self.lr, self.ratio, self.eta, len(self.owner), BLOCK=1024
        )
        _move[grid](
            *tables,
            self.ratio,
            self.decay,
            self.lr,
            self.ema,
            self.momentum,
            count,
            CHUNK=CHUNK,
            HALF_VELOCITY=self.half_velocity,
            num_warps=8,
        )


@triton.jit
def _gradient(pointers, half_grad, slot, offsets, inside, COUNT):
    address = tl.load(pointers + COUNT + slot)
    if tl.load(half_grad + slot) == 1:
        g = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + offsets, mask=inside, other=0.0).to(tl.float32)
    else:
        g = tl.load(address.to(tl.pointer_type(tl.float32)) + offsets, mask=inside, other=0.0)
    return g


@triton.jit
def _norms(pointers, half_grad, owner, place, size, partial, COUNT, CHUNKS, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    slot = tl.load(owner + chunk)
    offsets = tl.load(place + chunk).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = offsets < tl.load(size + slot)
    p = tl.load(tl.load(pointers + slot).to(tl.pointer_type(tl.float32)) + offsets, mask=inside, other=0.0)
    g = _gradient(pointers, half_grad, slot, offsets, inside, COUNT)
    tl.store(partial + chunk, tl.sum(p * p))
    tl.store(partial + CHUNKS + chunk, tl.sum(g * g))


@triton.jit
def _ratios(partial, first, decay, trusted, lr, ratio, eta, CHUNKS, BLOCK: tl.constexpr):
    slot = tl.program_id(0)
    start, end = tl.load(first + slot), tl.load(first + slot + 1)
    p_sum = tl.zeros([BLOCK], tl.float32)
    g_sum = tl.zeros([BLOCK], tl.float32)
    for at in range(start, end, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        p_sum += tl.load(partial + offsets, mask=offsets < end, other=0.0)
        g_sum += tl.load(partial + CHUNKS + offsets, mask=offsets < end, other=0.0)
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
    momentum,
    COUNT,
    CHUNK: tl.constexpr,
    HALF_VELOCITY: tl.constexpr,
):
    chunk = tl.program_id(0)
    slot = tl.load(owner + chunk)
    offsets = tl.load(place + chunk).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = offsets < tl.load(size + slot)
    p_at = tl.load(pointers + slot).to(tl.pointer_type(tl.float32)) + offsets
    p = tl.load(p_at, mask=inside, other=0.0)
    g = _gradient(pointers, half_grad, slot, offsets, inside, COUNT)
    if HALF_VELOCITY:
        v_at = tl.load(pointers + 2 * COUNT + slot).to(tl.pointer_type(tl.bfloat16)) + offsets
    else:
        v_at = tl.load(pointers + 2 * COUNT + slot).to(tl.pointer_type(tl.float32)) + offsets
    v = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
    rate = tl.load(tl.load(pointers + 6 * COUNT + slot).to(tl.pointer_type(tl.float32)))
    v = momentum * v + rate * tl.load(ratio + slot) * (g + tl.load(decay + slot) * p)
    p = p - tl.load(lr) * v
    tl.store(v_at, v.to(v_at.dtype.element_ty), mask=inside)
    tl.store(p_at, p, mask=inside)
    copy = tl.load(pointers + 4 * COUNT + slot)
    if copy != 0:
        tl.store(copy.to(tl.pointer_type(tl.bfloat16)) + offsets, p.to(tl.bfloat16), mask=inside)
    target = tl.load(pointers + 3 * COUNT + slot)
    if target != 0:
        t_at = target.to(tl.pointer_type(tl.float32)) + offsets
        t = tl.load(t_at, mask=inside, other=0.0)
        t = t + (1 - tl.load(ema)) * (p - t)
        tl.store(t_at, t, mask=inside)
        target_copy = tl.load(pointers + 5 * COUNT + slot)
        if target_copy != 0:
            tl.store(target_copy.to(tl.pointer_type(tl.bfloat16)) + offsets, t.to(tl.bfloat16), mask=inside)
