"""The Triton kernel of ``probe_inputs.simplices``."""

import triton
import triton.language as tl


@triton.jit
def softmaxes(
    logits,
    out,
    inverse,  # of each temperature
    N,
    T: tl.constexpr,
    V: tl.constexpr,
    PAD: tl.constexpr,
    S: tl.constexpr,
):
    """S of N simplices of V logits, padded to a power of two, read once and written at T temperatures."""
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
