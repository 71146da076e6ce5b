"""T5's relative positions: buckets as published, scores as written, distances only."""

import pytest
import torch

from kernels.embedding import embedding
from layers import relative_bias
from layers.attention import SoftmaxAttention
from layers.relative_bias import RelativeBias, bucket
from models.architecture import ModelConfig


def test_buckets_are_t5s():
    distances = torch.tensor([-20, -8, -1, 0, 1, 8, 64, 200])
    assert bucket(distances, 32, 128, causal=False).tolist() == [10, 8, 1, 0, 17, 24, 30, 31]
    distances = torch.tensor([1, 0, -15, -16, -64, -127, -500])
    assert bucket(distances, 32, 128).tolist() == [0, 0, 15, 16, 26, 31, 31]


@torch.no_grad()
def test_equations(tiny):
    """softmax(q k^T / sqrt(D) + b), token by token, in the decoder and over the tokens of a source."""
    config = tiny(position="t5", n_kv_head=1, encoder_layers=1, t5_buckets=8, t5_max_distance=12)
    torch.manual_seed(0)
    attention, position = SoftmaxAttention(config).eval(), RelativeBias(config)
    x, pos, lengths = torch.randn(2, 17, 24), torch.arange(17), torch.tensor([17, 5])
    q, k, v = attention.project(x)

    def naive(table, causal):
        out = torch.zeros(2, 17, 3, 8)
        for row, length in enumerate([17, 17] if causal else lengths.tolist()):
            for place in range(length):
                seen = range(place + 1) if causal else range(length)
                places = bucket(torch.tensor([n - place for n in seen]), 8, 12, causal)
                for head in range(3):
                    scores = k[row, 0, seen] @ q[row, head, place] / 8**0.5 + table.weight[places, head]
                    out[row, place, head] = scores.softmax(0) @ v[row, 0, seen]
        return attention.proj(out.flatten(-2))

    expected = naive(position.decoder, True)
    torch.testing.assert_close(attention(x, position, pos), expected, rtol=1e-5, atol=1e-5)
    cache = attention.new_cache(2, 17, x.device, x.dtype)
    for start, end in ((0, 7), (7, 8), (8, 17)):
        rows = tuple(held[..., :end, :] for held in cache)
        found = attention.decode(x[:, start:end], pos[start:end], rows, position)
        torch.testing.assert_close(found, expected[:, start:end], rtol=1e-5, atol=1e-5)
    # bfloat16 rounds scores and weights
    found = attention.bfloat16()(x.bfloat16(), position.bfloat16(), pos)
    torch.testing.assert_close(found.float(), expected, rtol=5e-2, atol=5e-2)
    attention.float(), position.float()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rows", "columns", "first"), [(9, 9, 0), (1, 9, 8), (1, 1, 0), (4, 13, 9)])
def test_all_pairs_of_a_query_and_a_key(build, causal, rows, columns, first, monkeypatch):
    """Against the table at each of their distances, with gradients. The operator whose sums have a fixed
    order sees each distance once.
    """
    position, seen = build(position="t5", encoder_layers=1).position, []
    monkeypatch.setattr(relative_bias, "embedding", lambda w, t: seen.append(len(t)) or embedding(w, t))
    pos, keys = first + torch.arange(rows), torch.arange(columns)
    table = (position.decoder if causal else position.encoder).weight
    found = position.bias(pos, keys, causal)
    wanted = table[bucket(keys - pos[:, None], 32, 128, causal)].permute(2, 0, 1)
    assert torch.equal(found, wanted)
    upstream = torch.randn(wanted.shape)
    ours, theirs = (torch.autograd.grad(bias, table, upstream)[0] for bias in (found, wanted))
    torch.testing.assert_close(ours, theirs)
    assert seen == [rows + columns]


def test_wrong_keys_are_named():
    def mistakes(**keys):
        return " ".join(ModelConfig(position="t5", **keys).check())

    assert mistakes() == ""
    assert "attention=softmax, not in bigbird" in mistakes(attention="bigbird")
    assert "t5_buckets must be a multiple of 4" in mistakes(t5_buckets=6)
    assert "t5_max_distance=16 must be above" in mistakes(t5_max_distance=16)
