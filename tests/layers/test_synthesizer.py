"""Dense Synthesizer against its equation, token by token."""

import pytest
import torch

from layers.synthesizer import Synthesizer
from model import GPT

DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def layer(config, scale=0.5, dtype=torch.float32):
    torch.manual_seed(0)
    made = Synthesizer(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=scale)
    return made.to(dtype)


def naive(made, x):
    """In float64, one sequence, head and token after the other."""
    w = {name: p.detach().double() for name, p in made.named_parameters()}
    heads, block_size, width = w["W2"].shape
    x = x.double()
    v = x @ w["value.weight"].T + w.get("value.bias", 0)
    out = torch.empty_like(x)
    for s in range(x.shape[0]):
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            b1, b2 = w["b1"][part], w["b2"][head * block_size : (head + 1) * block_size]
            for t in range(x.shape[1]):
                scores = w["W2"][head] @ torch.relu(w["W1"][head] @ x[s, t, part] + b1) + b2
                out[s, t, part] = scores[: t + 1].softmax(0) @ v[s, : t + 1, part]
    return out @ w["proj.weight"].T + w.get("proj.bias", 0) if "proj.weight" in w else out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 13, 17])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"synthesizer_proj": False, "n_head": 1},
        {"bias": True, "n_head": 2, "n_embd": 14},
        {"n_head": 4, "n_embd": 4},
    ],
)
def test_equals_a_loop_over_tokens(tiny, keys, length, dtype):
    made = layer(tiny(**keys), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    x = torch.randn(2, length, made.value.in_features, dtype=made.W1.dtype)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        found = made(x)
    expected = naive(made, x)
    tolerance = DTYPES[dtype] * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("keys", [{}, {"bias": True, "synthesizer_proj": False}])
def test_gradients_are_those_of_the_written_scores(tiny, keys):
    made = layer(tiny(**keys), dtype=torch.float64)
    x = torch.randn(2, 13, 24, dtype=torch.float64, requires_grad=True)

    def plain(x):
        h, v = (y.unflatten(-1, (3, 8)).transpose(1, 2) for y in (x, made.value(x)))
        hidden = torch.relu(h @ made.W1.mT + made.b1.view(3, 1, 8))
        scores = hidden @ made.W2[:, :13].mT + made.b2.view(3, 1, 17)[..., :13]
        future = torch.ones(13, 13, dtype=torch.bool).triu(1)
        out = (scores.masked_fill(future, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(-2)
        return out if made.proj is None else made.proj(out)

    inputs = [x, *made.parameters()]
    found, expected = (torch.autograd.grad(f(x).sin().sum(), inputs) for f in (made, plain))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_rows_sum_to_one(tiny):
    """Values that do not depend on the token come out as they are."""
    made = layer(tiny(bias=True, synthesizer_proj=False), 1.0)
    with torch.no_grad():
        made.value.weight.zero_()
    out = made(torch.randn(2, 17, 24))
    torch.testing.assert_close(out, made.value.bias.expand(2, 17, 24))


def test_one_bias_points_at_one_position(tiny):
    made = layer(tiny(n_head=1, synthesizer_proj=False))
    with torch.no_grad():
        made.b2.zero_()[5] = 1e4
    x = torch.randn(2, 17, 24)
    torch.testing.assert_close(made(x)[:, 5:], made.value(x)[:, 5:6].expand(-1, 12, -1))


@pytest.mark.parametrize("length", [1, 2, 11])
def test_a_prefix_gives_the_same_outputs(tiny, length):
    made = layer(tiny(), dtype=torch.float64)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(made(x[:, :length]), made(x)[:, :length], rtol=0, atol=1e-12)


def test_refuses_more_tokens_than_columns(tiny):
    with pytest.raises(ValueError, match=r"18 tokens .*Synthesizer.* 17\b"):
        layer(tiny())(torch.zeros(1, 18, 24))


def test_cropped_to_a_smaller_block(tiny):
    """Each head loses the last positions' rows, in its matrix and in its biases."""
    made, small = layer(tiny()), Synthesizer(tiny(block_size=9))
    small.load_state_dict({
        name: Synthesizer.cropped(name, weight, tiny(), 9) for name, weight in made.state_dict().items()
    })  # fmt: skip
    x = torch.randn(2, 9, 24)
    torch.testing.assert_close(small(x), made(x))


def test_counts(tiny):
    """Per head d_k^2 + d_k in the first map, l d_k + l in the second; V and the projection p^2 each."""
    for keys, expected in [({}, 2 * 24**2), ({"synthesizer_proj": False, "bias": True}, 24**2 + 24)]:
        config = tiny(**keys)
        expected += 3 * (8 * 8 + 8 + 17 * 8 + 17)
        found = sum(p.numel() for p in layer(config).parameters())
        assert found == expected == Synthesizer.parameter_count(config)


def test_initial_weights(tiny):
    """Drawn also where the model began on the meta device; biases are left to no decay."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = GPT(tiny(n_embd=96, n_layer=8, attention="synthesizer"))
    made = model.to_empty(device="cpu").init_weights().blocks[3].attention
    assert made.W1.std().item() == pytest.approx(0.02, rel=0.1)
    assert made.W2.std().item() == pytest.approx(0.02, rel=0.1)
    assert made.proj.weight.std().item() == pytest.approx(0.005, rel=0.1)
    assert made.value.weight.std().item() == pytest.approx(0.02, rel=0.1)
    for bias in (made.b1, made.b2):
        assert bias.dim() == 1
        assert (bias == 0).all()
    without = GPT(
        tiny(n_embd=96, n_layer=8, attention="synthesizer", synthesizer_proj=False)
    ).init_weights()
    assert without.blocks[0].attention.value.weight.std().item() == pytest.approx(0.005, rel=0.1)


def test_dropout_acts_on_weights_and_output_in_training(tiny):
    made = layer(tiny(dropout=0.5, synthesizer_proj=False))
    x = torch.randn(2, 17, 24)
    out = made(x)
    # the first token attends to itself alone: dropped there with its weight, or as an output
    assert 0.6 < (out[:, 0] == 0).float().mean() < 0.9
    assert 0.4 < (out[:, 8:] == 0).float().mean() < 0.6
    made.dropout.p = 0.0
    assert not torch.equal(made(x), made(x))
    assert torch.equal(made.eval()(x), made(x))


@pytest.mark.parametrize("proj", [True, False])
def test_compiles_into_one_graph(tiny, proj):
    torch._dynamo.reset()
    made = layer(tiny(synthesizer_proj=proj))
    compiled = torch.compile(made, fullgraph=True, dynamic=False, backend="aot_eager")
    x = torch.randn(2, 13, 24, requires_grad=True)
    out = compiled(x)
    grads = torch.autograd.grad(out.square().sum(), [x, *made.parameters()])
    expected = torch.autograd.grad(made(x).square().sum(), [x, *made.parameters()])
    torch.testing.assert_close(out, made(x))
    torch.testing.assert_close(grads, expected)
