"""Kernels of a fused step of decoding against float64, and the step against the forward pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from decoding.decoder import Decoder
from kernels import backend
from kernels.continued_fraction import continued_fraction
from model import GPT
from models.architecture import ModelConfig

if backend.INSTALLED:
    from decoding import fused
    from kernels.decode_attention_triton import SPLITS, split_attention, weighted_values
    from kernels.gemv_triton import Ladders, Rows, Written, gemv

DTYPES = [torch.float32, torch.bfloat16]
ACTIVATIONS = {
    "none": lambda y, h: y,
    "gelu": lambda y, h: F.gelu(y),
    "gelu_tanh": lambda y, h: F.gelu(y, approximate="tanh"),
    "relu": lambda y, h: y.relu(),
    "relu2": lambda y, h: y.relu().square(),
    "gate": lambda y, h: y.sigmoid() * h,
}


@pytest.fixture
def numbers(triton_device):
    drawn = torch.Generator().manual_seed(0)

    def draw(*shape, dtype=torch.float32, scale=1.0):
        return (scale * torch.randn(*shape, generator=drawn)).to(dtype).to(triton_device)

    return draw


def ladders_of(numbers, batch, depth, count, pole, parts=1):
    """Fractions of rows with another stride, clipped in half of the ladders; and z: [B, L] float64."""
    a = numbers(batch, 3 + parts * depth * count)[:, 3:]
    constant, wide = 0.2 if pole == "positive" else 0.3, numbers(count, scale=10.0)
    low, high = numbers(count, scale=0.1) - 0.1, numbers(count, scale=0.1) + 0.1
    low, high = torch.where(wide > 0, low, float("inf")), torch.where(wide > 0, high, float("-inf"))
    keys = {"floor": constant} if pole == "positive" else {"eps": constant}
    of_all = a.double().unflatten(1, (parts, depth, count)).sum(1)
    z = continued_fraction(of_all, pole=pole, backend="torch", **keys)
    z = torch.where(low <= high, z.clamp(low, high), z)
    return Ladders(a, depth, count, pole == "positive", constant, parts, low, high), z


def norm_of(numbers, kind, width, dtype):
    if kind == "none":
        return None, lambda x: x
    bias = kind == "layernorm with a bias"
    norm = nn.RMSNorm(width, eps=1e-3) if kind == "rmsnorm" else nn.LayerNorm(width, eps=1e-3, bias=bias)
    for parameter in norm.parameters():
        parameter.data = numbers(width, dtype=dtype)
    weight, b = norm.weight.double(), norm.bias.double() if bias else None

    def exact(x):
        if kind == "rmsnorm":
            return F.rms_norm(x, (width,), weight, 1e-3)
        return F.layer_norm(x, (width,), weight, b, 1e-3)

    return norm.to(weight.device), exact


def rows_of(numbers, added, batch, width):
    """-> Rows and their sum in float64"""
    x = numbers(batch, width)
    exact = x.double()
    if added == "none":
        return Rows(x), exact
    if added == "parts":
        more = numbers(3, batch, width)
        return Rows(x, "parts", more), exact + more.double().sum(0)
    if added == "ladders":
        ladders, z = ladders_of(numbers, batch, 3, 5, "positive", parts=2)
        more, V = numbers(batch, width + 9)[:, :width], numbers(5, width, dtype=torch.bfloat16)
        return Rows(x, "ladders", more, ladders, V), exact + more.double() + z @ V.double()
    heads = 3
    more, stats = numbers(3, batch, width), numbers(3, batch, heads, 2)
    stats[..., 1] = stats[..., 1].exp()
    stats[-1], more[-1] = torch.tensor([float("-inf"), 0.0]), 0.0  # a part without rows
    share = stats[..., 0].double().exp2()
    parts = more.double().unflatten(-1, (heads, -1)) * share[..., None]
    joined = parts.sum(0) / (share * stats[..., 1].double()).sum(0)[..., None]
    return Rows(x, "heads", more, stats=stats), joined.flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("added", "norm", "activation", "batch", "width", "n_out"),
    [
        ("none", "none", "none", 1, 1, 1),
        ("none", "none", "relu2", 8, 130, 65),
        ("none", "layernorm", "gelu", 3, 33, 70),
        ("parts", "rmsnorm", "gelu_tanh", 2, 48, 7),
        ("parts", "layernorm with a bias", "gate", 3, 37, 37),
        ("ladders", "layernorm", "gate", 2, 33, 33),
        ("ladders", "none", "none", 1, 200, 3),
        ("heads", "none", "none", 3, 45, 11),
        ("heads", "layernorm", "none", 1, 24, 24),
    ],
)
def test_products_and_what_stands_around_them(
    triton_device, numbers, added, norm, activation, batch, width, n_out, dtype
):
    rows, x = rows_of(numbers, added, batch, width)
    norm, normed = norm_of(numbers, norm, width, dtype)
    W, bias = numbers(n_out, width, dtype=dtype, scale=width**-0.5), numbers(n_out, dtype=dtype)
    residual, keep_x, keep_h = numbers(batch, n_out), torch.empty_like(rows.x), torch.empty_like(rows.x)
    found = gemv(rows, W, bias, norm, activation, residual, keep_x, keep_h)
    h = normed(x)
    exact = ACTIVATIONS[activation](h @ W.double().T + bias.double(), h) + residual.double()
    for one, other in ((found, exact), (keep_h, h)) + (((keep_x, x),) if added != "heads" else ()):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)
    plain = gemv(rows, W, norm=norm)
    torch.testing.assert_close(plain.double(), h @ W.double().T, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head", "caches"), [(1, 24, 1), (3, 8, 2), (2, 5, 2)])
def test_the_last_rows_are_written_to_caches(triton_device, numbers, heads, head, caches, dtype):
    batch, width, room, kept = 3, 17, 9, 6
    W = numbers(kept + caches * heads * head, width, dtype=dtype)
    held = tuple(numbers(batch, heads, room, head, dtype=dtype) for _ in range(caches))
    before, filled = [one.clone() for one in held], torch.tensor(5, device=triton_device)
    rows = Rows(numbers(batch, width))
    found = gemv(rows, W, written=Written(held, filled))
    exact = rows.x @ W.float().T
    torch.testing.assert_close(found, exact[:, :kept], rtol=1e-4, atol=1e-4)
    new = exact[:, kept:].to(dtype).unflatten(1, (caches, heads, head))
    for number, (one, old) in enumerate(zip(held, before, strict=True)):
        torch.testing.assert_close(one[:, :, 5], new[:, number], rtol=1e-2, atol=1e-4)
        others = [row for row in range(room) if row != 5]
        assert torch.equal(one[:, :, others], old[:, :, others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pole", "depth", "count"), [("positive", 7, 7), ("clamp", 1, 1), ("clamp", 4, 3)])
def test_scores_of_columns(triton_device, numbers, pole, depth, count, dtype):
    batch, width, columns, filled = 2, 21, 30, 12
    ladders, z = ladders_of(numbers, batch, depth, count, pole)
    U, V = numbers(columns, width, dtype=dtype), numbers(count, columns, dtype=dtype)
    rows, bias = Rows(numbers(batch, width)), numbers(columns)
    scored = ladders, V, torch.tensor(filled, device=triton_device)
    found = gemv(rows, U, bias, scored=scored)[:, : filled + 1]
    exact = rows.x.double() @ U.double().T + z @ V.double() + bias.double()
    torch.testing.assert_close(found.double(), exact[:, : filled + 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "heads", "held", "room", "width", "filled"),
    [(1, 1, 1, 1, 8, 0), (2, 3, 3, 70, 5, 0), (2, 4, 2, 100, 16, 99), (1, 2, 1, 300, 64, 270)],
)
def test_attention_in_parts(triton_device, numbers, batch, heads, held, room, width, filled, dtype):
    q = numbers(batch, heads * width, scale=3.0)
    k, v = (numbers(batch, held, room, width, dtype=dtype) for _ in range(2))
    parts = split_attention(q, k, v, torch.tensor(filled, device=triton_device))
    identity = torch.eye(heads * width, device=triton_device)
    found = gemv(Rows(q, "heads", parts[0], stats=parts[1]), identity)
    seen = (x[:, :, : filled + 1].double().repeat_interleave(heads // held, 1) for x in (k, v))
    exact = F.scaled_dot_product_attention(q.double().view(batch, heads, 1, width), *seen)
    torch.testing.assert_close(found.double(), exact.flatten(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("batch", "room", "width", "filled"), [(2, 9, 70, 0), (1, 1, 3, 0), (1, 1100, 65, 1090), (3, 40, 16, 1)]
)
def test_values_by_scores(triton_device, numbers, batch, room, width, filled, strict, dtype):
    scores, v = numbers(batch, room + 7, scale=5.0), numbers(batch, 1, room, width, dtype=dtype)
    scores[:, filled + 1 :] = float("nan")  # never written
    found = weighted_values(scores, v, torch.tensor(filled, device=triton_device), strict)
    assert found.shape == (SPLITS, batch, width)
    seen = filled + 1 - strict
    exact = (scores[:, None, :seen].double().softmax(-1) @ v[:, 0, :seen].double())[:, 0]
    torch.testing.assert_close(found.sum(0).double(), exact, rtol=1e-4, atol=1e-4)


LADDERS = {"cf_ladders": 5, "cf_depth": 3, "cf_linear_intercept": True, "cf_eval_clip": True}
GATED = {"ffn": "cffn_gated", **LADDERS}
COLUMNS = {"attention": "cattn_m", "cattn_scores": "collapsed", "cattn_strict": True, **LADDERS}
MODELS = {
    "dense": {
        "bias": True,
        "n_kv_head": 1,
        "gelu_approximation": "tanh",
        "n_layer": 1,
        "logit_softcap": 3.0,
    },
    "F": {**GATED, "position": "sinusoidal", "n_layer": 1},
    "A": {**COLUMNS, "norm": "rmsnorm", "cattn_strict": False, "mlp_activation": "relu"},
    "full": {**COLUMNS, **GATED},
    "full, otherwise": {**COLUMNS, **GATED, "cf_pole": "clamp", "cf_eps": 0.8, "bias": True}
    | {"cf_linear_intercept": False, "cf_eval_clip": False, "tie_embeddings": False, "position": "none"},
    "by layer": {**COLUMNS, **GATED, "attention": "softmax,cattn_m", "ffn": "cffn_gated,mlp", "n_layer": 3},
}


def built(keys, device, **more):
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 12, "vocab_size": 101}
    model = GPT(ModelConfig(**size | keys | more)).init_weights().to(device)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape).to(device))
    model(torch.randint(0, 101, (2, 9), device=device))  # in training: the range of the ladders
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_fused_step_is_the_forward_pass(triton_device, name, monkeypatch):
    """With float32 weights to 1e-5, and in five kernels a block. With bfloat16 weights, logits are no
    farther from float32 than those of ordinary steps.
    """
    batch, launched = 2, []
    for function in ("gemv", "split_attention", "weighted_values"):
        kept = getattr(fused, function)

        def counted(*arguments, kept=kept, **more):
            launched.append(kept)
            return kept(*arguments, **more)

        monkeypatch.setattr(fused, function, counted)
    model = built(MODELS[name], triton_device)
    tokens = torch.randint(0, 101, (batch, 12), device=triton_device)
    whole = model(tokens)
    cache, step = model.new_cache(batch), Decoder(model, "fused")
    step(tokens[:, :7], cache)
    for t in (7, 8):
        found = step(tokens[:, t : t + 1], cache).clone()
        torch.testing.assert_close(found, whole[:, t], rtol=1e-5, atol=1e-5)
    if triton_device == "cpu":  # a captured step is played again, without launches
        assert len(launched) == 2 * (5 * len(model.blocks) + 1)
    model.bfloat16()
    far = []
    for decode in (Decoder(model, "fused"), Decoder(model)):
        cache = model.new_cache(batch)
        decode(tokens[:, :8], cache)
        found = decode(tokens[:, 8:9], cache).float()
        far.append(float((found - whole[:, 8]).norm() / whole[:, 8].norm()))
    assert far[0] < max(1.1 * far[1], 1e-3)


@torch.no_grad()
def test_denominators_under_autocast_are_not_rounded(triton_device):
    """Their float32 weights stand beside bfloat16 ones, in two parts."""
    model = built(MODELS["F"], triton_device, n_layer=1)
    tokens = torch.randint(0, 101, (2, 5), device=triton_device)
    far = []
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast(triton_device, dtype, enabled=dtype == torch.bfloat16):
            step, cache = Decoder(model, "fused"), model.new_cache(2)
            step(tokens[:, :4], cache)
            step(tokens[:, 4:], cache)
            gated = step.run.layers[0][1]
            W = gated.weight[gated.width :].float().unflatten(0, (gated.ladders.parts, -1)).sum(0)
            exact = torch.stack(list(model.blocks[0].ffn.ladders.W)).flatten(0, 1)
            far.append(float((W - exact).abs().max() / exact.abs().max()))
            assert gated.ladders.parts == 1 + (dtype == torch.bfloat16)
    assert far[0] == 0 < far[1] < 2**-15


@torch.no_grad()
def test_what_fused_steps_do_not_decode(triton_device):
    tokens = torch.randint(0, 101, (9, 2), device=triton_device)
    for keys in (
        {"position": "rope"}, {"token_shift": True}, {"ffn": "swiglu"}, {**COLUMNS, "cattn_heads": 3},
        {**COLUMNS, "cattn_scores": "rank"}, {**COLUMNS, "cattn_proj": True}, {"attention": "cattn_u"},
        {**GATED, "cf_impl": "ladder"}, {**GATED, "cf_control": "zero"},
        {**GATED, "cffn_gate": "glu_collapsed"},
    ):  # fmt: skip
        model = built({"n_layer": 1, "n_head": 2, **keys}, triton_device)
        with pytest.raises(ValueError, match="fused steps cannot decode this model"):
            Decoder(model, "fused")(tokens[:1, :1], model.new_cache(1))
    model = built({}, triton_device)
    with pytest.raises(ValueError, match="more than 8 rows"):
        Decoder(model, "fused")(tokens[:, :1], model.new_cache(9))
