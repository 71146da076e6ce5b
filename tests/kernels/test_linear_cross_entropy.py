import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from kernels.linear_cross_entropy import (
    IGNORED,
    _compiled,
    _eager,
    adds_to_wider,
    linear_cross_entropy,
    linear_cross_entropy_naive,
)
from tests.largest_tensor import Largest


def example(rows, width, vocabulary, columns, dtype=torch.float32, ignored=0):
    torch.manual_seed(rows)
    h = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, columns, (rows,))
    targets[torch.randperm(rows)[:ignored]] = IGNORED
    return h, weight, targets


def loss_and_gradients(function, h, weight, *arguments):
    loss = function(h, weight, *arguments)
    return loss, *torch.autograd.grad(3 * loss, (h, weight))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
@pytest.mark.parametrize("ignored", [0, 5])
@pytest.mark.parametrize(
    ("rows", "width", "vocabulary", "columns"),
    [(1, 1, 2, 2), (17, 5, 33, 33), (130, 7, 64, 50), (16, 8, 9, 3)],
)
def test_equals_the_oracle(rows, width, vocabulary, columns, ignored, chunk_rows, smoothing):
    h, weight, targets = example(rows, width, vocabulary, columns, torch.float64, min(ignored, rows - 1))
    expected = loss_and_gradients(linear_cross_entropy_naive, h, weight, targets, columns, smoothing)
    theirs = F.cross_entropy(
        F.linear(h, weight)[:, :columns], targets, ignore_index=IGNORED, label_smoothing=smoothing
    )
    torch.testing.assert_close(expected[0], theirs, rtol=1e-12, atol=1e-14)
    found = loss_and_gradients(
        linear_cross_entropy, h, weight, targets, columns, 4 * vocabulary * chunk_rows, smoothing
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert not found[2][columns:].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequences_and_types(dtype, smoothing):
    h, weight, targets = example(34, 16, 70, 65, dtype)
    three = loss_and_gradients(
        linear_cross_entropy, h.view(2, 17, 16), weight, targets.view(2, 17), 65, 999, smoothing
    )
    expected = loss_and_gradients(
        linear_cross_entropy_naive,
        *(t.detach().double().requires_grad_() for t in (h, weight)),
        targets,
        65,
        smoothing,
    )
    assert [t.dtype for t in three] == [torch.float32, dtype, dtype]
    assert three[1].shape == (2, 17, 16)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for a, b in zip(three, expected, strict=True):
        torch.testing.assert_close(
            a.double().reshape(b.shape), b, rtol=tolerance, atol=tolerance * b.abs().max().item()
        )


@pytest.mark.parametrize("pick", ["_eager", "_compiled"])
@pytest.mark.parametrize(
    ("dtype", "exact"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_softcap_bends_the_logits(pick, dtype, exact, smoothing, monkeypatch):
    """Logits of the size of the cap, in several chunks and with padding columns."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: pick == "_compiled")
    h, weight, targets = example(17, 9, 70, 65, dtype, ignored=3)
    found = loss_and_gradients(linear_cross_entropy, h, weight, targets, 65, 999, smoothing, 2.5)
    wide = [t.detach().double().requires_grad_() for t in (h, weight)]
    expected = loss_and_gradients(linear_cross_entropy_naive, *wide, targets, 65, smoothing, 2.5)
    bent = 2.5 * (F.linear(*wide) / 2.5).tanh()
    by_hand = F.cross_entropy(bent[:, :65], targets, label_smoothing=smoothing)
    torch.testing.assert_close(expected[0], by_hand, rtol=1e-12, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=exact, atol=exact * b.abs().max().item())
    assert not found[2][65:].any()


@pytest.mark.parametrize("pick", [_eager, _compiled])
def test_label_smoothing_by_hand(pick):
    """s = (1, 2, -1, 0.5), target 1, e = 0.1; a padding column changes nothing."""
    logits, target = torch.tensor([[1.0, 2.0, -1.0, 0.5, 9.0]]), torch.tensor([1])
    nats, gradient = pick(logits, target, torch.tensor([True]), 4, 0.1)
    torch.testing.assert_close(nats, torch.tensor([0.632682]), rtol=0, atol=1e-6)
    expected = torch.tensor([[0.199208, -0.315540, 0.005343, 0.110989, 0.0]])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


def test_products_follow_autocast_and_sums_do_not():
    h, weight, targets = example(300, 32, 70, 70)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = loss_and_gradients(linear_cross_entropy, h, weight, targets, None, 4 * 70 * 7)
    exact = loss_and_gradients(linear_cross_entropy_naive, h, weight, targets)
    assert [t.dtype for t in rounded] == [torch.float32] * 3
    assert not torch.equal(rounded[0], exact[0])
    for a, b in zip(rounded, exact, strict=True):
        assert (a - b).norm() < 0.01 * b.norm()


def test_small_gradients_survive_float16():
    """Of 4,096 tokens each has a probability of about 1e-4, whose gradient / 4,096 float16 knows as 0."""
    torch.manual_seed(0)
    h, targets = torch.randn(4096, 4).half().requires_grad_(), torch.zeros(4096, dtype=torch.int64)
    weight = (0.01 * torch.randn(8192, 4)).half().requires_grad_()
    grad = torch.autograd.grad(linear_cross_entropy(h, weight.float(), targets) * 4096, h)[0]
    wide = h.detach().float().requires_grad_()
    expected = torch.autograd.grad(
        linear_cross_entropy_naive(wide, weight.detach().float(), targets) * 4096, wide
    )[0]
    assert (grad.float() - expected).norm() < 0.01 * expected.norm()


def test_nothing_scored_is_nan_and_no_gradient_is_asked_for():
    h, weight, targets = example(5, 4, 8, 8)
    assert linear_cross_entropy(h, weight, torch.full((5,), IGNORED)).isnan()
    with torch.no_grad():
        torch.testing.assert_close(
            linear_cross_entropy(h, weight, targets), linear_cross_entropy_naive(h, weight, targets)
        )
    for wanted in (0, 1):
        inputs = [t.detach().requires_grad_(i == wanted) for i, t in enumerate((h, weight))]
        loss = linear_cross_entropy(*inputs, targets)
        expected = loss_and_gradients(linear_cross_entropy_naive, h, weight, targets)[1 + wanted] / 3
        torch.testing.assert_close(torch.autograd.grad(loss, inputs[wanted])[0], expected)


def test_not_finite_stays_so():
    h, weight, targets = example(6, 4, 8, 8)
    with torch.no_grad():
        h[2, 1] = math.nan
    loss, grad_h, grad_w = loss_and_gradients(linear_cross_entropy, h, weight, targets)
    assert loss.isnan()
    assert grad_h[2].isnan().all()
    assert grad_w.isnan().all()


@pytest.mark.parametrize("rows", [64, 640])
@pytest.mark.parametrize(("softcap", "together"), [(0.0, 2), (2.5, 3)])
@pytest.mark.parametrize("trains", [True, False])
def test_memory_grows_with_the_chunk_and_not_with_the_tokens(rows, softcap, together, trains):
    """Two of a chunk's matrices live at once, the logits and the softmax, which becomes their gradient."""
    h, weight, targets = example(rows, 4, 1000, 1000)
    with Largest() as largest, torch.set_grad_enabled(trains):
        loss = linear_cross_entropy(h, weight, targets, None, 4 * 1000 * 16, softcap=softcap)
        if trains:
            loss.backward()
    assert largest.size == 16 * 1000
    assert largest.together == together


@pytest.mark.parametrize(
    ("grad", "needed", "products"), [(True, True, 2), (True, False, 1), (False, True, 1)]
)
def test_no_gradient_is_computed_that_nobody_asks_for(grad, needed, products):
    """Under torch.no_grad, as in an evaluation, parameters still say that they need one. The product of the
    weight's gradient is hidden from the counter.
    """
    h, weight, targets = example(17, 4, 30, 30)
    with FlopCounterMode(display=False) as counted, torch.set_grad_enabled(grad):
        linear_cross_entropy(h.requires_grad_(needed), weight.requires_grad_(needed), targets)
    assert counted.get_total_flops() == products * 2 * 17 * 4 * 30


@pytest.mark.parametrize(("kind", "smoothing"), [("eager", 0.0), ("eager", 0.1), ("inductor", 0.1)])
def test_compiles_in_one_graph(kind, smoothing):
    h, weight, targets = example(20, 6, 40, 37)
    compiled = torch.compile(linear_cross_entropy, backend=kind, fullgraph=True, dynamic=False)
    found = loss_and_gradients(compiled, h, weight, targets, 37, 4 * 40 * 8, smoothing)
    expected = loss_and_gradients(linear_cross_entropy_naive, h, weight, targets, 37, smoothing)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_added_in_float32(dtype):
    a, b, total = torch.randn(7, 5).to(dtype), torch.randn(7, 3).to(dtype), torch.randn(5, 3)
    expected = total + (a.T @ b).float()
    torch.ops.cofrgenet.add_product(total, a, b)
    torch.testing.assert_close(total, expected)


def test_a_device_that_cannot_add_to_a_wider_matrix_is_found_out():
    cpu = torch.device("cpu")
    try:
        one, total = torch.ones(16, 16, dtype=torch.bfloat16), torch.ones(16, 16)
        torch.addmm(total, one, one, out_dtype=torch.float32, out=total)
        able = True
    except NotImplementedError:
        able = False
    assert adds_to_wider(cpu, torch.bfloat16) == able


def test_differentiable_once():
    h, weight, targets = example(4, 3, 5, 5)
    loss = linear_cross_entropy(h, weight, targets).square()
    (grad,) = torch.autograd.grad(loss, h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
