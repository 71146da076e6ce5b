"""Sinusoidal and rotary positions, grouped-query attention, and the Llama block as transformers has it."""

import math

import pytest
import torch

from layers import POSITION
from layers.attention import SoftmaxAttention
from layers.position import RotaryPosition, SinusoidalPosition, sinusoids
from model import GPT
from models.architecture import ModelConfig

LLAMA3 = {
    "rope_base": 500_000.0, "rope_scaling": "llama3", "rope_factor": 8.0, "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0, "rope_original_max_position_embeddings": 32,
}  # fmt: skip


def turned(config, q, k, pos):
    return RotaryPosition(config).rotate(q, k, torch.as_tensor(pos))


def test_sinusoids_are_the_published_ones():
    pos = torch.tensor([0, 1, 2, 511, 4095, 2**20])
    found = sinusoids(pos, 24)
    assert found[0].tolist() == [0.0, 1.0] * 12
    for row, n in zip(found.tolist(), pos.tolist(), strict=True):
        for i in range(12):
            angle = n / 10000 ** (2 * i / 24)
            # float32 knows an angle to a few 2^-24 of its size
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-6 + angle * 5e-7)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6 + angle * 5e-7)


def test_a_step_turns_sinusoids():
    """PE(n + k) = R_k PE(n), where R_k knows nothing of n."""
    pos, k = torch.arange(300), 37
    before, after = sinusoids(pos, 24), sinusoids(pos + k, 24)
    for i in range(12):
        angle = k / 10000 ** (2 * i / 24)
        rotation = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        pair = slice(2 * i, 2 * i + 2)
        torch.testing.assert_close(after[:, pair], before[:, pair] @ rotation.T, rtol=0, atol=1e-4)


def test_sinusoids_are_added_once(tiny):
    position, x = SinusoidalPosition(tiny()), torch.randn(2, 9, 24)
    pos = torch.arange(9)
    assert torch.equal(position.embed(x, pos), x * 24**0.5 + sinusoids(pos, 24))
    assert all(h is x for h in position.before_qkv(x, pos, 0))
    assert position.embed(x.bfloat16(), pos).dtype == torch.bfloat16


@pytest.mark.parametrize("keys", [{}, LLAMA3])
def test_rope_knows_distances_only(tiny, keys):
    config = tiny(n_head=2, n_embd=32, **keys)
    q, k = torch.randn(1, 1, 1, 16).expand(1, 2, 50, 16), torch.randn(1, 1, 1, 16).expand(1, 2, 50, 16)
    scores = []
    for start in (0, 1, 700):
        turned_q, turned_k = turned(config, q, k, torch.arange(start, start + 50))
        scores.append(turned_q @ turned_k.mT)
        assert turned_q.norm(dim=-1).allclose(q.norm(dim=-1))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=0, atol=2e-3)
    for distance in (-49, -3, 0, 20):
        diagonal = scores[0][0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    # and they do matter
    assert scores[0][0, 0, 0].unique().numel() == 50


def test_rope_turns_in_float32(tiny):
    """bfloat16 queries far out are turned by the right angle and rounded once."""
    config = tiny(n_head=3)
    q = torch.randn(1, 3, 4, 8, dtype=torch.bfloat16)
    pos = torch.tensor([4090, 4091, 60_000, 60_001])
    found, _ = turned(config, q, q, pos)
    expected, _ = turned(config, q.double(), q.double(), pos)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("keys", [{}, {"rope_base": 500_000.0}, LLAMA3])
def test_rope_is_that_of_transformers(tiny, keys):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = tiny(n_head=2, n_embd=128, **keys)
    theirs = LlamaRotaryEmbedding(LlamaConfig(rope_parameters=rope_parameters(config), head_dim=64))
    q, k = torch.randn(2, 2, 100, 64), torch.randn(2, 1, 100, 64)
    pos = torch.cat((torch.arange(98), torch.tensor([8191, 131_071])))
    expected = apply_rotary_pos_emb(q, k, *theirs(q, pos[None]))
    for one, other in zip(turned(config, q, k, pos), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 if not keys else 1e-5)


def rope_parameters(config):
    """Of a ModelConfig, as transformers writes them."""
    kind = {"rope_theta": config.rope_base, "rope_type": "default"}
    if config.rope_scaling == "llama3":
        names = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
        kind |= {"rope_type": "llama3", **{name: getattr(config, f"rope_{name}") for name in names}}
    return kind


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("keys", [{}, LLAMA3])
def test_llama_is_that_of_transformers(keys, tied):
    """RMSNorm, SwiGLU, RoPE, grouped queries: the same weights give the same logits."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = ModelConfig(
        n_layer=2, n_head=4, n_kv_head=2, n_embd=64, block_size=96, vocab_size=128, ffn_hidden=112,
        ffn="swiglu", norm="rmsnorm", position="rope", tie_embeddings=tied, **keys,
    )  # fmt: skip
    llama = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=112, num_hidden_layers=2, rms_norm_eps=1e-5,
        num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope_parameters(config),
        tie_word_embeddings=tied, initializer_range=0.1,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(llama).eval()
    model = GPT(config).eval()
    weights = {
        "embedding.weight": theirs.model.embed_tokens.weight,
        "norm.weight": theirs.model.norm.weight,
    }
    if not tied:
        weights["head.weight"] = theirs.lm_head.weight
    for number, layer in enumerate(theirs.model.layers):
        attention, ffn = layer.self_attn, layer.mlp
        weights |= {
            f"blocks.{number}.{name}": torch.cat(list(parts))
            for name, parts in {
                "norm1.weight": [layer.input_layernorm.weight],
                "attention.qkv.weight": [
                    p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)
                ],
                "attention.proj.weight": [attention.o_proj.weight],
                "norm2.weight": [layer.post_attention_layernorm.weight],
                "ffn.up.weight": [ffn.gate_proj.weight, ffn.up_proj.weight],
                "ffn.down.weight": [ffn.down_proj.weight],
            }.items()
        }
    model.load_state_dict(weights)
    tokens = torch.randint(0, 128, (2, 96))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)
    assert model.parameter_count() == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("position", ["none", "rope", "expe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_queries_share_keys_and_values(tiny, position, dtype):
    """As full attention whose heads of k and v are copies."""
    torch.manual_seed(0)
    grouped = SoftmaxAttention(tiny(n_head=6, n_embd=48, n_kv_head=2, bias=True))
    full = SoftmaxAttention(tiny(n_head=6, n_embd=48, bias=True))
    copies = {}
    for name, weight in grouped.state_dict().items():
        if name.startswith("qkv"):
            q, k, v = weight.split((48, 16, 16))
            repeated = [p.unflatten(0, (2, 8)).repeat_interleave(3, dim=0).flatten(0, 1) for p in (k, v)]
            weight = torch.cat([q, *repeated])
        copies[name] = weight
    full.load_state_dict(copies)
    pos = torch.arange(17)
    place = POSITION[position](tiny(n_head=6, n_embd=48)).eval()
    x = torch.randn(2, 17, 48)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        found, expected = grouped(x, place, pos, 0), full(x, place, pos, 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2)


def test_all_blocks_share_the_angles(monkeypatch):
    computed, angles = [], RotaryPosition.cos_and_sin
    monkeypatch.setattr(
        RotaryPosition, "cos_and_sin", lambda self, pos: computed.append(1) or angles(self, pos)
    )
    sizes = {"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 11}
    model = GPT(ModelConfig(position="rope", **sizes)).init_weights()
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert len(computed) == 1
