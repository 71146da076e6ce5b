"""Attention to a window against all scores under a mask; the cache, which holds the window alone."""

import pytest
import torch

from layers.attention import SoftmaxAttention
from layers.sliding_window import SlidingWindow
from tests.largest_tensor import Largest

W = 5
KEYS = [
    {},
    {"n_kv_head": 1, "position": "rope", "qk_norm": True},
    {"token_shift": True, "bias": True},
    {"position": "expe"},
]


def naive(mixer, x, position):
    """Every score by itself: queries and keys of the base class, a mask of the window."""
    pos = torch.arange(x.shape[1])
    q, k, v = mixer.project(x, position, pos)
    k, v = (part.repeat_interleave(mixer.n_head // mixer.n_kv_head, 1) for part in (k, v))
    scores = q.to(k.dtype) @ k.mT * q.shape[-1] ** -0.5
    seen = (pos <= pos[:, None]) & (pos > pos[:, None] - mixer.window)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return mixer.proj((weights.to(v.dtype) @ v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, W - 1, W, W + 1, 2 * W, 17])
def test_equals_all_scores_under_a_mask(build, keys, dtype, length):
    model = build(attention="sliding_window", n_layer=1, **keys).to(dtype)
    mixer, x = model.blocks[0].attention, torch.randn(2, length, 24, dtype=dtype, requires_grad=True)
    found = mixer(x, model.position, torch.arange(length))
    wanted = naive(mixer, x, model.position)
    upstream = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(y, x, upstream)[0] for y in (found, wanted))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.3}
    torch.testing.assert_close(found, wanted, **tolerance)
    torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("pieces", [[1] * 17, [3, 1, 1, 4, 8], [12, 5], [4, 1, 12]])
@torch.no_grad()
def test_the_cache_gives_what_the_whole_gives(build, keys, pieces):
    model = build(attention="sliding_window,softmax", **keys).eval()
    cache = model.new_cache(2)
    for tokens in torch.randint(100, (2, 2, 17)):  # the second text finds the first one in the cache
        cache.clear()
        whole, end = model(tokens), 0
        for piece in pieces:
            end += piece
            found = model.decode(tokens[:, end - piece : end], cache)
            torch.testing.assert_close(found, whole[:, end - 1], rtol=1e-4, atol=1e-4)
    assert [held.shape[-2] for held in cache.blocks[0][:2]] == [W, W]


@pytest.mark.parametrize("attention", ["sliding_window", "sliding_window,gated_deltanet"])
@torch.no_grad()
def test_a_prompt_compiles_in_one_graph(build, attention):
    model = build(attention=attention, position="rope").eval()
    tokens, caches = torch.randint(100, (1, 17)), [model.new_cache(1) for _ in range(2)]
    whole = model(tokens)
    step = torch.compile(model.hidden, backend="eager", fullgraph=True, dynamic=False)
    for start, end in ((0, 12), (12, 17)):
        found = model.logits(step(tokens[:, start:end], caches[0]))
        torch.testing.assert_close(found, whole[:, start:end], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_later_piece_of_a_prompt_costs_what_windows_cost(build):
    """1,000 tokens after 20: no scores of 1,000 by 1,000."""
    keys = {"block_size": 2048, "attention_window": 8, "n_layer": 1}
    model = build(attention="sliding_window", position="rope", **keys)
    cache = model.new_cache(1, 1020)
    model.decode(torch.randint(100, (1, 20)), cache)
    with Largest() as largest:
        model.decode(torch.randint(100, (1, 1000)), cache)
    assert largest.size <= 1024 * 96  # of the MLP


@torch.no_grad()
def test_a_token_sees_the_window_and_nothing_else(tiny):
    mixer = SlidingWindow(tiny()).eval()
    x = torch.randn(1, 17, 24)
    before = mixer(x)
    for place in range(17):
        other = x.clone()
        other[:, place] += 1
        moved = (mixer(other) != before).any(-1)[0]
        assert moved.nonzero().flatten().tolist() == [*range(place, min(17, place + W))]


@torch.no_grad()
def test_a_window_as_long_as_the_text_is_softmax_attention(tiny):
    config = tiny(attention_window=17)
    window, whole = SlidingWindow(config), SoftmaxAttention(config)
    whole.load_state_dict(window.state_dict())
    x = torch.randn(2, 17, 24)
    assert torch.equal(window(x), whole(x))


def test_counts(tiny):
    config = tiny()
    assert SlidingWindow.parameter_count(config) == SoftmaxAttention.parameter_count(config)
    for context in (3, W, 17):
        dense = SoftmaxAttention.flops_per_token(config, min(context, W))
        assert SlidingWindow.flops_per_token(config, context) == dense
    assert SlidingWindow.cached_values(config) == 0


def test_a_window_that_is_not_set_is_a_quarter_of_the_block_size(tiny):
    assert SlidingWindow(tiny(attention_window=None, block_size=17)).window == 4
    assert SlidingWindow(tiny(attention_window=None, block_size=3)).window == 1
    for window, unused in ((16, False), (17, True)):
        config = tiny(attention="sliding_window", attention_window=window)
        assert (f"attention_window={window}" in config.unused_keys()) == unused
