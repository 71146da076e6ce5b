"""Attention with rows as wide as the model, against the oracle that keeps every score."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kernels import wide_attention as module
from kernels.shared_attention import shared_attention_naive
from kernels.wide_attention import fused, wide_attention

# B, H, T, R, P: lengths that no strip divides, a single token, rows wider and narrower than values
SHAPES = [(2, 1, 37, 19, 8), (3, 2, 1, 5, 4), (1, 3, 130, 33, 16), (2, 1, 300, 135, 128), (0, 1, 5, 3, 2)]
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}
shapes = pytest.mark.parametrize("shape", SHAPES)
strictness = pytest.mark.parametrize("strict", [False, True])


def inputs(shape, dtype=torch.float64, spare=3, biased=False):
    """y, F, v and a bias; all but v in at least float32, as the layer gives them."""
    torch.manual_seed(0)
    B, H, T, R, P = shape
    wide = torch.promote_types(dtype, torch.float32)
    y, F = torch.randn(B, H, T, R, dtype=wide), torch.randn(H, R, T + spare, dtype=wide) / R**0.5
    tensors = (y, F, torch.randn(B, H, T, P).to(dtype), torch.randn(H, T + spare, dtype=wide))
    return [x.requires_grad_() for x in tensors[: 3 + biased]]


def naive(y, F, v, strict, bias=None):
    """The bias is one more row of F, with ones in y."""
    if bias is not None:
        y, F = torch.cat((y, torch.ones_like(y[..., :1])), -1), torch.cat((F, bias[:, None]), 1)
    return shared_attention_naive(y, F, v, strict)


def with_gradients(attention, tensors, strict):
    out = attention(*tensors[:3], strict, *tensors[3:])
    torch.manual_seed(1)
    return out, *torch.autograd.grad(out, tensors, torch.randn(out.shape).to(out))


@shapes
@strictness
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_oracle(shape, strict, biased, dtype):
    tensors = inputs(shape, dtype, biased=biased)
    found = with_gradients(wide_attention, tensors, strict)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    for one, other in zip(found, with_gradients(naive, exact, strict), strict=True):
        tolerance = DTYPES[dtype] * max(1.0, other.abs().amax().item() if other.numel() else 0.0)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)
    assert found[0].dtype == dtype


@shapes
@strictness
def test_fused_attention_equals_it(shape, strict):
    y, F, v, bias = (x.detach() for x in inputs(shape, biased=True, spare=0))
    for more in ((), (bias,)):
        expected = naive(y, F, v, strict, *more)
        torch.testing.assert_close(fused(y, F, v, strict, *more), expected, rtol=0, atol=1e-12)


@strictness
def test_in_parts_as_on_a_gpu(monkeypatch, any_device, strict):
    """With scores so large that rounded y and F would miss the tolerance."""
    monkeypatch.setattr(module, "_in_parts", lambda v: True)
    tensors = [x.detach() for x in inputs((2, 2, 130, 301, 16), torch.bfloat16, biased=True)]
    tensors[0].mul_(20)
    exact = [x.double().requires_grad_() for x in tensors]
    tensors = [x.to(any_device).requires_grad_() for x in tensors]
    found = with_gradients(wide_attention, tensors, strict)
    for one, other in zip(found, with_gradients(naive, exact, strict), strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=0, atol=0.02 * other.abs().amax().item())


@strictness
@pytest.mark.parametrize("biased", [False, True])
def test_what_the_compiler_sees_on_a_gpu(strict, biased):
    for shape in ((2, 1, 600, 19, 8), (1, 3, 37, 16, 4), (1, 1, 1, 3, 2)):
        tensors = inputs(shape, torch.float32, spare=0, biased=biased)

        def traced(y, F, v, strict, bias=None):
            return module.traced(y * 1.0, F, v, bias, strict)

        expected = with_gradients(wide_attention, tensors, strict)
        torch.compiler.reset()  # it compiles one function for few shapes only
        compiled = torch.compile(traced, fullgraph=True, dynamic=False, backend="aot_eager")
        for function in (traced, compiled):
            for one, other in zip(with_gradients(function, tensors, strict), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@strictness
def test_autocast_rounds_no_scores(strict):
    tensors = inputs((2, 1, 37, 19, 8), torch.float32)
    plain = with_gradients(wide_attention, tensors, strict)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(wide_attention, tensors, strict)
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


@strictness
def test_the_future_has_no_influence_to_the_bit(strict):
    y, F, v = (x.detach() for x in inputs((2, 2, 150, 9, 8), torch.float32))
    before = wide_attention(y, F, v, strict)
    for token in (0, 64, 149):
        changed = [x.clone() for x in (y, v)]
        for x in changed:
            x[:, :, token] += 1e3
        after = wide_attention(changed[0], F, changed[1], strict)
        assert torch.equal(after[:, :, :token], before[:, :, :token])
        if strict:  # its own value is not among those that it sees, but its scores decide
            kept = wide_attention(y, F, changed[1], strict)
            assert torch.equal(kept[:, :, token], before[:, :, token])


def test_nothing_of_the_size_of_the_scores_is_kept():
    length, kept = 4096, []

    def pack(x):
        kept.append(x.numel())
        return x

    tensors = inputs((1, 1, length, 20, 16), torch.float32, spare=0, biased=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = wide_attention(*tensors[:3], True, tensors[3])
    assert sum(kept) <= 3 * 20 * length
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), tensors))


@pytest.mark.parametrize("biased", [False, True])
def test_activation_checkpointing(biased):
    tensors = inputs((2, 1, 37, 19, 8), torch.float32, biased=biased)

    def recomputed(*arguments):
        return checkpoint(wide_attention, *arguments, use_reentrant=False)

    expected = with_gradients(wide_attention, tensors, True)
    for one, other in zip(with_gradients(recomputed, tensors, True), expected, strict=True):
        assert torch.equal(one, other)


def test_one_graph():
    tensors = inputs((2, 1, 37, 19, 8), torch.float32, biased=True)
    expected = with_gradients(wide_attention, tensors, True)
    compiled = torch.compile(wide_attention, fullgraph=True, backend="aot_eager")
    for one, other in zip(with_gradients(compiled, tensors, True), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(2, 4, 5), (1, 4, 4), (1, 3, 5)])
def test_refuses_what_does_not_fit(shape):
    with pytest.raises(ValueError, match="wide attention needs y"):
        wide_attention(torch.zeros(2, 1, 5, 4), torch.zeros(shape), torch.zeros(2, 1, 5, 4))


def test_the_gradient_of_the_values_is_rounded_once(monkeypatch):
    """To half precision, and not at each of 64 strips."""
    monkeypatch.setitem(module.ROWS, "cpu", (16, 16))
    torch.manual_seed(0)
    y, F = torch.randn(1, 1, 1024, 4), 0.02 * torch.randn(1, 4, 1024)
    v, upstream = (torch.randn(1, 1, 1024, 8).bfloat16() for _ in range(2))
    v.requires_grad_()
    wide = v.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(wide_attention(y, F, v), v, upstream)
    (exact,) = torch.autograd.grad(wide_attention(y.double(), F.double(), wide), wide, upstream.double())
    assert (found.double() - exact).norm() < 4e-3 * exact.norm()
