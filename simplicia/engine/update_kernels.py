"""The Triton kernels of ``update.py``. They read addresses of tensors from a table with one column per slot.

Its rows: weight, gradient, velocity, target, copy, target's copy, rate, and the remainders of both copies.
ALIGNED: sizes and addresses allow accesses of sixteen bytes. HALVES: weights are stored in two halves, and
their gradients have 16 bits. SUMS: all gradients have 32 bits, since they are sums over micro-batches.
"""

import triton
import triton.language as tl

NAN = tl.constexpr(0x7FC00000)  # rounding keeps this NaN; a GPU's own NaN would become 0


@triton.jit
def _join(high, low):
    """As ``merge_halves``."""
    return ((high.to(tl.int32) << 16) + low.to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _part(value):
    """As ``halve``."""
    bits = tl.where(value == value, value.to(tl.int32, bitcast=True), NAN)
    high = (bits + 0x8000) >> 16
    return high.to(tl.int16), (bits - (high << 16)).to(tl.int16)


@triton.jit
def _span(chunk, owner, place, size, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    """A chunk's slot, start and end."""
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
    """The end of a chunk in an optional tensor: its start if there is no tensor."""
    end = tl.where(address != 0, end, start)
    if ALIGNED:
        end = tl.multiple_of(end, 8)
    return end


@triton.jit
def _gradient(
    address, half, offsets, inside, ALIGNED: tl.constexpr, HALVES: tl.constexpr, SUMS: tl.constexpr
):  # fmt: skip
    if SUMS:  # known when compiled: without a branch at run time the load can be prefetched
        g = tl.load(_at(address, tl.float32, ALIGNED) + offsets, mask=inside, other=0.0)
    elif HALVES:  # noqa: SIM114
        g = tl.load(_at(address, tl.bfloat16, ALIGNED) + offsets, mask=inside, other=0.0).to(tl.float32)
    elif half == 1:
        g = tl.load(_at(address, tl.bfloat16, ALIGNED) + offsets, mask=inside, other=0.0).to(tl.float32)
    else:
        g = tl.load(_at(address, tl.float32, ALIGNED) + offsets, mask=inside, other=0.0)
    return g


@triton.jit
def square(
    pointers, half_grad, owner, place, size, squares, COUNT, CHUNKS,
    WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    HALVES: tl.constexpr, SUMS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    slot, start, end = _span(chunk, owner, place, size, CHUNK, ALIGNED)
    total = tl.zeros([BLOCK], tl.float32)
    if WEIGHTS and HALVES:
        address, half, row = tl.load(pointers + 4 * COUNT + slot), 0, chunk
    elif WEIGHTS:
        address, half, row = tl.load(pointers + slot), 0, chunk
    else:
        address, half, row = tl.load(pointers + COUNT + slot), tl.load(half_grad + slot), chunk + CHUNKS
    low = _at(tl.load(pointers + 7 * COUNT + slot), tl.int16, ALIGNED)
    for at in tl.range(start, end, BLOCK, num_stages=AHEAD):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < end
        if WEIGHTS and HALVES:
            upper = tl.load(_at(address, tl.int16, ALIGNED) + offsets, mask=inside, other=0)
            x = _join(upper, tl.load(low + offsets, mask=inside, other=0))
        else:
            x = _gradient(address, half, offsets, inside, ALIGNED, HALVES, SUMS)
        total += x * x
    tl.store(squares + row, tl.sum(total))


@triton.jit
def trust(squares, first, decay, trusted, lr, ratio, eta, CHUNKS, BLOCK: tl.constexpr):
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
def move(
    pointers, half_grad, owner, place, size, ratio, decay, lr, ema, squares, momentum, COUNT, CHUNKS,
    HALF_VELOCITY: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
    HALVES: tl.constexpr, SUMS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    rate, follow = tl.load(lr), 1 - tl.load(ema)
    velocity_kind: tl.constexpr = tl.bfloat16 if HALF_VELOCITY else tl.float32
    copy_kind: tl.constexpr = tl.int16 if HALVES else tl.bfloat16
    for chunk in range(tl.program_id(0), CHUNKS, tl.num_programs(0)):
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
        copy = _at(copy_address, copy_kind, ALIGNED)
        target_copy = _at(target_copy_address, copy_kind, ALIGNED)
        low = _at(tl.load(pointers + 7 * COUNT + slot), tl.int16, ALIGNED)
        target_low = _at(tl.load(pointers + 8 * COUNT + slot), tl.int16, ALIGNED)
        share = tl.load(ratio + slot) * tl.load(
            tl.load(pointers + 6 * COUNT + slot).to(tl.pointer_type(tl.float32))
        )
        shrink = tl.load(decay + slot)
        total = tl.zeros([BLOCK], tl.float32)
        for at in tl.range(start, end, BLOCK, num_stages=AHEAD):
            offsets = at + tl.arange(0, BLOCK)
            inside = offsets < end
            followed = offsets < (target_copy_end if HALVES else target_end)
            # all loads first, so that their latencies overlap
            if HALVES:
                upper = tl.load(copy + offsets, mask=inside, other=0)
                lower = tl.load(low + offsets, mask=inside, other=0)
                target_upper = tl.load(target_copy + offsets, mask=followed, other=0)
                target_lower = tl.load(target_low + offsets, mask=followed, other=0)
            else:
                p = tl.load(weight + offsets, mask=inside, other=0.0)
                t = tl.load(target + offsets, mask=followed, other=0.0)
            v = tl.load(velocity + offsets, mask=inside, other=0.0).to(tl.float32)
            g = _gradient(grad, half, offsets, inside, ALIGNED, HALVES, SUMS)
            if HALVES:
                p, t = _join(upper, lower), _join(target_upper, target_lower)
            v = momentum * v + share * (g + shrink * p)
            p = p - rate * v
            t = t + follow * (p - t)
            total += tl.where(inside, p * p, 0.0)
            tl.store(velocity + offsets, v.to(velocity_kind), mask=inside)
            if HALVES:
                upper, lower = _part(p)
                target_upper, target_lower = _part(t)
                tl.store(copy + offsets, upper, mask=inside)
                tl.store(low + offsets, lower, mask=inside)
                tl.store(target_copy + offsets, target_upper, mask=followed)
                tl.store(target_low + offsets, target_lower, mask=followed)
            else:
                tl.store(weight + offsets, p, mask=inside)
                tl.store(copy + offsets, p.to(tl.bfloat16), mask=offsets < copy_end)
                tl.store(target + offsets, t, mask=followed)
                tl.store(target_copy + offsets, t.to(tl.bfloat16), mask=offsets < target_copy_end)
        tl.store(squares + chunk, tl.sum(total))
