"""Causal attention whose scores have low rank and are shared by all columns of the values.

    O_t = sum_{j <= t} A_tj v_j,    A_t = softmax over j <= t of S_tj = y_t F_j

y_t in R^R comes from token t. The column F_j belongs to absolute position j and is shared by all sequences
of the batch (CoFrGeNet's CAttnM, section 4.1.1). A bias per position is one more row of F, with ones in y.
Scores are not scaled. `strict` excludes j = t, and the first token's output is 0. `relative` (ours) indexes
columns by distance: S_tj = y_t F_{t-j}. `keys` adds y_t k_j to the scores.

Scores cost 2 R T^2 FLOPs, few compared with the 2 P T^2 of the values. So the backward pass recomputes
them, and nothing of size T x T is kept for it. `shared_attention` is the function to call and
`shared_attention_naive` the reference for tests. On a GPU, `kernels.shared_attention_triton` computes it,
or `kernels.sdpa` where PyTorch's own attention can.
"""

import torch

from kernels import backend as backends
from kernels.autocast import without_autocast
from kernels.backend import NAMESPACE
from kernels.sdpa import attention_by_position, fits

if backends.AVAILABLE:
    from kernels.shared_attention_triton import shared_attention_triton

# rows of scores that exist at a time; on a CPU, 64 is fastest for values 32 or 64 wide, and 128 (2 x STRIP)
# for values of one head, which are as wide as the model
STRIP = 64
WIDE = 256
# scores per thread that exist at a time on a CPU: 1 MB in float32, which fits into a core's cache
TILE = 2**18
# the Triton kernels take a tile's rows of y and columns of F at full rank, in two parts each
LARGEST_RANK = 32


def shared_attention(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool = False,
    backend: str = "auto",
    relative: bool = False,
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """y: [B, H, T, R], F: [H, R, >= T] (the first T columns are used), v: [B, H, T, P], keys: like y or
    None -> [B, H, T, P].

    Takes any floating types; the result has v's dtype. Scores and softmax are float32 (float64 for float64)
    even under autocast. The weights are rounded to v's dtype for the product with v, which accumulates in
    float32.

    backend:
    - "torch" computes the scores in strips of rows and skips the future of each strip. It is opaque to
      torch.compile, which would unroll the loop for half a minute and gain no speed.
    - "triton" (no float64, R <= 32) keeps tiles of scores on the chip. Float32 values: all products have
      float32's precision. Half-precision values: scores are those of the float32 y and F to about 1e-5 of
      |y| |F|, and their gradient is rounded to bfloat16 for its products. Memory of the backward pass:
      B H T R float32 numbers for the columns by position or the keys and as many with relative, and the
      gradient of the scores, B H T^2 / 2 numbers, at most 1 GiB or one head of them at a time.
    - "auto": on a GPU PyTorch's SDPA for columns by position and narrow values in half precision, with
      scores as exact as Triton's; else Triton if it can run; else torch.

    Differentiable once. Raises ValueError if shapes do not fit, for an unknown backend, and if Triton is
    requested and cannot run.
    """
    _check(y, F, v, keys)
    F = F[..., : y.shape[2]]
    if backends.named(backend) == "auto" and v.is_cuda and not relative and fits(y, v):
        return attention_by_position(y, F, v, strict, keys)
    if backends.use_triton(backend, y, F, v, *(() if keys is None else (keys,))):
        if y.shape[3] <= LARGEST_RANK:
            return shared_attention_triton(y, F, v, strict, relative, keys)
        if backend == "triton":
            raise ValueError(
                f"cf_backend=triton takes scores of rank {LARGEST_RANK} at most, not {y.shape[3]}: take "
                "cf_backend=torch"
            )
    return _strips(y, F, v, keys, strict, relative)


def _check(y, F, v, keys):
    if keys is not None and keys.shape != y.shape:
        raise ValueError(f"keys must have y's shape {list(y.shape)}, not {list(keys.shape)}")
    fits = y.dim() == F.dim() + 1 == v.dim() == 4 and y.shape[:3] == v.shape[:3]
    if not fits or y.shape[1] != F.shape[0] or y.shape[3] != F.shape[1] or F.shape[2] < y.shape[2]:
        raise ValueError(
            "shared attention needs y [B, H, T, R], F [H, R, >= T] and v [B, H, T, P], not "
            f"{list(y.shape)}, {list(F.shape)} and {list(v.shape)}"
        )


@torch.library.custom_op(f"{NAMESPACE}::shared_attention", mutates_args=())
def _strips(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor | None,
    strict: bool,
    relative: bool,
) -> torch.Tensor:
    batch, heads, length, width = v.shape
    out = v.new_zeros((batch * heads, length, width))
    with without_autocast(v):
        sequences = _sequences(y, F, v, keys, out, strict, relative)
        for y, F, v, keys, rows in _pieces(*sequences):
            for start, end in _bounds(y, v):
                weights = _weights(y, _columns(F, end, relative), keys, start, relative).to(v.dtype)
                torch.bmm(weights, v[:, :end], out=rows[:, start:end])
    return out.view(batch, heads, length, width)


@_strips.register_fake
def _(y, F, v, keys, strict, relative):
    return torch.empty_like(v, memory_format=torch.contiguous_format)


@torch.library.custom_op(f"{NAMESPACE}::shared_attention_backward", mutates_args=())
def _strips_backward(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor | None,
    grad: torch.Tensor,
    strict: bool,
    relative: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, length, _ = v.shape
    dtype = torch.promote_types(torch.promote_types(y.dtype, F.dtype), torch.float32)
    grad_y, grad_v = (
        x.new_zeros((batch * heads, *x.shape[2:]), dtype=t) for x, t in ((y, dtype), (v, v.dtype))
    )
    grad_F = y.new_zeros((batch * heads, *F.shape[1:]), dtype=dtype)
    types = y.dtype, F.dtype, None if keys is None else keys.dtype
    # without keys an empty tensor, because an operator cannot return None
    shape = (0,) if keys is None else (batch * heads, keys.shape[3], length)
    grad_keys = y.new_zeros(shape, dtype=dtype)
    with without_autocast(v):
        # laid out as F: with relative the farthest column first
        of_F = grad_F[..., : length - strict] if relative else grad_F
        sequences = _sequences(y, F, v, keys, grad_y, strict, relative)
        gradients = of_F, grad_v, grad_keys, grad.flatten(0, 1)[:, strict:]
        for piece in _pieces(*sequences, *gradients):
            y, F, v, keys, rows, of_F, of_v, of_keys, grad = piece
            bounds, v = _bounds(y, v), v.mT.contiguous()
            # the last strip first, because it uses all columns
            for start, end in reversed(bounds):
                columns, upstream = _columns(F, end, relative), grad[:, start:end]
                weights = _weights(y, columns, keys, start, relative)
                through = torch.bmm(upstream, v[..., :end]).to(dtype)
                through = torch.ops.aten._softmax_backward_data(through, weights, -1, dtype)
                by_column = _by_distance(through) if relative else through
                torch.bmm(by_column, columns.mT, out=rows[:, start:end])
                _columns(of_F, end, relative).baddbmm_(y[:, start:end].mT, by_column)
                if keys is not None:
                    rows[:, start:end].baddbmm_(through, keys[..., :end].mT)
                    of_keys[..., :end].baddbmm_(y[:, start:end].mT, through)
                of_v[:, :end].baddbmm_(weights.to(v.dtype).mT, upstream)
    grad_F = grad_F.flip(-1) if relative else grad_F
    grad_y, grad_F, grad_v = (g.unflatten(0, (batch, heads)) for g in (grad_y, grad_F, grad_v))
    if types[2] is not None:
        grad_keys = grad_keys.mT.contiguous().unflatten(0, (batch, heads)).to(types[2])
    return grad_y.to(types[0]), grad_F.sum(0).to(types[1]), grad_v, grad_keys


@_strips_backward.register_fake
def _(y, F, v, keys, grad, strict, relative):
    keys = y.new_empty(0, dtype=torch.promote_types(y.dtype, torch.float32)) if keys is None else keys
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (y, F, v, keys))


def _setup_context(ctx, inputs, output):
    *tensors, ctx.strict, ctx.relative = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):
    tensors = ctx.saved_tensors
    *grads, of_keys = _strips_backward(*tensors, grad, ctx.strict, ctx.relative)
    return *grads, None if tensors[-1] is None else of_keys, None, None


_strips.register_autograd(_backward, setup_context=_setup_context)


def _sequences(y, F, v, keys, out, strict, relative):
    """Flattens batch and heads, so that each head of each sequence is one of N = B H matrices.

    keys become [N, R, T] like F: a product with rows as long as those of the scores is several times as
    fast as one with rows of R. With strict, queries start at the second token and see the tokens before
    their own, so the column of distance 0 is dropped. With relative, distances fall from left to right.
    """
    F = F.flip(-1)[..., : F.shape[-1] - strict] if relative else F
    F = F.expand(y.shape[0], *F.shape).flatten(0, 1)
    y, v = y.flatten(0, 1)[:, strict:], v.flatten(0, 1)
    dtype = torch.promote_types(torch.promote_types(y.dtype, F.dtype), torch.float32)
    keys = None if keys is None else keys.flatten(0, 1).mT.to(dtype).contiguous()
    return y.to(dtype), F.to(dtype), v, keys, out[:, strict:]


def _pieces(*tensors):
    """Splits the tensors of `_sequences`, and others with as many matrices, along their first dimension.

    On a CPU, a piece has as many matrices as `TILE` allows; on other devices there is one piece. None and
    empty tensors are passed on unchanged.
    """
    y, v = tensors[0], tensors[2]
    count, length, _ = y.shape
    if not length:
        return  # a single token with strict
    height = _bounds(y, v)[0][1]
    step = max(1, TILE * torch.get_num_threads() // (height * length)) if y.device.type == "cpu" else count
    for first in range(0, count, step):
        yield tuple(x if x is None or not x.numel() else x[first : first + step] for x in tensors)


def _bounds(y, v):
    """(start, end) of the strips of rows."""
    length, height = y.shape[1], STRIP if v.shape[-1] < WIDE else 2 * STRIP
    return [(start, min(start + height, length)) for start in range(0, length, height)]


def _columns(F, end, relative):
    """The columns of F (from `_sequences`) that rows before `end` see."""
    return F[..., F.shape[-1] - end :] if relative else F[..., :end]


def _weights(y, columns, keys, start, relative):
    """Softmax weights of rows start .. end - 1, up to the last column that they see, end - 1."""
    end = columns.shape[-1]
    rows = y[:, start:end]
    if relative:
        # rows one element longer than the view that reads them: this skew turns distances into positions
        wide = y.new_empty((y.shape[0], end - start, end + 1))
        torch.bmm(rows, columns, out=wide[..., :end])
        scores = _skewed(wide)
    else:
        scores = torch.bmm(rows, columns)
    if keys is not None:
        scores = torch.baddbmm(scores, rows, keys[..., :end])
    future = torch.ones(end - start, end - start, dtype=torch.bool, device=y.device).triu(1)
    scores[..., start:].masked_fill_(future, float("-inf"))
    return scores.softmax(-1)


def _skewed(wide):
    """wide: [N, rows, columns + 1] -> a view [N, rows, columns]; row i starts rows - 1 - i further on."""
    n, rows, columns = wide.shape[0], wide.shape[1], wide.shape[2] - 1
    return wide.view(n, -1)[:, rows - 1 : rows - 1 + rows * columns].unflatten(1, (rows, columns))


def _by_distance(x):
    """Reorders columns from positions to distances from each row's token, the farthest first.

    x: [N, rows, columns], 0 in the future -> [N, rows, columns].
    """
    n, rows, columns = x.shape
    wide = x.new_empty((n, rows, columns + 1))
    around = wide.view(n, -1)
    around[:, : rows - 1] = 0.0
    around[:, -1] = 0.0
    _skewed(wide).copy_(x)
    return wide[..., :-1]


def shared_attention_naive(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool = False,
    relative: bool = False,
    keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """The reference for tests: all scores [B, H, T, T] at once, differentiated by autograd.

    Shapes as in `shared_attention`.
    """
    length = y.shape[2]
    past = torch.ones(length, length, dtype=torch.bool, device=y.device).tril(-1 if strict else 0)
    scores = y @ F[..., :length]
    if relative:
        scores = scores.gather(-1, distances(length, y.device).expand_as(scores))
    if keys is not None:
        scores = scores + y @ keys.mT
    scores = scores.masked_fill(~past, float("-inf"))
    seen = past.any(-1, keepdim=True)  # False for the first row with strict
    return torch.where(seen, scores, 0.0).softmax(-1).where(seen, 0.0).to(v.dtype) @ v


def distances(length: int, device=None, pos: torch.Tensor | None = None) -> torch.Tensor:
    """Distances from the tokens at `pos` back to the tokens j < length: [T, length] int64, 0 in the future.

    pos: [T] int64, or None for all `length` positions.
    """
    column = torch.arange(length, device=device)
    return ((column if pos is None else pos)[:, None] - column).clamp(min=0)
