"""The Triton kernels of ``norm_operators.py``: a tile is R rows by B columns of a matrix with C columns.

Statistics are a float32 table (4, views, channels): scale, shift, mean, 1/deviation. Sums over a map are
computed in parts. Any program may be the one that adds the parts of a block; the order of the sum is fixed.
"""

import triton
import triton.language as tl


@triton.jit
def _columns(block, C: tl.constexpr, B: tl.constexpr):
    columns = block * B + tl.arange(0, B)
    return columns, columns < C


@triton.jit
def _vertices(block, C: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr, B: tl.constexpr):
    """Columns of simplices, each padded to a power of two."""
    lane = tl.arange(0, B)
    simplex, vertex = block * (B // PAD) + lane // PAD, lane % PAD
    return simplex * V + vertex, (vertex < V) & (simplex * V < C)


@triton.jit
def _place(view, row, ROWS, end, columns, inside, C: tl.constexpr, R: tl.constexpr):
    """Offsets and mask of R rows of a view, starting at a row."""
    local = tl.arange(0, R)
    first = (tl.cast(view, tl.int64) * ROWS + row) * C
    return first + local[:, None] * C + columns[None, :], (row + local < end)[:, None] & inside[None, :]


@triton.jit
def _simplices(view, row, ROWS, block, L: tl.constexpr, R: tl.constexpr, S: tl.constexpr):
    """Offsets and mask of S simplices of R rows in a (rows, simplices) table."""
    simplex = block * S + tl.arange(0, S)
    return _place(view, row, ROWS, ROWS, simplex, simplex < L, L, R)


@triton.jit
def _row_of(table, index, view, columns, inside, VIEWS, C: tl.constexpr):
    """A view's row of a (., views, channels) table."""
    return tl.load(table + (index * VIEWS + view) * C + columns, mask=inside, other=0.0)


@triton.jit
def _statistics(table, view, columns, inside, VIEWS, C: tl.constexpr):
    """Scale, shift, mean and 1/deviation of a view; the compiler drops the loads of those not used."""
    scale = _row_of(table, 0, view, columns, inside, VIEWS, C)
    shift = _row_of(table, 1, view, columns, inside, VIEWS, C)
    mean = _row_of(table, 2, view, columns, inside, VIEWS, C)
    rstd = _row_of(table, 3, view, columns, inside, VIEWS, C)
    return scale, shift, mean, rstd


@triton.jit
def _settle(
    s, q, view, weight, bias, statistics, ROWS, eps, columns, inside, VIEWS: tl.constexpr, C: tl.constexpr
):
    """Write the statistics of one view, or of many as a tile, from the sums; returns mean and variance."""
    m = s / ROWS
    v = tl.maximum(q / ROWS - m * m, 0.0)
    rstd = 1 / tl.sqrt(v + eps)
    scale = weight * rstd
    at = statistics + view * C + columns
    tl.store(at, scale, mask=inside)
    tl.store(at + VIEWS * C, bias - m * scale, mask=inside)
    tl.store(at + 2 * VIEWS * C, m, mask=inside)
    tl.store(at + 3 * VIEWS * C, rstd, mask=inside)
    return m, v * (ROWS / tl.maximum(ROWS - 1, 1))  # unbiased


@triton.jit
def _weights(weight, bias, mean, variance, columns, inside):
    """Weight and bias, running mean and variance."""
    gain = tl.load(weight + columns, mask=inside, other=0.0)
    offset = tl.load(bias + columns, mask=inside, other=0.0)
    now = tl.load(mean + columns, mask=inside, other=0.0)
    spread = tl.load(variance + columns, mask=inside, other=0.0)
    return gain, offset, now, spread


@triton.jit
def _count(block, batches, VIEWS):
    if block == 0:
        tl.store(batches, tl.load(batches) + VIEWS)


@triton.jit
def _last(arrived, block):
    """Whether all other programs of a block of channels have stored their sums, so that this may read them.

    The counter is 0 before a launch, and after it.
    """
    tl.debug_barrier()  # one thread counts for the program: all must have stored
    others = tl.num_programs(0) * tl.num_programs(2) - 1
    last = tl.atomic_add(arrived + block, 1, sem="acq_rel", scope="gpu") == others
    if last:
        tl.store(arrived + block, 0)
    return last


@triton.jit
def _tile_of_views(columns, inside, VIEWS: tl.constexpr):
    """Views, columns and mask of a tile with a row for each view, as many as the next power of two."""
    PADDED: tl.constexpr = triton.next_power_of_2(VIEWS)
    view = tl.arange(0, PADDED)[:, None]
    return view, columns[None, :], (view < VIEWS) & inside[None, :]


@triton.jit
def _totals(partial, view, columns, inside, C: tl.constexpr, P: tl.constexpr):
    """Both sums over all parts, for a tile of views; P parts at a time."""
    PARTS = tl.num_programs(0)
    s = tl.zeros([view.shape[0], P, columns.shape[1]], tl.float32)
    q = tl.zeros([view.shape[0], P, columns.shape[1]], tl.float32)
    for first in tl.range(0, PARTS, P, loop_unroll_factor=2):
        part = first + tl.arange(0, P)[None, :, None]
        at = partial + (view[:, None, :] * 2 * PARTS + part) * C + columns[:, None, :]
        there = (part < PARTS) & inside[:, None, :]
        # bypass L1, which does not see what other multiprocessors store
        s += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
        q += tl.load(at + PARTS * C, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(s, 1), tl.sum(q, 1)


@triton.jit
def sums(
    x, partial, arrived, weight, bias, mean, variance, batches, statistics, ROWS, eps, momentum, CHUNK,
    VIEWS: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    part, block, view = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns, inside = _columns(block, C, B)
    end = tl.minimum((part + 1) * CHUNK, ROWS)
    s = tl.zeros([R, B], tl.float32)
    q = tl.zeros([R, B], tl.float32)
    for row in tl.range(part * CHUNK, end, R, loop_unroll_factor=4):
        at, there = _place(view, row, ROWS, end, columns, inside, C, R)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        s += value
        q += value * value
    at = partial + (view * 2 * tl.num_programs(0) + part) * C + columns
    tl.store(at, tl.sum(s, 0), mask=inside)
    tl.store(at + tl.num_programs(0) * C, tl.sum(q, 0), mask=inside)
    if _last(arrived, block):
        gain, offset, now, spread = _weights(weight, bias, mean, variance, columns, inside)
        views, wide, real = _tile_of_views(columns, inside, VIEWS)
        total, square = _totals(partial, views, wide, real, C, P)
        m, v = _settle(
            total, square, views, gain[None, :], offset[None, :], statistics, ROWS, eps, wide, real, VIEWS, C
        )
        for i in tl.static_range(VIEWS):
            now += momentum * (tl.sum(tl.where(views == i, m, 0.0), 0) - now)
            spread += momentum * (tl.sum(tl.where(views == i, v, 0.0), 0) - spread)
        tl.store(mean + columns, now, mask=inside)
        tl.store(variance + columns, spread, mask=inside)
        _count(block, batches, VIEWS)


@triton.jit
def column_statistics(
    x, weight, bias, mean, variance, batches, statistics, ROWS, eps, momentum,
    VIEWS: tl.constexpr, C: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    columns, inside = _columns(tl.program_id(0), C, B)
    gain, offset, now, spread = _weights(weight, bias, mean, variance, columns, inside)
    for view in tl.static_range(VIEWS):
        s = tl.zeros([R, B], tl.float32)
        q = tl.zeros([R, B], tl.float32)
        for row in tl.range(0, ROWS, R, loop_unroll_factor=4):
            at, there = _place(view, row, ROWS, ROWS, columns, inside, C, R)
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            s += value
            q += value * value
        s, q = tl.sum(s, 0), tl.sum(q, 0)
        m, v = _settle(s, q, view, gain, offset, statistics, ROWS, eps, columns, inside, VIEWS, C)
        now += momentum * (m - now)
        spread += momentum * (v - spread)
    tl.store(mean + columns, now, mask=inside)
    tl.store(variance + columns, spread, mask=inside)
    _count(tl.program_id(0), batches, VIEWS)


@triton.jit
def apply(
    x, residual, statistics, y, ROWS,
    C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    view, VIEWS = tl.program_id(2), tl.num_programs(2)
    columns, inside = _columns(tl.program_id(1), C, B)
    at, there = _place(view, tl.program_id(0) * R, ROWS, ROWS, columns, inside, C, R)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    scale, shift, _, _ = _statistics(statistics, view, columns, inside, VIEWS, C)
    value = value * scale[None, :] + shift[None, :]
    if RESIDUAL:
        value += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=there)


@triton.jit
def _factors(s, q, scale, mean, rstd, ROWS):
    """a, b, c of dx = a * gradient + b * x + c, from the sums of gradient and gradient * normalised x."""
    slope = rstd * q / ROWS
    return scale, -scale * slope, scale * (slope * mean - s / ROWS)


@triton.jit
def gradient_sums(
    grad, aside, x, y, statistics, partial, arrived, factors, weight_grad, bias_grad, dresidual, ROWS, CHUNK,
    VIEWS: tl.constexpr, RELU: tl.constexpr, C: tl.constexpr, RESIDUAL: tl.constexpr, FORKED: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    part, block, view = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns, inside = _columns(block, C, B)
    end = tl.minimum((part + 1) * CHUNK, ROWS)
    scale, shift, mean, rstd = _statistics(statistics, view, columns, inside, VIEWS, C)
    s = tl.zeros([R, B], tl.float32)
    q = tl.zeros([R, B], tl.float32)
    for row in tl.range(part * CHUNK, end, R, loop_unroll_factor=2):
        at, there = _place(view, row, ROWS, end, columns, inside, C, R)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        if FORKED:
            g += tl.load(aside + at, mask=there, other=0.0).to(tl.float32)
        if RESIDUAL:
            g = tl.where(tl.load(y + at, mask=there, other=0.0).to(tl.float32) > 0, g, 0.0)
            tl.store(dresidual + at, g.to(dresidual.dtype.element_ty), mask=there)
        elif RELU:
            g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
        s += g
        q += g * (value - mean[None, :])
    at = partial + (view * 2 * tl.num_programs(0) + part) * C + columns
    tl.store(at, tl.sum(s, 0), mask=inside)
    tl.store(at + tl.num_programs(0) * C, tl.sum(q, 0) * rstd, mask=inside)
    if _last(arrived, block):
        views, wide, real = _tile_of_views(columns, inside, VIEWS)
        scales, _, means, rstds = _statistics(statistics, views, wide, real, VIEWS, C)
        total, product = _totals(partial, views, wide, real, C, P)
        a, b, c = _factors(total, product, scales, means, rstds, ROWS)
        place = factors + views * C + wide
        tl.store(place, a, mask=real)
        tl.store(place + VIEWS * C, b, mask=real)
        tl.store(place + 2 * VIEWS * C, c, mask=real)
        tl.store(weight_grad + columns, tl.sum(product, 0), mask=inside)
        tl.store(bias_grad + columns, tl.sum(total, 0), mask=inside)


@triton.jit
def gradient_apply(
    grad, x, statistics, factors, dx, ROWS,
    RELU: tl.constexpr, C: tl.constexpr, RESIDUAL: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    view, VIEWS = tl.program_id(2), tl.num_programs(2)
    columns, inside = _columns(tl.program_id(1), C, B)
    at, there = _place(view, tl.program_id(0) * R, ROWS, ROWS, columns, inside, C, R)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    if RELU and not RESIDUAL:
        scale, shift, _, _ = _statistics(statistics, view, columns, inside, VIEWS, C)
        g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
    a = _row_of(factors, 0, view, columns, inside, VIEWS, C)
    b = _row_of(factors, 1, view, columns, inside, VIEWS, C)
    c = _row_of(factors, 2, view, columns, inside, VIEWS, C)
    value = a[None, :] * g + b[None, :] * value + c[None, :]
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=there)


@triton.jit
def _inverse_temperature(inverse, scale, view, row, ROWS, PER_ROW: tl.constexpr, R: tl.constexpr):
    """The factors of R rows' logits, (R, 1)."""
    if PER_ROW == 2:
        rows = row + tl.arange(0, R)
        scales = tl.load(inverse + view * ROWS + rows, mask=rows < ROWS, other=0.0) * scale
    elif PER_ROW == 1:
        scales = tl.zeros([R], tl.float32) + tl.load(inverse) * scale
    else:
        scales = tl.zeros([R], tl.float32) + scale
    return scales[:, None]


@triton.jit
def simplicial(
    x, inverse, scale, statistics, centred, normaliser, ROWS,
    C: tl.constexpr, V: tl.constexpr, PER_ROW: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    PAD: tl.constexpr,
):  # fmt: skip
    view, VIEWS, row = tl.program_id(2), tl.num_programs(2), tl.program_id(0) * R
    columns, inside = _vertices(tl.program_id(1), C, V, PAD, B)
    at, there = _place(view, row, ROWS, ROWS, columns, inside, C, R)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gain, shift, _, _ = _statistics(statistics, view, columns, inside, VIEWS, C)
    scales = _inverse_temperature(inverse, scale, view, row, ROWS, PER_ROW, R)
    value = (value * gain[None, :] + shift[None, :]) * scales
    value = tl.where(inside[None, :], value, -float("inf"))
    simplices = tl.reshape(value, [R, B // PAD, PAD])
    top = tl.max(simplices, 2)
    top = tl.where(top == -float("inf"), 0.0, top)  # simplices beyond the last
    powers = tl.exp(simplices - top[:, :, None])
    total = tl.maximum(tl.sum(powers, 2), 1e-30)
    at_simplex, real = _simplices(view, row, ROWS, tl.program_id(1), C // V, R, B // PAD)
    tl.store(normaliser + at_simplex, top + tl.log(total), mask=real)
    value = tl.reshape(powers / total[:, :, None], [R, B]) - 1.0 / V
    tl.store(centred + at, value.to(centred.dtype.element_ty), mask=there)


@triton.jit
def _column_gradient(
    grad, normaliser, inverse, inverse_scale, value, at, there, scale, shift, view, row, ROWS,
    RELU: tl.constexpr, C: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr, PER_ROW: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The gradient of the normalised values: through the simplices' softmax, a ReLU, or as it came."""
    g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    if V > 0:
        S: tl.constexpr = B // PAD
        scales = _inverse_temperature(inverse, inverse_scale, view, row, ROWS, PER_ROW, R)
        at_simplex, real = _simplices(view, row, ROWS, tl.program_id(0), C // V, R, S)
        level = tl.load(normaliser + at_simplex, mask=real, other=0.0)
        logits = tl.reshape((value * scale[None, :] + shift[None, :]) * scales, [R, S, PAD])
        p = tl.where(tl.reshape(there, [R, S, PAD]), tl.exp(logits - level[:, :, None]), 0.0)
        simplices = tl.reshape(g, [R, S, PAD])
        g = tl.reshape(p * (simplices - tl.sum(p * simplices, 2)[:, :, None]), [R, B]) * scales
    elif RELU:
        g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
    return g


@triton.jit
def column_backward(
    grad, x, normaliser, inverse, inverse_scale, statistics, dx, weight_grad, bias_grad, ROWS,
    RELU: tl.constexpr, C: tl.constexpr, VIEWS: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr,
    PER_ROW: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    if V > 0:
        columns, inside = _vertices(tl.program_id(0), C, V, PAD, B)
    else:
        columns, inside = _columns(tl.program_id(0), C, B)
    dweight = tl.zeros([B], tl.float32)
    dbias = tl.zeros([B], tl.float32)
    for view in tl.static_range(VIEWS):
        scale, shift, mean, rstd = _statistics(statistics, view, columns, inside, VIEWS, C)
        s = tl.zeros([R, B], tl.float32)
        q = tl.zeros([R, B], tl.float32)
        for row in tl.range(0, ROWS, R):
            at, there = _place(view, row, ROWS, ROWS, columns, inside, C, R)
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            g = _column_gradient(
                grad, normaliser, inverse, inverse_scale, value, at, there, scale, shift, view, row, ROWS,
                RELU, C, V, PAD, PER_ROW, R, B,
            )  # fmt: skip
            s += g
            q += g * (value - mean[None, :])
        total, product = tl.sum(s, 0), tl.sum(q, 0) * rstd
        dbias += total
        dweight += product
        a, b, c = _factors(total, product, scale, mean, rstd, ROWS)
        for step in tl.range(0, tl.cdiv(ROWS, R)):
            row = (tl.cdiv(ROWS, R) - 1 - step) * R  # from the end: the last rows are still in the cache
            at, there = _place(view, row, ROWS, ROWS, columns, inside, C, R)
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            g = _column_gradient(
                grad, normaliser, inverse, inverse_scale, value, at, there, scale, shift, view, row, ROWS,
                RELU, C, V, PAD, PER_ROW, R, B,
            )  # fmt: skip
            value = a[None, :] * g + b[None, :] * value + c[None, :]
            tl.store(dx + at, value.to(dx.dtype.element_ty), mask=there)
    tl.store(weight_grad + columns, dweight, mask=inside)
    tl.store(bias_grad + columns, dbias, mask=inside)
