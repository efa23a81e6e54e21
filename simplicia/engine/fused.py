"""LARS, SGD and the moving average in one pass over memory, for all tensors at once.

The arithmetic is that of ``optim.LARS`` and ``TargetMethod.after_step``. One pass reads weight, gradient,
momentum and target and writes weight, momentum, target and the 16-bit copies that the next forward uses.

A large weight can be kept in two halves (``halve``): its 16-bit copy, and the 16 bits that the copy lacks.
Together they are the 32-bit weight, to the last bit, and the copy is no longer written beside it: an eighth
less to move, and a third less to hold.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simplicia.engine import fused_kernels as kernels
from simplicia.errors import UserError

CHUNK = 16384  # of one tensor, what a program takes at a time
BLOCK = 2048  # of a chunk, what is in flight at once
# Of weights in halves: few programs, which load ahead what they will need, move as much as many that do not,
# and leave the other multiprocessors to what runs beside them.
LARGE_CHUNK, LARGE_BLOCK = 1 << 18, 4096
AHEAD = 3  # blocks, counted from the one at hand
BYTES = 14  # of each number: halves of weight and target, velocity, gradient


def _large_block(device: torch.device) -> int:
    """As many numbers at once as a multiprocessor has room for, with those that are on their way."""
    block = LARGE_BLOCK
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        while (AHEAD - 1) * BYTES * block > room - 4096:  # the rest is for sums
            block //= 2
    return block


def _programs(device: torch.device) -> int:
    """Three of eight multiprocessors."""
    if device.type != "cuda":
        return 3
    return max(1, torch.cuda.get_device_properties(device).multi_processor_count * 3 // 8)


@dataclass
class Slot:
    """A weight and what goes with it. All tensors of a slot have the same shape and memory layout."""

    weight: Tensor  # float32; where ``low`` is given only its shape counts
    source: Tensor  # the tensor whose .grad is this weight's: itself, or its 16-bit copy
    velocity: Tensor
    decay: float
    trust: bool
    target: Tensor | None = None  # float32
    target_copy: Tensor | None = None  # bfloat16, of the target
    rate: Tensor | None = None  # 0-d: multiplies the update
    low: Tensor | None = None  # int16, with the copy in ``source`` the whole weight
    target_low: Tensor | None = None  # the same of the target


class FusedUpdate:
    """``update()`` moves every slot. Addresses come from tables: gradients may be a captured graph's.

    Either all slots are in halves, or none is.
    """

    def __init__(self, slots: list[Slot], lr: Tensor, momentum: float, eta: float, ema: Tensor | None):
        device = lr.device
        self.slots, self.lr, self.momentum, self.eta = slots, lr, momentum, eta
        self.one = torch.ones((), device=device)
        self.ema = self.one if ema is None else ema
        sizes = torch.tensor([slot.weight.numel() for slot in slots])
        halves = slots[0].low is not None
        assert all((slot.low is not None) == halves for slot in slots)
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
        # sixteen bytes at a time, eight numbers of 16 bits, need sizes (and addresses, which the allocator
        # gives) that allow it
        self.options = {
            "CHUNK": chunk,
            "BLOCK": _large_block(device) if halves else BLOCK,
            "ALIGNED": bool((sizes % 8 == 0).all()),
            "HALVES": halves,
            "AHEAD": AHEAD if halves else 1,
            "num_warps": 8 if halves else 4,
        }
        self.programs = min(_programs(device), len(owner)) if halves else len(owner)
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
            assert grad.stride() == slot.velocity.stride(), "a gradient lies otherwise"
            copy = slot.source if slot.source.dtype == torch.bfloat16 else None
            rate = self.one if slot.rate is None else slot.rate
            followed = slot.target, copy, slot.target_copy
            tensors = slot.weight, grad, slot.velocity, *followed, rate, slot.low, slot.target_low
            rows.append([address(t) for t in tensors])
            half.append(int(grad.dtype == torch.bfloat16))
        self.pointers.copy_(torch.tensor(rows).T)
        self.half_grad.copy_(torch.tensor(half))

    def measure_weights(self) -> None:
        """Take the weights' norms, which each update then keeps up to date."""
        self._launch(kernels.square, len(self.owner), self.squares, WEIGHTS=True)

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
        self._launch(kernels.square, chunks, self.squares, WEIGHTS=False)
        of_slots = self.first, self.decay, self.trusted
        kernels.trust[(count,)](
            self.squares, *of_slots, self.lr, self.ratio, self.eta, chunks, BLOCK=4096, num_warps=16
        )
        changing = self.ratio, self.decay, self.lr, self.ema, self.squares, self.momentum
        self._launch(kernels.move, self.programs, *changing, HALF_VELOCITY=self.half_velocity)

    def _launch(self, kernel: Any, programs: int, *arguments: Any, **more: Any) -> None:
        tables = self.pointers, self.half_grad, self.owner, self.place, self.size
        sizes = len(self.slots), len(self.owner)
        kernel[(programs,)](*tables, *arguments, *sizes, **more, **self.options)


def halve(weight: Tensor, copy: Tensor) -> Tensor:
    """Write a weight's upper half, rounded, to its 16-bit copy; returns what the copy lacks, as int16."""
    low = torch.empty(weight.shape, dtype=torch.int16, device=weight.device)
    parts = weight, copy.view(torch.int16), low
    for numbers, upper, lower in zip(*(part.view(-1).split(1 << 24) for part in parts), strict=True):
        bits = numbers.view(torch.int32).masked_fill(numbers.isnan(), kernels.NAN.value)
        high = (bits + 0x8000) >> 16
        upper.copy_(high)
        lower.copy_(bits - (high << 16))
    return low


def merge_halves(copy: Tensor, low: Tensor) -> Tensor:
    """The weight of two halves, in the host's memory."""
    weight = torch.empty(copy.shape)
    parts = weight.view(torch.int32), copy.view(torch.int16), low
    for bits, upper, lower in zip(*(part.view(-1).split(1 << 24) for part in parts), strict=True):
        bits.copy_((upper.int() << 16) + lower)
    return weight
