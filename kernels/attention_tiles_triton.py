"""The Triton kernels of shared attention, after FlashAttention-2 (Dao 2023), for scores of low rank.

`kernels.shared_attention` states the equations; `kernels.shared_attention_triton` prepares the operands,
launches these kernels and adds up what they store.

- forward: a program holds a tile of rows and goes over the tiles of columns, with an online softmax.
- backward: `columns_kernel` holds a tile of columns and goes over rows, recomputes weights from the saved
  log-sum-exp, and yields the gradients of the values and of the columns by position, and dS, that of the
  scores. `rows_kernel` multiplies dS of a tile of rows by the columns, for the gradient of y;
  `diagonals_kernel` multiplies dS of a tile of distances by y, for that of the columns by distance. No
  program adds to the memory of another one. So gradients are the same to the bit in each run.

dS of a head is stored as one matrix for each TILE rows, without future tiles: those from `row` on are
[TILE, row + TILE]. Its dtype is that of the operands, to which the products would round it anyway.

Operands of the scores (`parts`) are rows of S numbers, one for each token or distance, with zeros beyond
the last one: float32, or for half-precision values high and low parts in bfloat16, whose product is that of
the float32 numbers (PARTS = 4: high low low high against high low high low). The queries hold log2(e) y,
because the hardware's exponential is in base 2. Row t of `length` attends to columns j <= t; rows of the
output, of its gradient and of the values begin at a SHIFT of their own (1 with strict, values 0).

By distance: take a square tile of scores whose first row is n tokens behind its first column. On and below
its diagonal it needs the distances n .. n + TILE - 1, above it the TILE distances before n. Indexed by
distance, both halves fit into one tile of the same size. Rotating row i of that tile by i gives the scores
by position.

Values may be wider than a program's accumulators. So forward and values' gradient take a CHUNK of their
columns, and each chunk recomputes the scores, which are cheap; dP = dO v^T is summed over all chunks.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
# for float32: three tf32 products on tensor cores are nearly as exact as one float32 product
PRECISE = tl.constexpr("tf32x3")


@triton.jit
def _dot(a, b, WIDE: tl.constexpr, total=None):
    """total + a @ b in b's dtype, or in float32 if WIDE: the interpreter has no bfloat16 products."""
    if WIDE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISE)
    return tl.dot(a.to(b.dtype), b, total, input_precision=PRECISE)


@triton.jit
def _place(programs, heads, first=0):
    """A program's number among the `programs` of its sequence and head; as 64 bits for offsets, both as one
    number, from `first` on, the sequence and the head. The grid has one dimension, because others end at
    65,535 programs.
    """
    program, number = tl.program_id(0), tl.program_id(0) // programs
    program -= number * programs
    number += first
    batch = number // heads
    head = number - batch * heads
    return program, number.to(tl.int64), batch.to(tl.int64), head.to(tl.int64)


@triton.jit
def _load(pointer, first, values, stride, count, width, TILE: tl.constexpr, EDGE: tl.constexpr):
    """Loads TILE rows from `first` on of a matrix whose columns are contiguous; zeros beyond its edges.

    EDGE: whether rows from `count` on may be among them.
    """
    rows = tl.arange(0, TILE)
    pointers = pointer + tl.cast(first, tl.int64) * stride + (rows[:, None] * stride + values[None, :])
    mask = (values < width)[None, :]
    if EDGE:
        mask = mask & (rows < count - first)[:, None]
    return tl.load(pointers, mask, other=0.0)


@triton.jit
def _load_parts(pointer, first, S: tl.constexpr, TILE: tl.constexpr):
    """Loads rows first .. first + TILE - 1 of operands, which have no edge within a tile."""
    return tl.load(pointer + first * S + (tl.arange(0, TILE)[:, None] * S + tl.arange(0, S)[None, :]))


@triton.jit
def _store_gradient(pointer, x, first, count, R, S: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr):
    """Stores a sum of dS times operands, [TILE, S], as rows of R float32 numbers.

    Each of the two parts is there PARTS / 2 times, so the sum over all parts is as many times too large.
    """
    if PARTS > 1:
        x = tl.sum(tl.reshape(x, (TILE, PARTS, S // PARTS)), 1) * (2.0 / PARTS)
    rows, ranks = first + tl.arange(0, TILE), tl.arange(0, S // PARTS)
    mask = ((rows >= 0) & (rows < count))[:, None] & (ranks < R)[None, :]
    tl.store(pointer + rows[:, None] * R + ranks[None, :], x, mask)


@triton.jit
def _swapped(x, BIT: tl.constexpr, TILE: tl.constexpr):
    """float32 x with one bit of the column's index inverted.

    The other one of a pair is the pair's sum, as integers, less this one: the compiler knows that, and no
    register moves to another thread but for the bits that distinguish threads.
    """
    bits = tl.reshape(x.to(tl.int32, bitcast=True), (TILE, TILE // (2 * BIT), 2, BIT))
    other = tl.sum(bits, 2, True) - bits
    other = other.to(tl.int64).to(tl.int32)  # for the interpreter, whose sums are int64
    return tl.reshape(other, (TILE, TILE)).to(tl.float32, bitcast=True)


@triton.jit
def _turned_by_bit(x, BIT: tl.constexpr, TILE: tl.constexpr):
    row, column = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    borrow = (column & (BIT - 1)) > (row & (BIT - 1))
    return tl.where(((row & BIT) != 0) != borrow, _swapped(x, BIT, TILE), x)


@triton.jit
def _turned(x, TILE: tl.constexpr):
    """Rotates a tile of scores from distances to positions: out[i, j] = x[i, (i - j) mod TILE].

    One bit of the index after the other, from the highest: that of i - j differs from that of j by the bit
    of i and by a borrow from the bits below. Tensor cores leave many numbers of a row in one thread, so
    most steps move nothing between threads.
    """
    for step in tl.static_range(TILE.bit_length() - 1):
        x = _turned_by_bit(x, TILE >> (step + 1), TILE)
    return x


@triton.jit
def _further(TILE: tl.constexpr):
    """Mask of the larger distances in a tile of scores by distance: those on and below the diagonal."""
    one = tl.arange(0, TILE)
    return one[None, :] <= one[:, None]


@triton.jit
def _scores(
    q, k, far, near,
    TILE: tl.constexpr, BY_POSITION: tl.constexpr, BY_DISTANCE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores in base 2, [rows, columns]"""
    if BY_DISTANCE:
        further, nearer = _dot(q, tl.trans(far), WIDE), _dot(q, tl.trans(near), WIDE)
        scores = _turned(tl.where(_further(TILE), further, nearer), TILE)
        if BY_POSITION:
            scores = _dot(q, tl.trans(k), WIDE, scores)
    else:
        scores = _dot(q, tl.trans(k), WIDE)
    return scores


@triton.jit
def _attend(
    out, largest, total, q, k_ptr, f_ptr, v_ptr, row, start, values, length, width, v_t,
    S: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BY_POSITION: tl.constexpr, BY_DISTANCE: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of columns of the online softmax."""
    k, far, near = q, q, q
    if BY_POSITION:
        k = _load_parts(k_ptr, start, S, COLUMNS)
    if BY_DISTANCE:
        far = _load_parts(f_ptr, row - start, S, COLUMNS)
        near = _load_parts(f_ptr, row - start - COLUMNS, S, COLUMNS)
    scores = _scores(q, k, far, near, COLUMNS, BY_POSITION, BY_DISTANCE, WIDE)
    columns = start + tl.arange(0, COLUMNS)
    if MASKED:
        rows = row + tl.arange(0, ROWS)
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))  # finite, because every row sees column 0
    rescale = tl.exp2(largest - larger)
    weights = tl.exp2(scores - larger[:, None])
    total = total * rescale + tl.sum(weights, 1)
    v = _load(v_ptr, start, values, v_t, length, width, COLUMNS, MASKED)
    return _dot(weights, v, WIDE, out * rescale[:, None]), larger, total


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, f_ptr, v_ptr, out_ptr, lse_ptr, heads, length, width, padded,
    k_b, k_h, f_h, v_b, v_h, v_t, out_b, out_h, out_t,
    S: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, SHIFT: tl.constexpr,
    BY_POSITION: tl.constexpr, BY_DISTANCE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out: [B, H, SHIFT + length, width]; lse: [B H, length] float32, written by the first chunk."""
    chunks, count = tl.cdiv(width, CHUNK), tl.cdiv(length, ROWS)
    program, sequence, batch, head = _place(count * chunks, heads)
    # the tiles with the most columns first
    row = (count - 1 - program // chunks) * ROWS
    chunk = program % chunks
    values = chunk * CHUNK + tl.arange(0, CHUNK)
    q = _load_parts(q_ptr + sequence * padded * S, row, S, ROWS)
    k_ptr += batch * k_b + head * k_h
    f_ptr += head * f_h
    v_ptr += batch * v_b + head * v_h
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in range(0, row, COLUMNS):
        out, largest, total = _attend(
            out, largest, total, q, k_ptr, f_ptr, v_ptr, row, start, values, length, width, v_t,
            S, ROWS, COLUMNS, BY_POSITION, BY_DISTANCE, WIDE, False,
        )  # fmt: skip
    for start in range(row, tl.minimum(row + ROWS, length), COLUMNS):
        out, largest, total = _attend(
            out, largest, total, q, k_ptr, f_ptr, v_ptr, row, start, values, length, width, v_t,
            S, ROWS, COLUMNS, BY_POSITION, BY_DISTANCE, WIDE, True,
        )  # fmt: skip
    rows = row + tl.arange(0, ROWS)
    mask = (rows < length)[:, None] & (values < width)[None, :]
    out_ptr += batch * out_b + head * out_h + SHIFT * out_t
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * out_t + values[None, :]
    tl.store(out_ptrs, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask)
    if chunk == 0:
        tl.store(lse_ptr + sequence * length + rows, largest + tl.log2(total), rows < length)


@triton.jit
def delta_kernel(
    out_ptr, grad_ptr, delta_ptr, heads, length, width,
    out_b, out_h, out_t, grad_b, grad_h, grad_t,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """delta: [B H, length] float32, the sum over j of A_tj dA_tj, which equals out_t . grad_t"""
    program, sequence, batch, head = _place(tl.cdiv(length, ROWS), heads)
    first = program * ROWS
    out_ptr += batch * out_b + head * out_h + SHIFT * out_t
    grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
    delta = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, CHUNK):
        values = start + tl.arange(0, CHUNK)
        out = _load(out_ptr, first, values, out_t, length, width, ROWS, True).to(tl.float32)
        grad = _load(grad_ptr, first, values, grad_t, length, width, ROWS, True).to(tl.float32)
        delta += tl.sum(out * grad, 1)
    rows = first + tl.arange(0, ROWS)
    tl.store(delta_ptr + sequence * length + rows, delta, rows < length)


@triton.jit
def _rows_of_dS(pointer, number, row, length, TILE: tl.constexpr):
    """Pointer to the TILE rows of dS from `row` on; number: that of the sequence and head in dS."""
    padded = tl.cdiv(length, TILE) * TILE
    return pointer + number * padded * ((padded + TILE) // 2) + tl.cast(row, tl.int64) * ((row + TILE) // 2)


@triton.jit
def _dS_by_distance(pointer, row, distance, TILE: tl.constexpr):
    """Loads the rows of dS at `pointer` for TILE distances: [rows, distances], 0 before the first token."""
    one = tl.arange(0, TILE)
    places = one[:, None] * (row + TILE + 1) - one[None, :]
    seen = one[:, None] - one[None, :] >= distance - row
    return tl.load(pointer + (row - distance) + places, seen, other=0.0)


@triton.jit
def columns_kernel(
    q_ptr, k_ptr, f_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dS_ptr, grad_v_ptr, grad_k_ptr,
    first, heads, length, width, padded, R,
    k_b, k_h, f_h, v_b, v_h, v_t, grad_b, grad_h, grad_t, grad_v_b, grad_v_h, grad_v_t,
    S: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, SHIFT: tl.constexpr,
    BY_POSITION: tl.constexpr, BY_DISTANCE: tl.constexpr, WIDE: tl.constexpr,
    OF_V: tl.constexpr, OF_S: tl.constexpr,
):  # fmt: skip
    """What a tile of columns receives from all rows.

    OF_V: a chunk of grad_v = A^T dO, [B, H, length, width]. OF_S: dS = A (dP - delta) with dP = dO v^T, and
    by position grad_k = dS^T y, [B H, length, R] float32. Both at a time only if one chunk is all values.
    """
    chunks = tl.cdiv(width, CHUNK) if OF_V else 1
    program, sequence, batch, head = _place(tl.cdiv(length, TILE) * chunks, heads, first)
    column = program // chunks * TILE
    values = program % chunks * CHUNK + tl.arange(0, CHUNK)
    columns = column + tl.arange(0, TILE)
    q_ptr += sequence * padded * S
    f_ptr += head * f_h
    v_ptr += batch * v_b + head * v_h
    grad_ptr += batch * grad_b + head * grad_h + SHIFT * grad_t
    lse_ptr += sequence * length
    delta_ptr += sequence * length
    k = _load_parts(k_ptr + batch * k_b + head * k_h, column, S, TILE)
    if OF_S:
        v = _load(v_ptr, column, values, v_t, length, width, TILE, True)
    grad_v, grad_k = tl.zeros((TILE, CHUNK), tl.float32), tl.zeros((TILE, S), tl.float32)
    for row in range(column, length, TILE):
        rows = row + tl.arange(0, TILE)
        q = _load_parts(q_ptr, row, S, TILE)
        far, near = k, k
        if BY_DISTANCE:
            far = _load_parts(f_ptr, row - column, S, TILE)
            near = _load_parts(f_ptr, row - column - TILE, S, TILE)
        scores = _scores(q, k, far, near, TILE, BY_POSITION, BY_DISTANCE, WIDE)
        lse = tl.load(lse_ptr + rows, rows < length, other=float("inf"))
        weights = tl.where(columns[None, :] <= rows[:, None], tl.exp2(scores - lse[:, None]), 0.0)
        grad = _load(grad_ptr, row, values, grad_t, length, width, TILE, True)
        if OF_V:
            grad_v = _dot(tl.trans(weights), grad, WIDE, grad_v)
        if OF_S:
            dP = _dot(grad, tl.trans(v), WIDE)
            if not OF_V:
                for start in range(CHUNK, width, CHUNK):
                    others = start + tl.arange(0, CHUNK)
                    grad = _load(grad_ptr, row, others, grad_t, length, width, TILE, True)
                    other = _load(v_ptr, column, others, v_t, length, width, TILE, True)
                    dP = _dot(grad, tl.trans(other), WIDE, dP)
            delta = tl.load(delta_ptr + rows, rows < length, other=0.0)
            dS = weights * (dP - delta[:, None])
            if BY_POSITION:
                grad_k = _dot(tl.trans(dS), q, WIDE, grad_k)
            places = tl.arange(0, TILE)[:, None] * (row + TILE) + columns[None, :]
            dS_rows = _rows_of_dS(dS_ptr, sequence - first, row, length, TILE)
            tl.store(dS_rows + places, dS.to(dS_ptr.dtype.element_ty))
    if OF_V:
        mask = (columns < length)[:, None] & (values < width)[None, :]
        grad_v_ptr += batch * grad_v_b + head * grad_v_h
        pointers = grad_v_ptr + columns.to(tl.int64)[:, None] * grad_v_t + values[None, :]
        tl.store(pointers, grad_v.to(grad_v_ptr.dtype.element_ty), mask)
    if OF_S and BY_POSITION:
        grad_k *= LN2
        _store_gradient(grad_k_ptr + sequence * length * R, grad_k, column, length, R, S, TILE, PARTS)


@triton.jit
def rows_kernel(
    dS_ptr, k_ptr, f_ptr, grad_y_ptr, first, heads, length, R, k_b, k_h, f_h,
    S: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
    BY_POSITION: tl.constexpr, BY_DISTANCE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """grad_y = dS times columns, for a tile of rows: [B H, length, R] float32"""
    count = tl.cdiv(length, TILE)
    program, sequence, batch, head = _place(count, heads, first)
    row = (count - 1 - program) * TILE
    k_ptr += batch * k_b + head * k_h
    f_ptr += head * f_h
    grad_y = tl.zeros((TILE, S), tl.float32)
    dS_ptr = _rows_of_dS(dS_ptr, sequence - first, row, length, TILE)
    one = tl.arange(0, TILE)
    for start in range(0, row + 1, TILE):
        if BY_POSITION:
            dS = tl.load(dS_ptr + start + (one[:, None] * (row + TILE) + one[None, :]))
            grad_y = _dot(dS, _load_parts(k_ptr, start, S, TILE), WIDE, grad_y)
        if BY_DISTANCE:
            dS = _dS_by_distance(dS_ptr, row, start, TILE)
            grad_y = _dot(dS, _load_parts(f_ptr, start, S, TILE), WIDE, grad_y)
    _store_gradient(grad_y_ptr + sequence * length * R, grad_y, row, length, R, S, TILE, PARTS)


@triton.jit
def diagonals_kernel(
    dS_ptr, q_ptr, grad_f_ptr, first, heads, length, padded, R,
    S: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What a tile of distances receives from all rows: [B H, length, R] float32"""
    program, sequence, _, _ = _place(tl.cdiv(length, TILE), heads, first)
    distance = program * TILE
    q_ptr += sequence * padded * S
    grad_f = tl.zeros((TILE, S), tl.float32)
    for row in range(distance, length, TILE):
        dS_rows = _rows_of_dS(dS_ptr, sequence - first, row, length, TILE)
        dS = _dS_by_distance(dS_rows, row, distance, TILE)
        grad_f = _dot(tl.trans(dS), _load_parts(q_ptr, row, S, TILE), WIDE, grad_f)
    grad_f *= LN2
    _store_gradient(grad_f_ptr + sequence * length * R, grad_f, distance, length, R, S, TILE, PARTS)
