"""LARS, SGD and the moving average of the target in one pass over memory, for all tensors at once.

The arithmetic is that of ``train.step.LARS`` and ``TargetMethod.after_step``. One pass reads weight,
gradient, momentum and target and writes weight, momentum, target and the 16-bit copies for the next forward.

A large weight can be stored in two halves (``halve``): its 16-bit copy, and the 16 bits that the copy lacks.
Together they are the exact 32-bit weight, and the copy needs no extra write: an eighth less to move, and a
third less to store.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simplicia.engine import update_kernels as kernels
from simplicia.engine.runner import runs_kernels
from simplicia.errors import UserError

CHUNK = 16384  # numbers of one tensor per program
BLOCK = 2048  # numbers of a chunk in flight at once
# For weights in halves: few programs that prefetch move as much as many that do not, and leave the other
# multiprocessors to concurrent work.
LARGE_CHUNK, LARGE_BLOCK = 1 << 18, 4096
AHEAD = 3  # blocks in the pipeline, the current one included
BYTES = 14  # per number: halves of weight and target, velocity, gradient
MORE_FOR_SUMS = 3  # if the gradient has 32 bits, as compiled


def _large_block(device: torch.device, size: int) -> int:
    """The largest block whose pipeline, of ``size`` bytes a number, fits a multiprocessor's shared memory."""
    block = LARGE_BLOCK
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        while (AHEAD - 1) * size * block > room - 4096:  # the rest is for sums
            block //= 2
    return block


def _programs(device: torch.device) -> int:
    """Three of eight multiprocessors."""
    if device.type != "cuda":
        return 3
    return max(1, torch.cuda.get_device_properties(device).multi_processor_count * 3 // 8)


@dataclass
class Slot:
    """A weight and the tensors that move with it, all of the same shape and memory layout."""

    weight: Tensor  # float32; only its shape counts if ``low`` is set
    source: Tensor  # the tensor whose .grad is this weight's: itself, or its 16-bit copy
    velocity: Tensor
    decay: float
    trust: bool
    target: Tensor | None = None  # float32
    target_copy: Tensor | None = None  # bfloat16, of the target
    rate: Tensor | None = None  # 0-d: multiplies the update
    low: Tensor | None = None  # int16: the bits that the copy in ``source`` lacks
    target_low: Tensor | None = None  # the same for the target
    total: Tensor | None = None  # float32: the gradient's sum over micro-batches

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the step."""
        return None if self.source.grad is None else self.source.grad if self.total is None else self.total


class FusedUpdate:
    """``update()`` moves every slot, by kernels, or by PyTorch where no kernels run.

    Kernels read addresses from tables, so gradients may belong to a captured graph. Either all slots are in
    halves, or none is; and all have a total, or none has.
    """

    def __init__(self, slots: list[Slot], lr: Tensor, momentum: float, eta: float, ema: Tensor | None):
        device = lr.device
        self.runs_kernels = runs_kernels(device)
        self.slots, self.lr, self.momentum, self.eta = slots, lr, momentum, eta
        self.one = torch.ones((), device=device)
        self.ema = self.one if ema is None else ema
        sizes = torch.tensor([slot.weight.numel() for slot in slots])
        halves = slots[0].low is not None
        sums = slots[0].total is not None
        assert all((slot.low is not None, slot.total is not None) == (halves, sums) for slot in slots)
        chunk = LARGE_CHUNK if halves else CHUNK
        chunks = (sizes + chunk - 1) // chunk
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
        self.pointers = torch.zeros(9, len(slots), dtype=torch.int64, device=device)
        self.half_grad = torch.zeros(len(slots), dtype=torch.int32, device=device)
        # accesses of sixteen bytes (eight 16-bit numbers) need sizes that are multiples of eight; the
        # allocator aligns addresses
        self.options = {
            "CHUNK": chunk,
            "BLOCK": _large_block(device, BYTES + MORE_FOR_SUMS * sums) if halves else BLOCK,
            "ALIGNED": bool((sizes % 8 == 0).all()),
            "HALVES": halves,
            "SUMS": sums,
            "AHEAD": AHEAD if halves else 1,
            "num_warps": 8 if halves else 4,
        }
        self.programs = min(_programs(device), len(owner)) if halves else len(owner)
        self.half_velocity = slots[0].velocity.dtype == torch.bfloat16

    def find_gradients(self) -> None:
        """Read all addresses, once gradients have their final ones."""

        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        rows, half = [], []
        for slot in self.slots:
            grad = slot.grad
            if grad is None:
                shape = tuple(slot.weight.shape)
                raise UserError(f"a weight of shape {shape} gets no gradient; --engine eager allows that")
            assert _steps(grad) == _steps(slot.velocity), "a gradient has another layout than its weight"
            copy = slot.source if slot.source.dtype == torch.bfloat16 else None
            rate = self.one if slot.rate is None else slot.rate
            averaged = slot.target, copy, slot.target_copy
            tensors = slot.weight, grad, slot.velocity, *averaged, rate, slot.low, slot.target_low
            rows.append([address(t) for t in tensors])
            half.append(int(grad.dtype == torch.bfloat16))
        self.pointers.copy_(torch.tensor(rows).T)
        self.half_grad.copy_(torch.tensor(half))

    def measure_weights(self) -> None:
        """Compute the weights' norms, which each update then keeps current."""
        if self.runs_kernels:
            self._launch(kernels.square, len(self.owner), self.squares, WEIGHTS=True)

    def rehearse(self) -> None:
        """Compile the kernels by an update that changes nothing."""
        if not self.runs_kernels:
            return
        settings = self.lr, self.ema, self.momentum, self.pointers[6].clone()
        zero = torch.zeros_like(self.one)
        self.lr, self.ema, self.momentum = zero, self.one, 1.0
        self.pointers[6] = zero.data_ptr()
        self.update()
        self.lr, self.ema, self.momentum = settings[:3]
        self.pointers[6] = settings[3]

    def update(self) -> None:
        """One step of all weights, momenta, targets and copies."""
        if not self.runs_kernels:
            for slot in self.slots:
                self._update_plainly(slot)
            return
        count, chunks = len(self.slots), len(self.owner)
        self._launch(kernels.square, chunks, self.squares, WEIGHTS=False)
        of_slots = self.first, self.decay, self.trusted
        kernels.trust[(count,)](
            self.squares, *of_slots, self.lr, self.ratio, self.eta, chunks, BLOCK=4096, num_warps=16
        )
        changing = self.ratio, self.decay, self.lr, self.ema, self.squares, self.momentum
        self._launch(kernels.move, self.programs, *changing, HALF_VELOCITY=self.half_velocity)

    @torch.no_grad()
    def _update_plainly(self, slot: Slot) -> None:
        """Compute what the kernels compute, for one slot."""
        assert slot.grad is not None
        copy, grad = slot.source.detach(), slot.grad.float()
        weight = slot.weight if slot.low is None else merge_halves(copy, slot.low)
        p_norm, g_norm = weight.norm(), grad.norm()
        ratio = self.eta * p_norm / (g_norm + slot.decay * p_norm + 1e-8) / self.lr.clamp_min(1e-12)
        trusted = (p_norm > 0) & (g_norm > 0) & slot.trust
        rate = self.one if slot.rate is None else slot.rate
        share = torch.where(trusted, ratio.clamp_max(1.0), 1.0) * rate
        velocity = self.momentum * slot.velocity.float() + share * (grad + slot.decay * weight)
        slot.velocity.copy_(velocity)
        moved = weight - self.lr * velocity
        _store(moved, slot.weight, copy if copy.dtype == torch.bfloat16 else None, slot.low)
        if slot.target is not None or slot.target_low is not None:
            target = slot.target
            if slot.target_low is not None and slot.target_copy is not None:
                target = merge_halves(slot.target_copy, slot.target_low)
            assert target is not None
            average = target + (1 - self.ema) * (moved - target)
            _store(average, slot.target, slot.target_copy, slot.target_low)

    def _launch(self, kernel: Any, programs: int, *arguments: Any, **more: Any) -> None:
        tables = self.pointers, self.half_grad, self.owner, self.place, self.size
        sizes = len(self.slots), len(self.owner)
        kernel[(programs,)](*tables, *arguments, *sizes, **more, **self.options)


def _steps(tensor: Tensor) -> list[int]:
    """The strides that decide where numbers are: a dimension of size 1, as in a depthwise weight, has any."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _store(value: Tensor, weight: Tensor | None, copy: Tensor | None, low: Tensor | None) -> None:
    """Write a weight in 32 bits and its 16-bit copy, or its two halves."""
    if low is not None and copy is not None:
        low.copy_(halve(value, copy))
        return
    if weight is not None:
        weight.copy_(value)
    if copy is not None:
        copy.copy_(value)


def halve(weight: Tensor, copy: Tensor) -> Tensor:
    """Write a weight, rounded, to its 16-bit copy; returns the bits that the copy lacks, as int16."""
    low = torch.empty(weight.shape, dtype=torch.int16, device=weight.device)
    parts = weight, copy.view(torch.int16), low
    for numbers, upper, lower in zip(*(part.view(-1).split(1 << 24) for part in parts), strict=True):
        bits = numbers.view(torch.int32).masked_fill(numbers.isnan(), kernels.NAN.value)
        high = (bits + 0x8000) >> 16
        upper.copy_(high)
        lower.copy_(bits - (high << 16))
    return low


def merge_halves(copy: Tensor, low: Tensor) -> Tensor:
    """The 32-bit weight of two halves, in host memory."""
    weight = torch.empty(copy.shape)
    parts = weight.view(torch.int32), copy.view(torch.int16), low
    for bits, upper, lower in zip(*(part.view(-1).split(1 << 24) for part in parts), strict=True):
        bits.copy_((upper.int() << 16) + lower)
    return weight
