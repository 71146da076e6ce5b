"""The Triton kernels of the continued fraction against PyTorch in float64. See conftest.py for where."""

import pytest
import torch

from kernels.continued_fraction import (
    POLES,
    continued_fraction,
    continued_fraction_and_range,
    denominator,
)
from layers.ladder import LadderEnsemble

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 0.3


def ladders(shape, dtype, pole="clamp"):
    """Many clamped ladders, none where rounding decides: not at |K_d| = eps and not at the sign's jump."""
    torch.manual_seed(0)
    depth = shape[-2]
    a = torch.randn(shape) if depth <= 8 else 1 + 0.3 * torch.randn(shape)
    a = a.to(dtype)
    if pole == "clamp":
        K_d = denominator(a.double()).abs()
        unclear = ((K_d - EPS).abs() < 1e-2) | (K_d < 1e-2)
        a = torch.where(unclear.unsqueeze(-2), 1.0, a)
    return a


def both(a, device, pole):
    """[(z, gradient of a, low, high)] in Triton and, for the oracle, in float64."""
    upstream = torch.randn(*a.shape[:-2], a.shape[-1]).to(a.dtype)
    results = []
    for backend, leaf, up in (
        ("triton", a.to(device), upstream.to(device)),
        ("torch", a.double(), upstream.double()),
    ):
        leaf = leaf.detach().requires_grad_()
        z, low, high = continued_fraction_and_range(leaf, pole, EPS, 0.1, backend)
        (grad,) = torch.autograd.grad(z, leaf, up)
        results.append([t.detach() for t in (z, grad, low, high)])
    return results


@pytest.mark.parametrize("pole", POLES)
@pytest.mark.parametrize(
    ("depth", "dtype"),
    [(d, t) for d in (*range(1, 9), 16) for t in (DTYPES if d in (1, 4, 5) else DTYPES[:2])],
)
def test_value_gradient_and_range(triton_device, depth, pole, dtype):
    """Every depth with 7 ladders on 130 rows, and with one more of the shapes; float16 at three depths.

    At depth 16 a program takes 256 rows, so that 300 have ranges of two programs.
    """
    for rows, count in ((130, 7), [(300, 2), (1, 1), (17, 3), (3, 5)][depth % 4]):
        check(triton_device, ladders((rows, depth, count), dtype, pole), pole, dtype)


def check(triton_device, a, pole, dtype):
    found, expected = both(a, triton_device, pole)
    tolerance = max(2 * torch.finfo(dtype).eps, 1e-4)  # the interpreter cuts off where a GPU rounds
    for name, f, e in zip(["z", "grad", "low", "high"], found, expected, strict=True):
        assert f.dtype == (dtype if name in ("z", "grad") else torch.float32)
        torch.testing.assert_close(f.cpu().double(), e.double(), rtol=tolerance, atol=tolerance, msg=name)
    z, _, low, high = found
    assert torch.equal(low, z.float().amin(0))
    assert torch.equal(high, z.float().amax(0))


@pytest.mark.parametrize("pole", POLES)
@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3, 0), (1, 1), (2, 5, 3, 70), (3, 2, 2, 2, 5)])
def test_shapes(triton_device, shape, pole):
    """None, several or all dimensions before d and L; more ladders than one program takes."""
    a = ladders(shape, torch.float32).to(triton_device).requires_grad_()
    z = continued_fraction(a, pole, backend="triton")
    assert z.shape == (*shape[:-2], shape[-1])
    torch.testing.assert_close(z, continued_fraction(a, pole, backend="torch"), rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(z.sum(), a)
    assert grad.shape == a.shape


def test_non_contiguous(triton_device):
    a = ladders((7, 5, 3), torch.float32).to(triton_device).transpose(0, 2).requires_grad_()
    z = continued_fraction(a, backend="triton")
    torch.testing.assert_close(z, continued_fraction(a, backend="torch"))
    upstream = torch.rand_like(z[:1]).expand_as(z)
    found, expected = (
        torch.autograd.grad(continued_fraction(a, backend=backend), a, upstream)[0]
        for backend in ("triton", "torch")
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pole", POLES)
def test_nan_stays_and_is_not_in_the_range(triton_device, pole):
    for place in range(3):
        a = torch.ones(4, 3, 2)
        a[1, place, 0] = float("nan")
        a = a.to(triton_device).requires_grad_()
        z, low, high = continued_fraction_and_range(a, pole, EPS, 0.1, "triton")
        (grad,) = torch.autograd.grad(z.sum(), a)
        assert z.isnan().nonzero().tolist() == [[1, 0]]
        assert grad[1, :, 0].isnan().any()
        assert grad.isnan().sum() == grad[1, :, 0].isnan().sum()
        assert low.isfinite().all()
        assert torch.equal(low, high)


def test_range_of_nothing_finite_and_of_infinity(triton_device):
    a = torch.ones(5, 1, 3, device=triton_device)
    a[:, 0, 0] = float("nan")
    a[:4, 0, 1] = float("inf")  # z = 0
    a[4, 0, 1] = -4.0
    _, low, high = continued_fraction_and_range(a, eps=1e-30, backend="triton")
    assert low.tolist() == [float("inf"), -0.25, 1]
    assert high.tolist() == [float("-inf"), 0, 1]
    a[0, 0, 2] = 1e-39  # the reciprocal overflows
    assert not low.requires_grad
    _, _, high = continued_fraction_and_range(a, eps=1e-45, backend="triton")
    assert high.tolist()[2] == 1


def test_softplus_far_out(triton_device):
    a = torch.tensor([-100.0, -30.0, -17.0, -1e-3, 0.0, 20.5, 80.0, 1e30])[:, None, None]
    a = a.to(triton_device).requires_grad_()
    exact = a.detach().cpu().double().requires_grad_()
    found = continued_fraction(a, "positive", floor=1e-6, backend="triton")
    expected = continued_fraction(exact, "positive", floor=1e-6)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=0)
    (grad,) = torch.autograd.grad(found.sum(), a)
    (expected,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(grad.cpu().double(), expected, rtol=1e-5, atol=1e-30)


def test_refuses_float64_and_a_second_derivative(triton_device):
    a = torch.rand(3, 4, device=triton_device, requires_grad=True)
    with pytest.raises(ValueError, match=r"cf_backend=triton .*float64"):
        continued_fraction(a.double(), backend="triton")
    z = continued_fraction(a, backend="triton")
    (grad,) = torch.autograd.grad(z.square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        grad.sum().backward()


def _with_the_hardwares_logarithm(a, floor, errors):
    """softplus(a) + floor in float32, with a logarithm wrong by 2^-22, NVIDIA's bound from 1 to 2."""
    w = (1.0 + torch.exp(-a.abs())).double()
    log = (w.log2() + errors * 2**-22).float() * 0.6931471805599453
    return a.clamp(min=0) + log + floor


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_the_hardwares_logarithm_is_exact_enough_from_the_floor_on(depth):
    """Whatever sign its errors have: z to 1e-5 with a floor of 0.1, but not with a hundredth of it."""
    torch.manual_seed(0)
    a = torch.randn(depth, 20000) * 4 - 2
    errors = torch.randint(0, 2, a.shape) * 2 - 1
    worst = {}
    for floor in (0.1, 0.001):
        found = _with_the_hardwares_logarithm(a, floor, errors)
        found = continued_fraction(found.double(), "clamp", 1e-9)
        expected = continued_fraction(a.double(), "positive", floor=floor)
        worst[floor] = ((found - expected) / expected).abs().max().item()
    assert worst[0.1] < 1e-5 < worst[0.001]


@pytest.mark.parametrize("floor", [0.1, 0.099])
def test_both_logarithms(triton_device, floor):
    a = ladders((40, 3, 7), torch.float32, "positive") * 5
    found = continued_fraction(a.to(triton_device), "positive", floor=floor, backend="triton")
    expected = continued_fraction(a.double(), "positive", floor=floor)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("pole", POLES)
def test_a_layer_and_its_ranges(triton_device, tiny, pole):
    made = {}
    for backend in ("torch", "triton"):
        torch.manual_seed(0)
        config = tiny(cf_backend=backend, cf_eval_clip=True, cf_pole=pole, cf_eps=EPS)
        layer = LadderEnsemble(config, 24, 24, 3, 3)
        for module in layer.modules():
            if hasattr(module, "init_weights"):
                module.init_weights()
        made[backend] = layer.to(triton_device)
    made["triton"].load_state_dict(made["torch"].state_dict())
    x = torch.randn(2, 5, 24, device=triton_device)
    results = []
    for layer in made.values():
        loss = layer(x).square().sum()
        grads = torch.autograd.grad(loss, list(layer.parameters()))
        fraction = layer.fraction
        results.append((loss, *grads, fraction.z_min, fraction.z_max, layer.eval()(3 * x)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_auto_is_triton_on_a_gpu(triton_device):
    if triton_device != "cuda":
        pytest.skip("needs a GPU")
    a = torch.rand(5, 3, 7, device="cuda", requires_grad=True)

    def made_by(node):
        return node.name().lower() + "".join(made_by(one) for one, _ in node.next_functions if one)

    assert "triton" in made_by(continued_fraction(a).grad_fn)
    assert "triton" not in made_by(continued_fraction(a.double()).grad_fn)


def test_compiles_on_a_gpu_and_repeats_itself(triton_device):
    if triton_device != "cuda":
        pytest.skip("needs a GPU")
    torch._dynamo.reset()
    a = ladders((1000, 3, 7), torch.bfloat16).cuda().requires_grad_()
    compiled = torch.compile(continued_fraction_and_range, fullgraph=True)
    for _ in range(2):
        outputs, expected = compiled(a), continued_fraction_and_range(a)
        assert all(map(torch.equal, outputs, expected))
        grads = [torch.autograd.grad(out[0].sum(), a)[0] for out in (outputs, expected)]
        assert torch.equal(*grads)
