"""Value embeddings against the equation, and in everything that a model does."""

import pytest
import torch

from layers.attention import SoftmaxAttention
from layers.value_embedding import ValueEmbedding
from model import GPT, flops_per_token, parameter_counts


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("heads", [None, 1])
@torch.no_grad()
def test_equals_the_equation(tiny, dtype, heads):
    """Token by token and head by head; what attention makes of v, it makes of the sum."""
    torch.manual_seed(0)
    config = tiny(value_embeddings=True, n_kv_head=heads)
    made, mixer = ValueEmbedding(config).to(dtype), SoftmaxAttention(config).to(dtype)
    x, tokens = torch.randn(2, 5, 24, dtype=dtype), torch.randint(100, (2, 5))
    found = made(x, tokens)
    _, _, alone = mixer.project(x)
    _, _, summed = mixer.project(x, values=found)
    for row in range(2):
        for place in range(5):
            factors = 3 * torch.sigmoid(made.gate.weight.double() @ x[row, place, :12].double())
            value = made.table.weight[tokens[row, place]].double().view(len(factors), 8)
            wanted, rough = factors[:, None] * value, 1e-12 if dtype == torch.float64 else 3e-2
            torch.testing.assert_close(found[row, :, place].double(), wanted, rtol=rough, atol=rough)
    torch.testing.assert_close(summed, alone + found)


@pytest.mark.parametrize("attention", ["softmax", "sliding_window", "bigbird", "cattn_m,softmax"])
@torch.no_grad()
def test_decoding_and_causality(build, attention):
    model = build(value_embeddings=True, n_layer=4, attention=attention, n_kv_head=1).eval()
    tables = [block.layer for block in model.blocks if block.values is not None]
    assert tables == sorted(model.config.value_layers()) == [1, 3]
    tokens = torch.randint(100, (2, 17))
    whole, cache = model(tokens), model.new_cache(2)
    for place in range(17):
        found = model.decode(tokens[:, place : place + 1], cache)
        torch.testing.assert_close(found, whole[:, place], rtol=1e-4, atol=1e-4)
    other = tokens.clone()
    other[:, 9:] = (other[:, 9:] + 1) % 100
    assert torch.equal(model(other)[:, :9], whole[:, :9])
    for parameter in model.blocks[1].values.parameters():
        parameter.zero_()
    assert not torch.equal(model(tokens), whole)


def test_counts(build):
    model = build(value_embeddings=True, n_layer=3, n_kv_head=1)
    counts, without = parameter_counts(model.config), parameter_counts(build(n_layer=3, n_kv_head=1).config)
    assert sum(counts.values()) == model.parameter_count()
    assert counts["embedding"] - without["embedding"] == 2 * 128 * 8
    assert counts["attention"] - without["attention"] == 2 * 12
    plain = build(n_layer=3, n_kv_head=1).config
    assert flops_per_token(model.config) - flops_per_token(plain) == 2 * 2 * 12


def test_gradients_and_checkpointing(build):
    """Equal with and without recomputation, and of every table."""
    model = build(value_embeddings=True, n_layer=3).train()
    tokens, grads = torch.randint(100, (2, 17)), []
    for model.activation_checkpointing in (False, True):
        model.zero_grad()
        model(tokens, tokens.roll(-1, 1)).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert all(block.values.table.weight.grad.any() for block in model.blocks[::2])


def test_where_it_acts_nowhere(tiny):
    for attention in ("cattn_m", "softmax,cattn_m"):
        with pytest.raises(ValueError, match=r"value_embeddings.*no softmax or sliding_window or bigbird"):
            GPT(tiny(value_embeddings=True, attention=attention))
