"""CAttnU against its equation, position by position."""

import math

import pytest
import torch

from kernels.continued_fraction import continued_fraction_naive
from kernels.triangular import packed_size, unpack_lower_naive
from layers.cattn_u import CAttnU

DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def layer(config, scale=0.3, dtype=torch.float32):
    torch.manual_seed(0)
    made = CAttnU(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=scale)
    return made.to(dtype)


def naive(made, x, pole="positive"):
    """In float64, one sequence of numbers, one ladder and one output after the other."""
    w = {name: p.detach().double() for name, p in made.named_parameters()}
    M = unpack_lower_naive(w["M"], made.block_size)
    out = torch.empty(x.shape, dtype=torch.float64)
    for b, c in ((b, c) for b in range(x.shape[0]) for c in range(x.shape[2])):
        s = x[b, :, c].double()
        factors = []
        for e in (0, 1):
            y = []
            for t in range(len(s)):
                a = [
                    w[f"W.{k}"][e, t] * s[t] + w.get(f"b.{k}", w["w0"] * 0)[e, t] for k in range(made.depth)
                ]
                linear = w["w0"][e, t] * s[t] + w.get("b0", w["w0"] * 0)[e, t]
                y.append(linear + continued_fraction_naive(torch.stack(a)[:, None], pole)[0])
            factors.append([sum(M[e, t, i] * y[i] for i in range(t + 1)) for t in range(len(s))])
        out[b, :, c] = torch.stack([u * v for u, v in zip(*factors, strict=True)])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 13, 17])
@pytest.mark.parametrize(
    "keys",
    [{}, {"cf_depth": 2, "cf_intercept": "none", "cf_impl": "ladder"}, {"cf_linear_intercept": True}],
)
def test_equals_a_loop_over_positions(tiny, keys, length, dtype):
    made = layer(tiny(**keys), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    x = torch.randn(2, length, 5, dtype=made.w0.dtype)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        found = made(x)
    expected = naive(made, x)
    assert found.shape == x.shape
    tolerance = DTYPES[dtype] * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def test_is_the_square_without_fraction_and_mixing(tiny):
    """w_0 = 1, M = I and partial denominators of 1e12: O = x * x."""
    made = layer(tiny(cf_depth=1), dtype=torch.float64)
    with torch.no_grad():
        made.w0.fill_(1)
        made.W[0].zero_()
        made.b[0].fill_(1e12)
        diagonal = [packed_size(t) - 1 for t in range(1, 18)]
        made.M.zero_()[:, diagonal] = 1
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(made(x), x * x)


@pytest.mark.parametrize("value", [1.0, 1e30, -3.4e38, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [{}, {"cf_pole": "clamp", "cf_depth": 2}])
def test_whatever_the_future_holds_the_past_stays_the_same_to_the_bit(tiny, keys, dtype, value):
    made = layer(tiny(**keys))
    x = torch.randn(2, 17, 24)
    for s in (1, 7, 16):
        changed = x.clone()
        changed[:, s:] = value
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.no_grad():
            before, after = made(x), made(changed)
        assert before.isfinite().all()
        assert torch.equal(before[:, :s], after[:, :s])
        assert not torch.equal(before[:, s:], after[:, s:])
        if not math.isfinite(value):
            assert after[:, s:].isnan().all()  # not hidden


@pytest.mark.parametrize("length", [1, 2, 11])
def test_a_prefix_gives_the_same_outputs(tiny, length):
    made = layer(tiny(), dtype=torch.float64)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(made(x[:, :length]), made(x)[:, :length], rtol=0, atol=1e-12)


def test_refuses_more_tokens_than_positions(tiny):
    with pytest.raises(ValueError, match=r"18 tokens .*CAttnU.* 17\b"):
        CAttnU(tiny())(torch.zeros(1, 18, 24))


@pytest.mark.parametrize(("intercept", "affine"), [("one", True), ("none", False)])
def test_counts_and_depths(tiny, intercept, affine):
    config = tiny(cf_intercept=intercept, cf_linear_intercept=affine)
    made = CAttnU(config)
    length, depth, biased = 17, 3, intercept == "one"
    expected = length * (length + 1) + 2 * length * (depth * (1 + biased) + 1 + affine)
    assert sum(p.numel() for p in made.parameters()) == expected == CAttnU.parameter_count(config)
    by_depth = made.depth_parameters()
    assert [[tuple(p.shape) for p in depth] for depth in by_depth] == [[(2, 17)] * (1 + biased)] * 3
    assert all(depth[0] is weight for depth, weight in zip(by_depth, made.W, strict=True))


def test_initial_weights(tiny):
    torch.manual_seed(0)
    made = CAttnU(tiny(block_size=200, n_layer=8))
    made.init_weights()
    assert (made.w0 == 1).all()
    assert all((bias == 1).all() for bias in made.b)
    assert torch.stack(list(made.W)).std().item() == pytest.approx(0.1, rel=0.1)
    first, second = unpack_lower_naive(made.M.detach(), 200)
    mean = torch.ones(200, 200).tril() / torch.arange(1.0, 201.0)[:, None]
    for M, scale in ((first, 0.25), (second, 1.0)):
        noise = M / scale - mean
        assert noise.square().sum(1).sqrt().mean().item() == pytest.approx(0.02, rel=0.1)
        assert 0.01 < noise[150:].square().sum(1).sqrt().mean().item() < 0.03
    made = CAttnU(tiny(block_size=200, cf_init="nanogpt"))
    made.init_weights()
    assert torch.stack(list(made.W)).std().item() == pytest.approx(0.02, rel=0.1)


def test_range_of_each_position_and_ensemble(tiny):
    made = layer(tiny(cf_eval_clip=True))
    seen = []
    made.fraction.register_forward_hook(lambda module, arguments, z: seen.append(z))
    assert made.fraction.z_min.shape == (2, 17)
    made(torch.randn(3, 11, 24))
    assert torch.equal(made.fraction.z_max[:, :11], seen[0].amax((0, 1)))
    assert made.fraction.z_max[:, 11:].isinf().all()
    made.eval()(100 * torch.randn(3, 17, 24))
    assert (seen[1][..., :11] <= made.fraction.z_max[:, :11]).all()
    assert (seen[1][..., 11:] > made.fraction.z_max[:, :11].max()).any()  # never recorded: never clipped


def test_range_of_all_that_a_ladder_produces(tiny):
    """cf_clip_of=ladder: the ends are of y^e_t = w_0 x_t + z, and decoding clips to them too."""
    made = layer(tiny(cf_eval_clip=True, cf_clip_of="ladder"))
    x, far = torch.randn(3, 11, 24), 20 * torch.randn(3, 11, 24)
    y = made._inputs(x, 11)  # [B, C, 2, T]
    assert torch.equal(made.fraction.z_max[:, :11], y.amax((0, 1)))
    free = made._inputs(far, 11, torch.arange(11))  # in training at given positions: nothing is recorded
    clipped = free.clamp(y.amin((0, 1)), y.amax((0, 1)))
    made.eval()
    torch.testing.assert_close(made._inputs(far, 11), clipped)
    torch.testing.assert_close(made._inputs(far[:, 3:5], 11, torch.arange(3, 5)), clipped[..., 3:5])


def test_dropout_acts_on_the_output_in_training(tiny):
    made = layer(tiny(dropout=0.5))
    x = torch.randn(2, 17, 24)
    dropped = made(x) == 0
    assert 0.4 < dropped.float().mean() < 0.6
    assert (made.eval()(x) != 0).all()


def test_compiles_into_one_graph(tiny):
    torch._dynamo.reset()
    made = layer(tiny(cf_eval_clip=True))
    compiled = torch.compile(made, fullgraph=True, dynamic=False, backend="aot_eager")
    x = torch.randn(2, 13, 24, requires_grad=True)
    out = compiled(x)
    grads = torch.autograd.grad(out.square().sum(), [x, *made.parameters()])
    expected = torch.autograd.grad(made(x).square().sum(), [x, *made.parameters()])
    torch.testing.assert_close(out, made(x))
    torch.testing.assert_close(grads, expected)
