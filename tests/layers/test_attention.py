"""QK-norm against the equation."""

import pytest
import torch

from layers.attention import SoftmaxAttention


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_queries_and_keys_are_normalised_by_head(tiny, dtype):
    """q_h = g * W_q x / sqrt(mean of squares + eps), and k likewise with weights of its own."""
    torch.manual_seed(0)
    mixer = SoftmaxAttention(tiny(qk_norm=True, n_kv_head=1)).to(dtype)
    mixer.q_norm.weight.copy_(torch.rand(8) + 1)
    mixer.k_norm.weight.copy_(torch.rand(8))
    x = torch.randn(2, 5, 24, dtype=dtype)
    q, k, v = mixer.project(x)
    mapped = mixer.qkv(x)
    for found, heads, first, norm in ((q, 3, 0, mixer.q_norm), (k, 1, 24, mixer.k_norm)):
        for head in range(heads):
            one = mapped[..., first + 8 * head : first + 8 * head + 8].double()
            wanted = norm.weight.double() * one / (one.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            rough = 1e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(found[:, head].double(), wanted, rtol=rough, atol=rough)
    assert torch.equal(v[:, 0], mapped[..., 32:])


@torch.no_grad()
def test_keys_are_normalised_with_what_they_hold_of_the_token_before(tiny):
    """k_t = norm(W_k x_t + W_p x_(t-1)): the norm comes last, so that it bounds the scores."""
    mixer = SoftmaxAttention(tiny(qk_norm=True, token_shift=True, n_head=1)).double()
    x = torch.randn(1, 4, 24).double()
    _, k, _ = mixer.project(x)
    for t in range(4):
        wanted = mixer.qkv(x[0, t])[24:48] + (mixer.previous(x[0, t - 1]) if t else 0)
        torch.testing.assert_close(k[0, 0, t], wanted / (wanted.square().mean() + 1e-5).sqrt())


@torch.no_grad()
def test_scores_do_not_grow_with_the_weights(tiny):
    mixer = SoftmaxAttention(tiny(qk_norm=True, norm_eps=1e-12)).double()
    x = torch.randn(2, 5, 24).double()
    q, k, _ = mixer.project(x)
    mixer.qkv.weight[:48] *= 100
    for found, before in zip(mixer.project(x), (q, k), strict=False):
        torch.testing.assert_close(found, before)


@torch.no_grad()
def test_rotation_follows_the_norm(build):
    """Rotated queries keep the norm's length: RoPE does not change it."""
    model = build(qk_norm=True, position="rope", n_head=2)
    x, pos = torch.randn(1, 4, 24), torch.arange(4)
    q, k, _ = model.blocks[0].attention.project(x, model.position, pos)
    for part in (q, k):
        torch.testing.assert_close(part.square().mean(-1), torch.ones(1, 2, 4), rtol=1e-3, atol=1e-3)
