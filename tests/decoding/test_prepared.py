"""The copy that decodes: its layouts compute what the weights of the model do, and its caches grow."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from decoding import decoder
from decoding.decoder import Decoder
from decoding.prepared import FrozenLinear, prepared
from kernels import packed_linear
from layers import ATTENTION
from models.cache import ROWS
from models.compilation import compile_parts, eager
from tests.counting_compiler import Counter
from tests.decoding.test_decode import legal, recorded

HALF = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("n_out", "n_in"), [(1, 1), (7, 33), (128, 64)])
def test_a_packed_product_is_that_of_the_weight(dtype, rows, n_out, n_in):
    weight, bias, x = torch.randn(n_out, n_in), torch.randn(n_out), torch.randn(rows, 1, n_in)
    weight, bias, x = (one.to(dtype) for one in (weight, bias, x))
    layout = packed_linear.packed(weight, rows)
    assert (layout is not None) == (HALF if dtype == torch.bfloat16 else rows > 1)
    if layout is None:
        return
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for given in (x, x[:1], torch.cat((x, x))):  # other numbers of rows are computed too
        for b in (None, bias):
            found = packed_linear.packed_linear(given, layout, b, n_out)
            torch.testing.assert_close(found, F.linear(given, weight, b), **tolerance)
    compiled = torch.compile(packed_linear.packed_linear, fullgraph=True, backend="aot_eager")
    assert torch.equal(
        compiled(x, layout, bias, n_out), packed_linear.packed_linear(x, layout, bias, n_out)
    )


def test_without_the_private_operators(monkeypatch):
    class Gone:
        def __getattr__(self, name):
            raise AttributeError(name)

    linear, x = torch.nn.Linear(5, 7), torch.randn(2, 1, 5)
    monkeypatch.setattr(torch.ops, "mkldnn", Gone())
    frozen = FrozenLinear(linear.weight, linear.bias, 2)
    assert frozen.packed is None
    assert (frozen.in_features, frozen.out_features) == (linear.in_features, linear.out_features)
    assert torch.equal(frozen(x), linear(x))


@legal
@torch.no_grad()
def test_steps_of_the_copy_equal_the_forward_pass(build, keys):
    """In float64 to 1e-10, in float32 to 1e-5; the model itself and its weights stay what they were."""
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = recorded(build(**keys)).to(dtype)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        tokens = torch.randint(0, 100, (3, 17))
        whole, cache, step = model(tokens), model.new_cache(3), Decoder(model)
        step(tokens[:, :4], cache)
        exact = model.config.position in ("expe", "exqpe")  # their own columns are float32 numbers
        for t in range(4, 17):
            logits = step(tokens[:, t : t + 1], cache)
            atol = 1e-5 if exact else tolerance
            torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=atol * whole.abs().max().item())
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
        assert not any(isinstance(module, FrozenLinear) for module in model.modules())


@pytest.mark.parametrize("attention", ATTENTION)
@torch.no_grad()
def test_steps_under_autocast(build, attention):
    """Linear maps are cast once, and every step is as near the float32 numbers as one of the model."""
    model = build(scale=1.0, attention=attention).eval()
    tokens, far = torch.randint(0, 100, (2, 9)), []
    whole = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        for step in (model.decode, Decoder(model)):
            cache = model.new_cache(2)
            found = torch.stack([step(tokens[:, t : t + 1], cache) for t in range(9)], 1)
            assert found.dtype == torch.bfloat16
            far.append(float((found.float() - whole).norm() / whole.norm()))
    assert far[1] < max(2 * far[0], 5e-3)
    assert prepared(model, 2).head_weight() is model.head_weight()


@torch.no_grad()
def test_exact_columns_stay_exact_under_autocast(build):
    """ExPE with steps between positions so large that rounded weights would show."""
    model = build(position="expe", expe_theta=20.0, block_size=64).eval()
    tokens = torch.randint(0, 100, (2, 60))
    with torch.autocast("cpu", torch.bfloat16):
        found = []
        for step in (model.decode, Decoder(model)):
            cache = model.new_cache(2)
            found.append(torch.stack([step(tokens[:, t : t + 1], cache) for t in range(60)], 1).float())
    assert (found[0] - found[1]).norm() < 1e-3 * found[0].norm()


@pytest.mark.parametrize("attention", ["softmax", "cattn_m", "cattn_relative", "cattn_u"])
@torch.no_grad()
def test_a_cache_grows_and_one_graph_stays(build, attention):
    torch._dynamo.reset()
    model = build(attention=attention, block_size=2 * ROWS + 9, n_layer=1, token_shift=True).eval()
    tokens, counter = torch.randint(0, 100, (2, 2 * ROWS + 9)), Counter()
    whole = model(tokens)
    cache, compiled = model.new_cache(2), model.new_cache(2)
    eager, fast = Decoder(model), Decoder(model, counter)
    for start in (0, ROWS - 3, ROWS - 2):
        end = ROWS - 3 if not start else start + 1
        for one in (cache, compiled):
            model.decode(tokens[:, start:end], one)
    assert (cache.room, cache.length) == (ROWS, 2 * ROWS + 9)
    for t in range(ROWS - 1, 2 * ROWS + 9):
        for step, one in ((eager, cache), (fast, compiled)):
            logits = step(tokens[:, t : t + 1], one)
            torch.testing.assert_close(logits, whole[:, t], rtol=1e-4, atol=1e-4)
    assert cache.room == compiled.room == 2 * ROWS + 9
    assert counter.graphs == 2  # embedding, block
    with pytest.raises(ValueError, match="do not fit into a cache of length 265"):
        fast(tokens[:, :1], compiled)


@pytest.mark.parametrize("attention", ["softmax", "cattn_relative"])
@torch.no_grad()
def test_a_captured_step_warms_up_on_a_spare_cache(build, attention, monkeypatch):
    """With a stand-in for CUDA graphs: also for the last token that there is room for."""
    logits = torch.empty(2, 100)

    def stand_in(warm_up, function):
        for _ in range(3):
            warm_up()
        return lambda: logits.copy_(function()), logits

    monkeypatch.setattr(decoder, "captured", stand_in)
    model, tokens = build(attention=attention, token_shift=True).eval(), torch.randint(0, 100, (2, 6))
    whole, caches = model(tokens), [model.new_cache(2, 6) for _ in range(2)]
    for cache, start in zip(caches, (4, 5), strict=True):
        model.decode(tokens[:, :start], cache)
    compile_parts(model, "eager")
    for cache, start in zip(caches, (4, 5), strict=True):
        step = decoder.CapturedStep(model.decode, tokens[:, start : start + 1], replace(cache, whole=True))
        for t in range(start, 6):
            torch.testing.assert_close(step(tokens[:, t : t + 1]), whole[:, t], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_captured_steps_of_caches_of_many_lengths_have_one_graph(build, monkeypatch):
    """Such as those of prompts of many lengths."""
    monkeypatch.setattr(decoder, "captured", lambda warm_up, function: (warm_up(), (function, None))[1])
    model, counter = build(position="rope").eval(), Counter()
    compile_parts(model, counter)
    for length in range(8, 17):
        cache = model.new_cache(1, length)
        with eager():
            model.decode(torch.zeros(1, 5, dtype=torch.int64), cache)
        cache.reserve(cache.length - 5)
        decoder.CapturedStep(model.decode, torch.zeros(1, 1, dtype=torch.int64), replace(cache, whole=True))
    assert counter.graphs == 2  # embedding, block


@torch.no_grad()
def test_another_number_of_sequences(build):
    model, tokens = build().eval(), torch.randint(0, 100, (3, 5))
    whole, step = model(tokens), Decoder(model)
    for rows in (1, 3, 2):
        cache = model.new_cache(rows)
        for t in range(5):
            logits = step(tokens[:rows, t : t + 1], cache)
        torch.testing.assert_close(logits, whole[:rows, -1], rtol=1e-5, atol=1e-5)
