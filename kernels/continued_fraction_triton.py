"""The continued fraction on a GPU: one kernel for the value and one for the gradient, each reads a once.

`kernels.continued_fraction` states the equations and selects this code for CUDA tensors. Depth comes first
in memory, so that neighbouring threads read neighbouring words for any number of ladders. The loops over
the d partial denominators are unrolled, so that all d + 1 continuants of a ladder stay in registers.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton
from triton.language.extra import libdevice

from kernels.backend import INTERPRETED, NAMESPACE

# From this floor on, softplus may have the hardware's error of 2^-22, which is 3e-6 of the floor.
FAST_FLOOR = 0.1
LN2 = tl.constexpr(0.6931471805599453)
# the interpreter has no libdevice
HARDWARE = tl.constexpr(not INTERPRETED)


def _launched(kernel):
    """Returns the kernel as torch.compile sees it."""
    # the interpreter needs no wrapper, and PyTorch 2.11 refuses to make one
    return kernel if INTERPRETED else wrap_triton(kernel)


@triton.jit
def _softplus(a, FAST: tl.constexpr):
    """log(1 + exp(a)), and exp(-|a|). FAST: to 3e-7, else to float32's precision.

    For small u = exp(-|a|), log(1 + u) would round to 0 instead of u.
    """
    u = tl.exp(-tl.abs(a))
    w = 1.0 + u
    if FAST:
        log = (libdevice.fast_log2f(w) if HARDWARE else tl.log2(w)) * LN2
    else:
        lost = w == 1.0
        log = tl.where(lost, u, tl.log(w) * (u / tl.where(lost, 1.0, w - 1.0)))
    return tl.maximum(a, 0.0) + log, u


@triton.jit
def _clamped_reciprocal(K_d, eps):
    # not tl.maximum, which would replace a NaN by eps
    size = tl.where(tl.abs(K_d) < eps, eps, tl.abs(K_d))
    return tl.where(K_d < 0, -1.0, 1.0) / size


@triton.jit
def _forward_kernel(
    a_ptr, z_ptr, low_ptr, high_ptr, blocks, tokens, depth_stride, constant,
    D: tl.constexpr, POSITIVE: tl.constexpr, FAST: tl.constexpr, RANGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """a: [D, ladders, tokens] -> z: [ladders, tokens]; low, high: [ladders, blocks of tokens]"""
    program = tl.program_id(0)
    block, ladder = program % blocks, program // blocks
    token = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = token < tokens
    here = ladder.to(tl.int64) * tokens + token
    a_k_ptr = a_ptr + here
    for _ in tl.static_range(D - 1):  # repeated additions, because a 32-bit product could overflow
        a_k_ptr += depth_stride
    previous, current = tl.zeros((BLOCK,), tl.float32), tl.full((BLOCK,), 1.0, tl.float32)
    for _ in tl.static_range(D):
        a_k = tl.load(a_k_ptr, mask, other=1.0).to(tl.float32)
        a_k_ptr -= depth_stride
        if POSITIVE:
            a_k = _softplus(a_k, FAST)[0] + constant
        following = a_k * current + previous
        previous, current = current, following
    reciprocal = 1.0 / current if POSITIVE else _clamped_reciprocal(current, constant)
    z = (previous * reciprocal).to(z_ptr.dtype.element_ty)
    tl.store(z_ptr + here, z, mask)
    if RANGE:
        z = z.to(tl.float32)
        seen = mask & (tl.abs(z) < float("inf"))  # neither infinite nor NaN
        tl.store(low_ptr + program, tl.min(tl.where(seen, z, float("inf")), 0))
        tl.store(high_ptr + program, tl.max(tl.where(seen, z, float("-inf")), 0))


@triton.jit
def _backward_kernel(
    a_ptr, grad_z_ptr, grad_ptr, count, constant,
    D: tl.constexpr, POSITIVE: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """a: [D, count], grad_z: [count] -> grad: [D, count]"""
    here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = here < count
    a_k_ptr, grad_k_ptr = a_ptr + here, grad_ptr + here
    grad_z = tl.load(grad_z_ptr + here, mask, other=0.0).to(tl.float32)
    one = tl.full((BLOCK,), 1.0, tl.float32)
    slopes, partial = (), ()
    for _ in tl.static_range(D):
        a_k = tl.load(a_k_ptr, mask, other=1.0).to(tl.float32)
        a_k_ptr += count
        if POSITIVE:
            softplus, u = _softplus(a_k, FAST)
            slopes += (tl.where(a_k < 0, u, 1.0) / (1.0 + u),)
            a_k = softplus + constant
        partial += (a_k,)
    tails = (one, partial[D - 1])  # K_0, K_1, ...
    for k in tl.static_range(2, D + 1):
        tails += (partial[D - k] * tails[k - 1] + tails[k - 2],)
    K_d = tails[D]
    reciprocal = 1.0 / K_d if POSITIVE else _clamped_reciprocal(K_d, constant)
    for k in tl.static_range(D):
        ratio = tails[D - 1 - k] * reciprocal
        grad = ratio * ratio if k % 2 else -(ratio * ratio)
        grad = grad * grad_z
        if POSITIVE:
            grad = grad * slopes[k]
        tl.store(grad_k_ptr, grad.to(grad_ptr.dtype.element_ty), mask)
        grad_k_ptr += count


def _block(depth, count):
    """Fractions per program: fewer at larger depth, so that continuants fit in registers."""
    most = 1024 if depth <= 4 else 512 if depth <= 8 else 256
    return min(most, max(32, triton.next_power_of_2(count)))


@triton_op(f"{NAMESPACE}::continued_fraction_triton", mutates_args=())
def _forward(
    a: torch.Tensor, positive: bool, constant: float, ranged: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: [d, L, tokens] -> z [L, tokens] in a's dtype; low, high: [L] float32 with `ranged`, else [0]."""
    depth, ladders, tokens = a.shape
    a = a.contiguous()
    z = a.new_empty(a.shape[1:])
    # without the range, ladders and tokens are treated as one long row
    rows, columns = (ladders, tokens) if ranged else (1, z.numel())
    block = _block(depth, columns)
    blocks = triton.cdiv(columns, block)
    # one column per block, reduced below; at least one column, because amin needs one
    low = a.new_full((ladders if ranged else 0, max(blocks, 1)), float("inf"), dtype=torch.float32)
    high = torch.full_like(low, float("-inf"))
    if z.numel():
        with torch.cuda.device_of(a):
            _launched(_forward_kernel)[(blocks * rows,)](
                a, z, low, high, blocks, columns, z.numel(), constant,
                D=depth, POSITIVE=positive, FAST=constant >= FAST_FLOOR, RANGE=ranged, BLOCK=block,
            )  # fmt: skip
    return z, low.amin(1), high.amax(1)


@triton_op(f"{NAMESPACE}::continued_fraction_triton_backward", mutates_args=())
def _backward(a: torch.Tensor, grad_z: torch.Tensor, positive: bool, constant: float) -> torch.Tensor:
    """a: [d, L, tokens], grad_z: [L, tokens] -> [d, L, tokens] in a's type"""
    a, grad_z = a.contiguous(), grad_z.contiguous()
    grad = torch.empty_like(a)
    block = _block(len(a), grad_z.numel())
    if a.numel():
        with torch.cuda.device_of(a):
            _launched(_backward_kernel)[(triton.cdiv(grad_z.numel(), block),)](
                a, grad_z, grad, grad_z.numel(), constant,
                D=len(a), POSITIVE=positive, FAST=constant >= FAST_FLOOR, BLOCK=block,
            )  # fmt: skip
    return grad


def _setup_context(ctx, inputs, output):
    a, *ctx.options, _ = inputs
    ctx.save_for_backward(a)


def _backward_of_forward(ctx, grad_z, grad_low, grad_high):
    (a,) = ctx.saved_tensors
    return _backward(a, grad_z, *ctx.options), None, None, None


_forward.register_autograd(_backward_of_forward, setup_context=_setup_context)


def continued_fraction_triton(
    a: torch.Tensor, positive: bool, constant: float, ranged: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a: [d, L, tokens] bfloat16, float16 or float32 -> z: [L, tokens] in a's dtype, low, high.

    With `ranged`, low and high [L] float32 are the smallest and largest finite z of each ladder (inf and
    -inf if there is none), without gradient; else they are empty. constant: floor if positive, else eps.
    Differentiable once.
    """
    z, low, high = _forward(a, positive, constant, ranged)
    return z, low.detach(), high.detach()
