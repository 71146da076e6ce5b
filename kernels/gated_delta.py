"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks").

    S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t,    S_0 given

Each head has a state S in R^{K x V} that forgets by alpha_t in (0, 1] and overwrites what k_t addresses by
beta_t in [0, 1]. `gated_delta_loop` is the recurrence as written, the reference for tests. `gated_delta`
computes the same in chunks of tokens, by matrix products: with b_i the sum of log alpha over the tokens of
a chunk up to i, the values that are really written are

    u = (I + A)^-1 (beta V - beta e^b K S),    A_ij = beta_i e^(b_i - b_j) k_i . k_j for j < i

and then O = e^b Q S + (e^(b_i - b_j) q_i . k_j, j <= i) u, and S becomes e^(b_C) S + (e^(b_C - b) K)^T u.
On a GPU, the package flash-linear-attention computes the same where it is installed.
"""

from importlib import import_module
from importlib.util import find_spec

import torch

from kernels.autocast import product_dtype, without_autocast
from kernels.backend import NAMESPACE

CHUNK = 64  # tokens; the triangular system of a chunk is as wide
FLA = "fla.ops.gated_delta_rule"  # of flash-linear-attention
INSTALLED = find_spec("fla") is not None  # asked once: torch.compile cannot trace the question
WIDEST = 256  # columns of k that its kernels take


def gated_delta_loop(q, k, v, log_alpha, beta, state):
    """As `gated_delta`, token by token."""
    out = []
    for t in range(q.shape[2]):
        k_t, written = k[:, :, t], beta[:, :, t, None]
        state = log_alpha[:, :, t, None, None].exp() * state
        new = written * (v[:, :, t] - (state * k_t[..., None]).sum(-2))
        state = state + k_t[..., None] * new[..., None, :]
        out.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(out, 2), state


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_alpha: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k: [B, H, T, K], v: [B, H, T, V], log_alpha (at most 0) and beta: [B, H, T], state: [B, H, K, V]
    -> o: [B, H, T, V], the state after the last token. All in at least float32, also under autocast.

    In flash-linear-attention's kernels, products under autocast have its dtype; the state is float32. That
    path has not run on a GPU yet: its tests put plain code in the package's place.
    """
    if use_fla(q):
        return _by_fla(q, k, v, log_alpha, beta, state)
    with without_autocast(q):
        if q.shape[2] == 1:
            return _step(q, k, v, log_alpha[..., None], beta[..., None], state)
        out = []
        for parts in zip(*(x.split(CHUNK, 2) for x in (q, k, v, log_alpha, beta)), strict=True):
            of_chunk, state = _chunk(*parts, state)
            out.append(of_chunk)
        return torch.cat(out, 2), state


def use_fla(q: torch.Tensor) -> bool:
    """Whether flash-linear-attention computes it: installed, on a GPU, not float64, K at most WIDEST."""
    return INSTALLED and q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= WIDEST


def _by_fla(q, k, v, log_alpha, beta, state):
    dtype = product_dtype(q)
    heads_last = (q.to(dtype), k.to(dtype), v.to(dtype), log_alpha, beta)
    out, state = _fla(*(x.transpose(1, 2).contiguous() for x in heads_last), state)
    return out.transpose(1, 2).to(state.dtype), state


# operators, because the package's functions refuse torch.compile
@torch.library.custom_op(f"{NAMESPACE}::gated_delta", mutates_args=())
def _fla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_alpha: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `gated_delta`, with heads after tokens, [B, T, H, ..]; out in q's dtype, the state in float32"""
    # the kernel for single tokens has no gradient
    name = "fused_recurrent_gated_delta_rule" if q.shape[1] == 1 else "chunk_gated_delta_rule"
    out, state = _call(name, q, k, v, log_alpha, beta, state)
    return out.contiguous(), state.contiguous()


def _call(name, q, k, v, log_alpha, beta, state):
    # an import statement would make transformers ask for the package, in models that export.py wrote
    function = getattr(import_module(FLA), name)
    keys = {"g": log_alpha, "beta": beta, "scale": 1.0, "initial_state": state, "output_final_state": True}
    with without_autocast(q):
        return function(q, k, v, **keys)


@_fla.register_fake
def _(q, k, v, log_alpha, beta, state):
    return torch.empty_like(v), torch.empty_like(state)


@torch.library.custom_op(f"{NAMESPACE}::gated_delta_backward", mutates_args=())
def _fla_backward(
    inputs: list[torch.Tensor], grad_out: torch.Tensor, grad_state: torch.Tensor
) -> list[torch.Tensor]:
    """Computes the forward pass again. Inside an operator autograd follows a torch.autograd.Function, which
    the package's function is, but no other code.
    """
    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        results = _call("chunk_gated_delta_rule", *inputs)
        grads = torch.autograd.grad(results, inputs, (grad_out.contiguous(), grad_state.contiguous()))
    return [grad.contiguous() for grad in grads]


@_fla_backward.register_fake
def _(inputs, grad_out, grad_state):
    return [torch.empty_like(x) for x in inputs]


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad_out, grad_state):
    return tuple(_fla_backward(list(ctx.saved_tensors), grad_out, grad_state))


_fla.register_autograd(_backward, setup_context=_setup_context)


def _step(q, k, v, log_alpha, beta, state):
    state = log_alpha.exp() * state
    state = state + k.mT @ (beta * (v - k @ state))
    return q @ state, state


def _chunk(q, k, v, log_alpha, beta, state):
    b = log_alpha.cumsum(-1)
    decay = (b[..., :, None] - b[..., None, :]).tril().exp().tril()  # of a state from token j to token i
    start, beta = b.exp()[..., None], beta[..., None]
    system = (beta * (k @ k.mT) * decay).tril(-1)
    right = beta * torch.cat((v, start * k), -1)
    # the diagonal, which is 1, is not read
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    of_values, of_state = solved.split((v.shape[-1], k.shape[-1]), -1)
    new = of_values - of_state @ state
    out = (start * q) @ state + (q @ k.mT * decay) @ new
    left = (b[..., -1:] - b).exp()[..., None]
    return out, b[..., -1, None, None].exp() * state + (left * k).mT @ new
