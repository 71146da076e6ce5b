"""Causal attention by columns of positions, for rows as wide as the model.

    O_t = sum_{j <= t} A_tj v_j,    A_t = softmax over j <= t of S_tj = y_t F_j + b_j

This is the equation of `kernels.shared_attention`, where y is narrow. Here y = [x, z], and the columns F_j
are the rows of [U, V] (CoFrGeNet's CAttnM with collapsed scores, section 4.2). At GPT2-xl's size y is 1,607
wide, more than any fused attention takes. So the scores are computed in strips of rows and recomputed in
the backward pass, and nothing of size T x T is kept. All sequences share the columns. So one strip of all
sequences is one matrix product, and the gradient of F is summed over the sequences inside one matrix
product. On a CPU this is one operator for torch.compile. On a GPU, where strips are few and high, the
compiler sees their operations and fuses the passes between the products.

`wide_attention` is the function to call, `kernels.shared_attention.shared_attention_naive` the reference
for tests. On a GPU, rows narrower than 256 (with several heads) use PyTorch's fused attention, wider ones
the strips, whose float32 products are then bfloat16 products of high and low parts (`kernels.split`) if the
values are in half precision.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from kernels import split
from kernels.autocast import without_autocast
from kernels.backend import NAMESPACE
from kernels.sdpa import WIDEST, attention_by_rank

# scores per strip, over all heads and sequences: 1 MB in float32 is fastest on a CPU, a GPU needs more
STRIP_SCORES = {"cpu": 2**18, "cuda": 2**26}
ROWS = {"cpu": (16, 256), "cuda": (16, 512)}  # minimum and maximum rows per strip


def wide_attention(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    strict: bool = False,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """y: [B, H, T, R], F: [H, R, >= T], bias: [H, >= T] or None (their first T columns are used),
    v: [B, H, T, P] -> [B, H, T, P].

    Takes any floating types; the result has v's dtype. Scores and softmax are float32 (float64 for float64)
    even under autocast, and the weights are rounded to v's dtype for the product with v. On a GPU with v in
    half precision, the gradient of the scores is rounded to bfloat16 for its products; fused attention also
    rounds y and F to v's dtype. strict excludes j = t, and the first token's output is 0.
    Differentiable once. Raises ValueError if shapes do not fit.
    """
    fits = y.dim() == F.dim() + 1 == v.dim() == 4 and y.shape[:3] == v.shape[:3]
    fits = fits and y.shape[1] == F.shape[0] and y.shape[3] == F.shape[1] and F.shape[2] >= y.shape[2]
    if not fits or (bias is not None and bias.shape != F[:, 0].shape):
        others = [list(x.shape) for x in (y, F, v, *(() if bias is None else (bias,)))]
        raise ValueError(
            "wide attention needs y [B, H, T, R], F [H, R, >= T], v [B, H, T, P] and a bias [H, as F], not "
            + ", ".join(map(str, others))
        )
    F, bias = F[..., : y.shape[2]], None if bias is None else bias[..., : y.shape[2]]
    if v.device.type == "cuda" and max(y.shape[3], v.shape[3]) < WIDEST:
        return fused(y, F, v, strict, bias)
    return (traced if v.device.type == "cuda" else _strips)(y, F, v, bias, strict)


def fused(y, F, v, strict=False, bias=None):
    """`wide_attention` through PyTorch's SDPA. strict shifts the rows by one token and stays causal."""
    if bias is not None:
        y, F = torch.cat((y, torch.ones_like(y[..., :1])), -1), torch.cat((F, bias[:, None].to(F.dtype)), 1)
    return attention_by_rank(y, F.mT[None], v, strict)


def traced(y, F, v, bias, strict):
    """`wide_attention` in operations that torch.compile sees, for a GPU.

    Tensor cores are several times as fast on rows of a multiple of 8 numbers. So y and F are padded to one,
    and strict hides columns in place of dropping the first row.
    """
    spare = -y.shape[3] % 8
    return _Traced.apply(pad(y, (0, spare)), pad(F, (0, 0, 0, spare)), v, bias, strict)


@torch.library.custom_op(f"{NAMESPACE}::wide_attention", mutates_args=())
def _strips(
    y: torch.Tensor, F: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, strict: bool
) -> torch.Tensor:
    return _forward(y, F, v, bias, int(strict))


def _forward(y, F, v, bias, shift, hidden=0):
    """shift: by how many tokens rows lie behind columns (strict); hidden: the same, but by a mask."""
    with without_autocast(v):
        rows, columns, values = _by_head(y, F, v, shift)
        parts = _in_parts(v)
        # no view is returned: the compiler of PyTorch 2.11 would make its gradient 0
        out = torch.zeros_like(v, memory_format=torch.contiguous_format)
        for start, end in _bounds(rows):
            weights = _weights(rows[:, :, start:end], columns[..., :end], bias, start, parts, hidden)
            of_strip = weights.to(v.dtype) @ values[:, :, :end]
            out.transpose(0, 1)[:, :, start + shift : end + shift] = of_strip
        if hidden:
            out[:, :, :hidden] = 0.0
    return out


@_strips.register_fake
def _(y, F, v, bias, strict):
    return torch.empty_like(v, memory_format=torch.contiguous_format)


@torch.library.custom_op(f"{NAMESPACE}::wide_attention_backward", mutates_args=())
def _strips_backward(
    y: torch.Tensor,
    F: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    grad: torch.Tensor,
    strict: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _gradients(y, F, v, bias, grad, int(strict))


def _gradients(y, F, v, bias, grad, shift, hidden=0):
    with without_autocast(v):
        rows, columns, values = _by_head(y, F, v, shift)
        parts = _in_parts(v)
        if hidden:
            grad = torch.cat((torch.zeros_like(grad[:, :, :hidden]), grad[:, :, hidden:]), 2)
        upstream = grad.transpose(0, 1)[:, :, shift:]
        of_y, of_v = (
            torch.zeros_like(x.transpose(0, 1), dtype=x_type, memory_format=torch.contiguous_format)
            for x, x_type in ((y, rows.dtype), (v, torch.promote_types(v.dtype, torch.float32)))
        )
        of_F = torch.zeros_like(F, dtype=rows.dtype, memory_format=torch.contiguous_format)
        # without a bias an empty tensor, because an operator cannot return None
        of_bias = rows.new_zeros((0,) if bias is None else bias.shape)
        for start, end in _bounds(rows):
            strip, seen = rows[:, :, start:end], columns[..., :end]
            weights = _weights(strip, seen, bias, start, parts, hidden)
            of_weights = (upstream[:, :, start:end] @ values[:, :, :end].mT).to(rows.dtype)
            of_v[:, :, :end] += weights.to(v.dtype).mT @ upstream[:, :, start:end]
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, rows.dtype)
            of_scores = of_scores.flatten(1, 2)
            if bias is not None:
                of_bias[:, :end] += of_scores.sum(1)
            if parts:
                of_scores, seen, flat = (x.bfloat16() for x in (of_scores, seen, strip.flatten(1, 2)))
                of_strip = split.summed_in_float32(of_scores, seen.mT)
                of_F[..., :end] += split.summed_in_float32(flat.mT, of_scores)
            else:
                of_strip = of_scores @ seen.mT
                of_F[..., :end].baddbmm_(strip.flatten(1, 2).mT, of_scores)
            of_y[:, :, start + shift : end + shift] = of_strip.view_as(strip)
    of_y = of_y.transpose(0, 1).to(y.dtype).contiguous()
    of_bias = of_bias if bias is None else of_bias.to(bias.dtype)
    return of_y, of_F.to(F.dtype), of_v.transpose(0, 1).to(v.dtype).contiguous(), of_bias


@_strips_backward.register_fake
def _(y, F, v, bias, grad, strict):
    bias = y.new_empty(0, dtype=torch.promote_types(y.dtype, torch.float32)) if bias is None else bias
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (y, F, v, bias))


def _setup_context(ctx, inputs, output):
    *tensors, ctx.strict = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):
    tensors = ctx.saved_tensors  # read once, because activation checkpointing returns them only once
    *grads, of_bias = _strips_backward(*tensors, grad, ctx.strict)
    return *grads, None if tensors[-1] is None else of_bias, None


_strips.register_autograd(_backward, setup_context=_setup_context)


class _Traced(torch.autograd.Function):
    """`_strips`, whose operations torch.compile sees."""

    @staticmethod
    def forward(ctx, y, F, v, bias, strict):
        ctx.save_for_backward(y, F, v, bias)
        ctx.strict = strict
        return _forward(y, F, v, bias, 0, int(strict))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        y, F, v, bias = ctx.saved_tensors
        *grads, of_bias = _gradients(y, F, v, bias, grad, 0, int(ctx.strict))
        return *grads, None if bias is None else of_bias, None


def _by_head(y, F, v, shift):
    """Returns y: [H, B, rows, R] and F: [H, R, T] in at least float32, and v: [H, B, T, P].

    With shift = 1, row t is token t + 1 and sees columns 0 .. t, that is, all tokens before its own.
    """
    dtype = torch.promote_types(torch.promote_types(y.dtype, F.dtype), torch.float32)
    return y.transpose(0, 1)[:, :, shift:].to(dtype), F.to(dtype), v.transpose(0, 1)


def _bounds(rows):
    """(start, end) of the strips of rows."""
    heads, batch, length, _ = rows.shape
    kind = "cuda" if rows.device.type == "cuda" else "cpu"
    fewest, most = ROWS[kind]
    height = min(max(STRIP_SCORES[kind] // max(1, heads * batch * length), fewest), most)
    return [(start, min(start + height, length)) for start in range(0, length, height)]


def _in_parts(v):
    return v.is_cuda and v.dtype.itemsize == 2


def _weights(strip, columns, bias, start, parts, hidden):
    """Softmax weights of a strip of rows from `start` on, up to its last column: [H, B, rows, columns].

    hidden = 1 hides the column of a row's own token too, but for the first row, which would see none.
    """
    height, end = strip.shape[2], columns.shape[-1]
    scores = (split.batched_product if parts else torch.bmm)(strip.flatten(1, 2), columns)
    if bias is not None:
        scores += bias[:, None, :end]
    scores = scores.view(*strip.shape[:3], end)
    row = torch.arange(height, device=strip.device)
    first_visible = row[:, None].clamp_min(1 if start == 0 else 0) if hidden else row[:, None] + 1
    future = row >= first_visible
    scores[..., start:].masked_fill_(future, float("-inf"))
    return scores.softmax(-1)
