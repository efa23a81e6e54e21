"""The Triton kernel of ``probe_inputs.simplices``."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # values that a program computes


def multi_temperature(
    logits: Tensor, vertices: int, temperatures: tuple[float, ...], dtype: torch.dtype
) -> Tensor:
    """(N, L * V) logits to simplices (temperatures, N, L * V)."""
    logits = logits.contiguous()
    out = torch.empty(len(temperatures), *logits.shape, dtype=dtype, device=logits.device)
    count, pad = logits.numel() // vertices, triton.next_power_of_2(vertices)
    block = max(1, TILE // pad)
    sizes = count, len(temperatures), vertices, pad, block
    with torch.cuda.device_of(logits):  # a kernel runs on the current one
        softmaxes[(triton.cdiv(count, block),)](logits, out, _inverse(temperatures, logits.device), *sizes)
    return out


@functools.cache
def _inverse(temperatures: tuple[float, ...], device: torch.device) -> Tensor:
    """1 / temperature, infinite for 0; cached, since no step should wait for the device."""
    return 1 / torch.tensor(temperatures, device=device)


@triton.jit
def softmaxes(logits, out, inverse, N, T: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr, S: tl.constexpr):
    """S of N simplices of V logits, padded to a power of two, read once and written at T temperatures.

    ``inverse`` holds 1 / temperature.
    """
    simplex, vertex = tl.program_id(0) * S + tl.arange(0, S), tl.arange(0, PAD)
    at = simplex.to(tl.int64)[:, None] * V + vertex[None, :]
    there = (simplex < N)[:, None] & (vertex < V)[None, :]
    value = tl.load(logits + at, mask=there, other=-float("inf")).to(tl.float32)
    top, first = tl.max(value, 1, return_indices=True)
    below = tl.where(there, value - top[:, None], -float("inf"))
    one_hot = (vertex[None, :] == first[:, None]).to(tl.float32)
    for t in range(T):
        scale = tl.load(inverse + t)
        powers = tl.where(scale == float("inf"), one_hot, tl.exp(below * scale))
        share = powers / tl.sum(powers, 1)[:, None]
        tl.store(out + tl.cast(t, tl.int64) * N * V + at, share.to(out.dtype.element_ty), mask=there)
