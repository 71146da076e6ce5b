"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks").

    S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t,    S_0 given

Each head has a state S in R^{K x V} that forgets by alpha_t in (0, 1] and overwrites what k_t addresses by
beta_t in [0, 1]. `gated_delta_loop` is the recurrence as written, the reference for tests. `gated_delta`
computes the same in chunks of tokens, by matrix products: with b_i the sum of log alpha over the tokens of
a chunk up to i, the values that are really written are

    u = (I + A)^-1 (beta V - beta e^b K S),    A_ij = beta_i e^(b_i - b_j) k_i . k_j for j < i

and then O = e^b Q S + (e^(b_i - b_j) q_i . k_j, j <= i) u, and S becomes e^(b_C) S + (e^(b_C - b) K)^T u.
"""

import torch

from kernels.autocast import without_autocast

CHUNK = 64  # tokens; the triangular system of a chunk is as wide


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
    """
    with without_autocast(q):
        if q.shape[2] == 1:
            return _step(q, k, v, log_alpha[..., None], beta[..., None], state)
        out = []
        for parts in zip(*(x.split(CHUNK, 2) for x in (q, k, v, log_alpha, beta)), strict=True):
            of_chunk, state = _chunk(*parts, state)
            out.append(of_chunk)
        return torch.cat(out, 2), state


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
