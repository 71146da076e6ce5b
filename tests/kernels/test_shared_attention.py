"""Shared attention in strips, in Triton and in PyTorch's own, against the oracle in float64."""

import functools

import pytest
import torch

from kernels import shared_attention as module
from kernels.sdpa import attention_by_position, fits
from kernels.shared_attention import shared_attention, shared_attention_naive

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
# batch, heads, tokens, rank, width
SHAPES = [(2, 1, 1, 1, 1), (2, 3, 17, 7, 24), (1, 2, 130, 7, 40), (2, 1, 130, 17, 33), (1, 1, 67, 3, 300)]


def tensors(shape, dtypes, device="cpu", spare=5):
    """y, F with `spare` columns too many, and v as a layer has it: a view of [B, T, H P]."""
    torch.manual_seed(0)
    batch, heads, length, rank, width = shape
    y = torch.randn(batch, length, heads, rank).to(device, dtypes[0]).transpose(1, 2)
    F = torch.randn(heads, rank, length + spare).to(device, dtypes[1])
    v = torch.randn(batch, length, heads, width).to(device, dtypes[2]).transpose(1, 2)
    return [x.requires_grad_() for x in (y, F, v)]


def result_and_gradients(function, inputs, upstream):
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out))]


def with_keys(function, y, F, v, keys, **options):
    return function(y, F, v, keys=keys, **options)


def with_keys_by_distance(y, F, v, keys):
    return shared_attention(y, F, v, relative=True, keys=keys)


def check(function, inputs, strict, tolerance, relative=False, oracle=None):
    """Every result within the tolerance of the largest number in it."""
    exact = [x.detach().cpu().double().requires_grad_() for x in inputs]
    upstream = torch.randn(inputs[2].shape).to(inputs[2].dtype)
    found = result_and_gradients(function, inputs, upstream)
    oracle = oracle or functools.partial(shared_attention_naive, strict=strict, relative=relative)
    expected = result_and_gradients(oracle, exact, upstream)
    types = [inputs[2].dtype, *(x.dtype for x in inputs)]
    names = ("out", "y", "F", "v", "keys")[: len(types)]
    for name, f, e, dtype in zip(names, found, expected, types, strict=True):
        assert f.dtype == dtype
        atol = tolerance * max(e.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            f.cpu().double(), e, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
class TestAgainstTheOracle:
    def test_in_strips(self, any_device, shape, dtype, strict):
        inputs = tensors(shape, [dtype] * 3, any_device)
        check(lambda *x: shared_attention(*x, strict, "torch"), inputs, strict, TOLERANCES[dtype])

    def test_relative_in_strips(self, any_device, shape, dtype, strict):
        inputs = tensors(shape, (torch.float32, torch.float32, dtype), any_device)
        relative = functools.partial(shared_attention, strict=strict, relative=True)
        check(relative, inputs, strict, TOLERANCES[dtype], relative=True)

    def test_with_keys_in_strips(self, any_device, shape, dtype, strict):
        inputs = tensors(shape, (torch.float32, torch.float32, dtype), any_device)
        inputs.append(torch.randn_like(inputs[0]).requires_grad_())
        for relative in (False, True):
            found = functools.partial(with_keys, shared_attention, strict=strict, relative=relative)
            oracle = functools.partial(with_keys, shared_attention_naive, strict=strict, relative=relative)
            check(found, inputs, strict, TOLERANCES[dtype], oracle=oracle)

    def test_mixed_types_in_strips(self, any_device, shape, dtype, strict):
        """As under autocast: y and F float32, v as the linear map gives it."""
        inputs = tensors(shape, (torch.float32, torch.float32, dtype), any_device)
        check(lambda *x: shared_attention(*x, strict, "torch"), inputs, strict, TOLERANCES[dtype])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_in_sdpa(any_device, shape, dtype, keys, strict):
    """With scores so large that y and F rounded to bfloat16 would be wrong."""
    inputs = tensors(shape, (torch.float32, torch.float32, dtype), any_device, spare=0)
    assert fits(inputs[0], inputs[2])
    with torch.no_grad():
        inputs[0].mul_(20 / shape[3] ** 0.5)
    found = functools.partial(attention_by_position, strict=strict)
    oracle = functools.partial(shared_attention_naive, strict=strict)
    if keys:
        inputs.append(torch.randn_like(inputs[0]).requires_grad_())
        found, oracle = functools.partial(with_keys, found), functools.partial(with_keys, oracle)
    check(found, inputs, strict, 2 * TOLERANCES[torch.bfloat16], oracle=oracle)


def test_float64_is_float64():
    for strict in (False, True):
        inputs = tensors((2, 2, 13, 3, 5), [torch.float64] * 3)
        check(lambda *x, s=strict: shared_attention(*x, s), inputs, strict, 1e-13)
        relative = functools.partial(shared_attention, strict=strict, relative=True)
        check(relative, inputs, strict, 1e-13, relative=True)
        inputs = tensors((2, 2, 5, 2, 3), [torch.float64] * 3, spare=2)  # each number is moved by itself
        assert torch.autograd.gradcheck(lambda *x, s=strict: shared_attention(*x, s), inputs)
        assert torch.autograd.gradcheck(relative, inputs)
        keys = torch.randn_like(inputs[0]).requires_grad_()
        for relative in (False, True):
            options = {"strict": strict, "relative": relative}
            found = functools.partial(with_keys, shared_attention, **options)
            assert torch.autograd.gradcheck(found, [*inputs, keys])


@pytest.mark.parametrize("relative", [False, True])
def test_the_oracle_token_by_token(relative):
    y, F, v = (x.detach() for x in tensors((2, 2, 13, 3, 5), [torch.float64] * 3))
    for strict in (False, True):
        found = shared_attention_naive(y, F, v, strict, relative)
        for t in range(13):
            end = t + 1 - strict
            columns = [F[..., t - j] if relative else F[..., j] for j in range(end)]
            columns = torch.stack(columns, -1) if columns else F[..., :0]
            scores = torch.einsum("bhr,hrj->bhj", y[:, :, t], columns)
            weights = scores.softmax(-1)
            expected = torch.einsum("bhj,bhjp->bhp", weights, v[:, :, :end]) if end else 0 * v[:, :, 0]
            torch.testing.assert_close(found[:, :, t], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_the_scores(dtype):
    inputs = tensors((1, 1, 130, 7, 16), [torch.float32] * 3)
    plain = result_and_gradients(shared_attention, inputs, torch.ones(1, 1, 130, 16))
    with torch.autocast("cpu", dtype):
        rounded = result_and_gradients(shared_attention, inputs, torch.ones(1, 1, 130, 16))
    assert all(map(torch.equal, plain, rounded))


@pytest.mark.parametrize("relative", [False, True])
def test_the_future_has_no_influence(relative):
    """Not even to the bit, nor a NaN in another strip."""
    y, F, v = (x.detach() for x in tensors((1, 2, 300, 7, 16), [torch.float32] * 3))
    before = shared_attention(y, F, v, relative=relative)
    v[:, :, 256:] = float("nan")
    F[..., 256:] = 9.0
    y[:, :, 256:] = -1.0
    after = shared_attention(y, F, v, relative=relative)
    assert torch.equal(before[:, :, :256], after[:, :, :256])
    assert after[:, :, 256:].isnan().all()


@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(
    "options", [{}, {"strict": True}, {"relative": True}, {"relative": True, "strict": True}]
)
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("sequences", [1, 2, 3, 4])  # of six; four leave a remainder
def test_pieces_compute_what_all_sequences_at_once_do(monkeypatch, sequences, keys, options, dtype, exact):
    length = 130
    inputs = tensors((2, 3, length, 5, 7), (torch.float32, torch.float32, dtype))
    if keys:
        inputs.append(torch.randn_like(inputs[0]).requires_grad_())
    function = functools.partial(with_keys, shared_attention) if keys else shared_attention
    function = functools.partial(function, **options)
    upstream = torch.randn(inputs[2].shape).to(dtype)
    whole = result_and_gradients(function, inputs, upstream)
    monkeypatch.setattr(module, "TILE", -(-sequences * module.STRIP * length // torch.get_num_threads()))
    count = []
    pieces = module._pieces
    monkeypatch.setattr(module, "_pieces", lambda *x: (count.append(len(p[0])) or p for p in pieces(*x)))
    for found, expected in zip(result_and_gradients(function, inputs, upstream), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=exact * expected.abs().max().item())
    assert max(count) == sequences
    assert len(count) == 2 * -(-6 // sequences)


@pytest.mark.parametrize("relative", [False, True])
def test_no_scores_of_all_tokens_are_kept(relative):
    """The largest tensor that the passes over 1024 tokens allocate, in bytes."""
    inputs = tensors((1, 1, 1024, 7, 16), [torch.float32] * 3)
    with torch.profiler.profile(profile_memory=True) as profile:
        shared_attention(*inputs, relative=relative).sum().backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest <= 2 * 4 * module.STRIP * 1024


def test_refuses_what_does_not_fit():
    y, F, v = tensors((2, 3, 20, 7, 16), [torch.float32] * 3)
    for wrong in ((y, F[..., :19], v), (y, F[:2], v), (y[..., :6], F, v), (y[:1], F, v), (y[0], F, v)):
        with pytest.raises(ValueError, match=r"shared attention needs y \[B, H, T, R\]"):
            shared_attention(*wrong)
    with pytest.raises(ValueError, match="keys must have y's shape"):
        shared_attention(y, F, v, keys=y[:1])
    for options in ({}, {"relative": True}, {"keys": y}):
        with pytest.raises(ValueError, match=r"cf_backend.*'cuda'"):
            shared_attention(y, F, v, backend="cuda", **options)
