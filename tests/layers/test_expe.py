"""ExPE and ExQPE: their closed forms, exactly; what attention makes of them; the paper's ablations."""

from fractions import Fraction

import pytest
import torch
from torch.nn import functional as F

from layers.attention import SoftmaxAttention
from layers.expe import ExPE, ExQPE

FAR = [0, 1, 2, 15, 16, 17, 511, 512, 4095, 100_003, 2**20 - 1, 2**20]
KINDS = {"expe": ExPE, "exqpe": ExQPE}
kinds = pytest.mark.parametrize("kind", KINDS)


def built(kind, config):
    module = KINDS[kind](config)
    module.init_weights()
    return module


def recursion(start, theta_1, theta_2, width, steps):
    """p_0, p_1, .. of ExQPE as the paper writes them: one column after the other grows by theta_2."""
    p = [start + i * theta_1 for i in range(width)]
    for n in range(steps):
        p[n % width] += theta_2
        yield list(p)


@pytest.mark.parametrize("theta", [Fraction(1, 1024), Fraction(1, 2048)])
def test_expe_is_exact(tiny, theta):
    config = tiny(n_embd=48, expe_start=0.25, expe_theta=float(theta))
    found = built("expe", config).columns(torch.tensor(FAR))
    assert found.dtype == torch.float32
    expected = [[Fraction(1, 4) + theta * (n + j) for j in range(16)] for n in FAR]
    assert [[Fraction(p) for p in row] for row in found.tolist()] == expected


def test_exqpe_is_exact(tiny):
    theta_1, theta_2, width = Fraction(1, 512), Fraction(5, 64), 5
    config = tiny(expe_width=width, expe_start=0.25, exqpe_theta_1=1 / 512, exqpe_theta_2=5 / 64)
    position = built("exqpe", config)
    steps = 200
    expected = list(recursion(Fraction(1, 4), theta_1, theta_2, width, steps))
    found = position.columns(torch.arange(steps)).tolist()
    assert [[Fraction(p) for p in row] for row in found] == expected
    # far out by p_{n + l} = p_n + theta_2
    far = torch.tensor([n for n in FAR if n > 100])
    for n, row in zip(far.tolist(), position.columns(far).tolist(), strict=True):
        near = expected[n % width]
        assert [Fraction(p) for p in row] == [p + n // width * theta_2 for p in near]


@kinds
def test_awkward_constants_are_right_to_float32(tiny, kind):
    config = tiny(expe_width=7, expe_start=-0.3, expe_theta=0.0017)
    found = built(kind, config).columns(torch.tensor(FAR)).double()
    n, j = torch.tensor(FAR)[:, None], torch.arange(7)
    if kind == "expe":
        expected = -0.3 + 0.0017 * (n + j).double()
    else:
        grown = torch.where(n < j, 0, torch.div(n - j, 7, rounding_mode="floor") + 1)
        expected = -0.3 + 0.0017 * j.double() + 7 * 0.0017 * grown.double()
    torch.testing.assert_close(found, expected, rtol=3e-7, atol=1e-7)


def test_a_step_of_exqpe_changes_one_column(tiny):
    config = tiny(block_size=256)
    p = built("exqpe", config).columns(torch.arange(300)).double()
    steps = p.diff(dim=0)
    theta = 1 / 1024
    assert ((steps != 0).sum(1) == 1).all()
    assert (steps.sum(1) == 16 * theta).all()  # l theta: the mean column grows as ExPE's
    assert (p[16:] - p[:-16] == 16 * theta).all()
    assert (p[0] == torch.arange(16) * theta + torch.eye(16)[0] * 16 * theta).all()


def test_defaults(tiny):
    config = tiny(n_embd=512, block_size=256)
    position = ExPE(config)
    assert position.width == 32
    p = position.columns(torch.arange(257))
    assert p[0, 0] == 0
    assert p[256, 0] == 0.25  # the range of the paper: 0 to 1/4 over the trained length
    assert ExPE(tiny(n_embd=48)).width == 16


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_v", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_queries_and_keys_see_the_columns(tiny, kind, dtype, on_v, bias):
    """q = W_q phi(x), k = W_k phi(x), v = W_v x: against plain attention with q, k and v of their own."""
    torch.manual_seed(0)
    config = tiny(n_embd=48, n_kv_head=1, expe_on_v=on_v, bias=bias)
    attention, position = SoftmaxAttention(config), built(kind, config)
    x, pos = torch.randn(2, 17, 48), torch.arange(17)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        found = attention(x, position, pos, 0)
    phi = x.double().clone()
    phi[..., :16] = position.columns(pos).double()
    weight = attention.qkv.weight.double().split((48, 16, 16))
    biases = attention.qkv.bias.double().split((48, 16, 16)) if bias else (None,) * 3
    inputs = (phi, phi, phi if on_v else x.double())
    q, k, v = (F.linear(h, w, b) for h, w, b in zip(inputs, weight, biases, strict=True))
    q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in (q, k, v))
    out = (
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
    )
    expected = attention.proj.double()(out)
    torch.testing.assert_close(
        found.double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-2
    )


@kinds
def test_gradients_are_those_of_the_plain_product(tiny, kind):
    """The columns' own product, made once for a whole batch, loses no part of any gradient."""
    torch.manual_seed(0)
    config = tiny(n_embd=48, expe_learned="standard", expe_theta=0.1, bias=True)
    attention, position = SoftmaxAttention(config).double(), built(kind, config).double()
    x, pos = torch.randn(3, 17, 48, dtype=torch.float64, requires_grad=True), torch.arange(17)
    inputs = [x, *attention.qkv.parameters(), *position.parameters()]
    target = torch.randn(3, 3, 17, 16, dtype=torch.float64)

    def gradients(q, k, v):
        loss = ((q * k + q * v) * target).sum()
        return torch.autograd.grad(loss, inputs)

    found = gradients(*attention.project(x, position, pos, 0))
    phi = torch.cat((position.columns(pos).double().expand(3, -1, -1), x[..., 16:]), dim=-1)
    q, k = attention.qkv(phi).split(48, dim=-1)[:2]
    v = attention.qkv(x).split(48, dim=-1)[2]
    expected = gradients(*(part.unflatten(-1, (3, 16)).transpose(1, 2) for part in (q, k, v)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@kinds
def test_nothing_else_is_touched(tiny, kind):
    position, pos = built(kind, tiny(n_embd=48)), torch.arange(9)
    x, q = torch.randn(2, 9, 48), torch.randn(2, 3, 9, 16)
    assert position.embed(x, pos) is x
    h_qk, h_v = position.before_qkv(x, pos, 1)
    assert h_v is x
    assert torch.equal(h_qk[..., 16:], x[..., 16:])
    assert position.rotate(q, q, pos) == (q, q)


@kinds
def test_bfloat16_does_not_merge_positions(tiny, kind):
    """512 positions of one token, at the start and far out, under autocast."""
    torch.manual_seed(0)
    config = tiny(n_embd=192, n_head=3, block_size=256)  # theta = 1 / 1024
    attention, position = SoftmaxAttention(config), built(kind, config)
    x = torch.randn(1, 1, 192).expand(1, 512, -1)
    for start in (0, 100_000, 2**20):
        pos = torch.arange(start, start + 512)
        columns = position.columns(pos)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            q, k, v = attention.project(x, position, pos, 0)
            rounded = F.linear(columns, attention.qkv.weight[:192, :16])
        assert (q.dtype, k.dtype, v.dtype) == (torch.float32, torch.float32, torch.bfloat16)
        for part in (q, k):
            rows = part[0].transpose(0, 1).flatten(1)
            assert rows.unique(dim=0).shape[0] == 512
            if start == 0:  # nor does the rounding of the whole q and k for attention itself
                assert rows.bfloat16().unique(dim=0).shape[0] == 512
            # the contribution is right, not only distinct: compare two neighbours
            step = (part[0, :, 1:] - part[0, :, :-1]).transpose(0, 1).flatten(1)
            rows = attention.qkv.weight[:192, :16] if part is q else attention.qkv.weight[192:384, :16]
            expected = columns.double().diff(dim=0) @ rows.detach().double().T
            torch.testing.assert_close(
                step.double(), expected, rtol=0, atol=2e-7 * columns.abs().max().item() * 16
            )
        # what rounding the columns would do: one column alone, and far out all of them together
        if kind == "expe" and start == 0:
            assert columns[:, 0].unique().numel() == 512
            assert columns[:, 0].bfloat16().unique().numel() == 385
        if start:
            assert rounded.unique(dim=0).shape[0] < 20


def test_stable_columns_are_equal(tiny):
    p = built("expe", tiny(block_size=256, expe_stable=True)).columns(torch.tensor(FAR))
    assert (p == p[:, :1]).all()
    assert p[:, 0].tolist() == [n / 1024 for n in FAR]


@kinds
def test_once_is_in_the_embedding(tiny, kind):
    position, pos = built(kind, tiny(n_embd=48, expe_once=True)), torch.arange(9)
    x = torch.randn(2, 9, 48)
    embedded = position.embed(x, pos)
    assert torch.equal(embedded[1, :, :16], position.columns(pos))
    assert torch.equal(embedded[..., 16:], x[..., 16:])
    assert position.before_qkv(x, pos, 0) == (x, x)
    assert position.exact_columns == 0


@kinds
def test_learned_constants(build, tiny, kind):
    standard = built(kind, tiny(n_embd=48, expe_learned="standard"))
    fixed = built(kind, tiny(n_embd=48))
    pos = torch.arange(17)
    assert torch.equal(standard.columns(pos), fixed.columns(pos))
    assert [p.item() for p in standard.learned] == pytest.approx(fixed.standard)
    torch.manual_seed(0)
    random = built(kind, tiny(n_embd=48, expe_learned="random"))
    assert all(0 < p.abs() < 0.08 for p in random.learned)
    assert not torch.equal(random.columns(pos), fixed.columns(pos))
    assert len(standard.learned) == (2 if kind == "expe" else 3)
    # one set for all blocks, and it learns
    model = build(position=kind, expe_learned="standard")
    tokens = torch.randint(0, 100, (2, 17))
    model(tokens, tokens).backward()
    assert all(p.grad.abs() > 0 for p in model.position.learned)


@kinds
def test_scaled_at_inference_only(tiny, kind):
    position, plain = (
        built(kind, tiny(expe_start=0.5, **keys)) for keys in ({"expe_inference_scale": 0.5}, {})
    )
    pos = torch.tensor(FAR)
    assert torch.equal(position.train().columns(pos), plain.columns(pos))
    assert torch.equal(position.eval().columns(pos), plain.columns(pos) * 0.5)
    assert torch.equal(plain.eval().columns(pos), plain.train().columns(pos))


@kinds
@pytest.mark.parametrize("keys", [{}, {"expe_learned": "standard", "expe_on_v": True}])
def test_in_pure_half_precision_and_double(build, kind, keys):
    """A model that was cast as a whole, without autocast."""
    tokens = torch.randint(0, 100, (2, 17))
    double = build(position=kind, **keys).double()(tokens)
    half = build(position=kind, **keys).bfloat16()(tokens)
    assert double.dtype == torch.float64
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), double, rtol=0, atol=0.1 * double.abs().max().item())
