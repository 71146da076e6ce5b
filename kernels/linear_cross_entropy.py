"""The loss of a language model's head, without the logits of all tokens.

    loss = mean over tokens n of (log sum_v exp(s_nv) - s_n,target),    s = h W^T

With label smoothing e (Szegedy et al. 2016), all tokens divide a share e of the target's probability:

    loss = mean over tokens n of (log sum_v exp(s_nv) - (1 - e) s_n,target - e mean_v s_nv)

With a softcap c (Gemma Team 2024), s_nv is replaced by c tanh(s_nv / c), which stays within -c and c.

With a vocabulary of 50,304, the logits of a batch, their float32 copy and their gradient are most of a
training step's memory. Here they exist for one chunk of tokens at a time. The forward pass computes the
gradient of a chunk while its logits exist, with the same three matrix products as without chunks. The
backward pass only scales these gradients.
"""

from functools import cache, partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from kernels.autocast import product_dtype
from kernels.backend import NAMESPACE

IGNORED = -100  # target of a token that is not scored, as in F.cross_entropy
# float32 logits of one chunk. On a CPU, larger chunks measured no faster, much smaller ones slower. On a
# GPU, adding a small chunk's gradient to the weight's would cost more than the product itself.
CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**30}


def linear_cross_entropy(
    h: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    columns: int | None = None,
    chunk_bytes: int | None = None,
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Mean cross-entropy of the targets in nats, float32 (float64 for float64), scalar.

    h: [..., C], weight: [V, C], targets: [...] int64 below `columns`, or -100 for tokens that are not
    scored. If no token is scored, the loss is NaN. columns: the size of the vocabulary (None: V). Columns
    beyond it are padding: they get no probability and a gradient of 0.
    Matrix products are in autocast's dtype if it is enabled, else in h's. Sums over rows and over chunks
    are float32. Memory grows with `chunk_bytes` (None: CHUNK_BYTES of the device), not with tokens times V.
    label_smoothing: e in [0, 1); the mean over v is one over `columns`. softcap: c, 0 for none.
    Differentiable once.
    """
    chunk_bytes = chunk_bytes or CHUNK_BYTES.get(h.device.type, CHUNK_BYTES["cpu"])
    dtype = product_dtype(h)
    columns = weight.shape[0] if columns is None else columns
    rows = targets.numel()
    count = max(1, -(-4 * rows * weight.shape[0] // chunk_bytes))
    h, targets = h.reshape(rows, -1), targets.reshape(rows)
    chunk = max(1, -(-rows // count))
    keys = (columns, chunk, dtype, label_smoothing, softcap)
    return _LinearCrossEntropy.apply(h, weight, targets, *keys, torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, weight, targets, columns, chunk, dtype, smoothing, softcap, differentiated):
        wide = torch.promote_types(dtype, torch.float32)
        gradient_of = _compiled if torch.compiler.is_compiling() else _eager
        if softcap:
            gradient_of = partial(_softcapped, gradient_of, softcap)
        w, total, grads_h = weight.to(dtype), torch.zeros((), dtype=wide, device=h.device), []
        # needs_input_grad is true under torch.no_grad too
        of_h, of_w = (differentiated and needed for needed in ctx.needs_input_grad[:2])
        grad_w = torch.zeros_like(weight, dtype=wide) if of_w else None
        scored = targets != IGNORED
        for h_c, target, valid in zip(
            h.to(dtype).split(chunk), targets.split(chunk), scored.split(chunk), strict=True
        ):
            # nothing here names the logits: they are gone before the products of their gradient
            nats, grad = gradient_of(F.linear(h_c, w).to(wide), target, valid, columns, smoothing)
            total = total + nats.where(valid, 0.0).sum()
            # of the sum, not of the mean: divided by the tokens, small values underflow in float16
            grad = grad.to(dtype) if of_h or of_w else None
            if of_h:
                grads_h.append(grad @ w)
            if of_w:
                _add_product(grad_w, grad, h_c)
            del grad  # before the next chunk's logits
        count = scored.sum()
        ctx.save_for_backward(torch.cat(grads_h) if grads_h else None, grad_w, count)
        ctx.types = h.dtype, weight.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad_h, grad_w, count = ctx.saved_tensors
        scale = grad / count
        of_h, of_w = ctx.types
        grad_h = (grad_h * scale).to(of_h) if ctx.needs_input_grad[0] else None
        grad_w = (grad_w * scale).to(of_w) if grad_w is not None else None
        return grad_h, grad_w, None, None, None, None, None, None, None


@torch.library.custom_op(f"{NAMESPACE}::add_product", mutates_args=("total",))
def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """total += a^T b, hidden from the compiler.

    The compiler would postpone the sums to the end and keep the products and gradients of all chunks in
    memory until then. a, b: [n, V], [n, C]; total: [V, C], of their dtype or wider.
    """
    if a.dtype == total.dtype:
        torch.addmm(total, a.T, b, out=total)
    elif a.is_cuda and adds_to_wider(a.device, a.dtype):
        torch.addmm(total, a.T, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(a.T @ b)


@_add_product.register_fake
def _(total, a, b):
    return None


@cache
def adds_to_wider(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a matrix product in dtype can add to a float32 matrix on this device, in this PyTorch."""
    one, total = torch.ones(16, 16, device=device, dtype=dtype), torch.ones(16, 16, device=device)
    try:
        torch.addmm(total, one.T, one, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return bool((total == 17).all())


def _compiled(logits, target, valid, columns, smoothing):
    """logits: [n, V] -> nats: [n], gradient: [n, V] (0 in rows that are not valid).

    Written so that the compiler fuses all of it with the sums over rows.
    """
    column = torch.arange(logits.shape[-1], device=logits.device)
    share = (column == target[:, None]).to(logits.dtype)
    if smoothing:
        share = (1 - smoothing) * share + smoothing / columns
    if columns < len(column):
        logits = torch.where(column < columns, logits, float("-inf"))
        share = torch.where(column < columns, share, 0.0)
    norm = logits.logsumexp(-1, keepdim=True)
    # selected, not multiplied alone: 0 * inf is NaN
    nats = norm.squeeze(-1) - torch.where(share > 0, share * logits, 0.0).sum(-1)
    return nats, torch.where(valid[:, None], (logits - norm).exp() - share, 0.0)


def _eager(logits, target, valid, columns, smoothing):
    """`_compiled` for runs without a compiler, in few passes over memory.

    log sum_v exp(s_v) = s_max - log p_max comes from a softmax. A softmax is one pass, and on a CPU it is
    not slow for very negative logits, as `exp` is.
    """
    logits[:, columns:] = float("-inf")
    at_target = target.where(valid, 0)[:, None]
    of_target = logits.gather(-1, at_target)
    largest, where = logits.max(-1, keepdim=True)
    grad = logits.softmax(-1)
    nats = (largest - grad.gather(-1, where).log() - of_target).squeeze(-1)
    if smoothing:
        nats += smoothing * (of_target.squeeze(-1) - logits[:, :columns].mean(-1))
        grad[:, :columns] -= smoothing / columns
    grad.scatter_add_(-1, at_target, torch.full_like(largest, smoothing - 1))
    return nats, grad.masked_fill_(~valid[:, None], 0.0)


def _softcapped(gradient_of, softcap, logits, *rest):
    """What `gradient_of` gives for c tanh(s / c), with its gradient for s. Writes over s."""
    bent = logits.div_(softcap).tanh_()
    nats, grad = gradient_of(softcap * bent, *rest)
    return nats, grad.mul_(bent.square_().neg_().add_(1))


def softcapped(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """c tanh(s / c), at least in float32, for c above 0; s for 0. Same shape and dtype."""
    if not softcap:
        return logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (softcap * (wide / softcap).tanh()).to(logits.dtype)


def linear_cross_entropy_naive(h, weight, targets, columns=None, label_smoothing=0.0, softcap=0.0):
    """The reference for tests: all logits at once, differentiated by autograd."""
    logits = softcapped(F.linear(h, weight)[..., :columns], softcap)
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_p = logits.to(wide).flatten(0, -2).log_softmax(-1)
    scored = targets.flatten() != IGNORED
    of_target = log_p[scored].gather(-1, targets.flatten()[scored][:, None])
    return -((1 - label_smoothing) * of_target.mean() + label_smoothing * log_p[scored].mean())
