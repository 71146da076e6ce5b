"""The Triton kernels of shared attention against the oracle in float64. See conftest.py for where."""

import functools

import pytest
import torch

from kernels import shared_attention_triton as module
from kernels.shared_attention import shared_attention, shared_attention_naive
from layers import ATTENTION
from tests.kernels.test_shared_attention import (
    TOLERANCES,
    check,
    result_and_gradients,
    tensors,
    with_keys,
    with_keys_by_distance,
)

BY_POSITION, WITH_KEYS, BY_DISTANCE, BY_BOTH = (False, False), (False, True), (True, False), (True, True)
FORMS = {"position": BY_POSITION, "keys": WITH_KEYS, "distance": BY_DISTANCE, "both": BY_BOTH}
forms = pytest.mark.parametrize(("relative", "keys"), FORMS.values(), ids=FORMS)
# these have every part of the kernels: keys are added to F, so they take the columns by position
most_parts = pytest.mark.parametrize(("relative", "keys"), [WITH_KEYS, BY_BOTH], ids=["keys", "both"])
strictness = pytest.mark.parametrize("strict", [False, True])


def against_the_oracle(device, shape, dtype, strict, relative, keys):
    """y, F and keys are float32, as under autocast; v and the output are of dtype."""
    inputs = tensors(shape, (torch.float32, torch.float32, dtype), device)
    if (rank := shape[3]) > 7:  # scores as large as those of rank 7
        with torch.no_grad():
            inputs[0].mul_((7 / rank) ** 0.5)
    found = functools.partial(shared_attention, backend="triton", strict=strict, relative=relative)
    oracle = functools.partial(shared_attention_naive, strict=strict, relative=relative)
    if keys:
        inputs.append(torch.randn_like(inputs[0]).requires_grad_())
        found, oracle = functools.partial(with_keys, found), functools.partial(with_keys, oracle)
    # sharper with keys, so that the output's rounding is felt in dP - delta
    check(found, inputs, strict, TOLERANCES[dtype] * (1 + keys), oracle=oracle)


@forms
@strictness
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token(triton_device, dtype, strict, relative, keys):
    """Its output is its own value, or 0 with strict, whatever the scores are."""
    inputs = tensors((2, 1, 1, 3, 32), (torch.float32, torch.float32, dtype), triton_device)
    inputs.append(torch.randn_like(inputs[0]).requires_grad_())
    y, F, v, k = inputs
    out = shared_attention(y, F, v, strict, "triton", relative, k if keys else None)
    grads = torch.autograd.grad(out, inputs[: 3 + keys], torch.ones_like(out))
    assert torch.equal(out, torch.zeros_like(v) if strict else v)
    assert torch.equal(grads[2], torch.full_like(v, 0.0 if strict else 1.0))
    for grad in (*grads[:2], *grads[3:]):
        assert grad.abs().max() < (1e-5 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize(
    ("dtype", "relative", "keys"),
    [
        *((dtype, *form) for form in FORMS.values() for dtype in (torch.float32, torch.bfloat16)),
        (torch.float16, *BY_BOTH),
    ],
)
def test_three_tiles_and_a_bit(triton_device, dtype, relative, keys):
    """Two sequences or two heads; the programs of each compute alike."""
    length = 67 if dtype == torch.float32 else 130  # tiles of float32 are half as large
    strict, outer = keys != relative, (2, 1) if dtype == torch.float32 else (1, 2)
    against_the_oracle(triton_device, (*outer, length, 7, 40), dtype, strict, relative, keys)


@most_parts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 9, 32])
def test_ranks(triton_device, rank, dtype, relative, keys):
    against_the_oracle(triton_device, (1, 1, 40, rank, 33), dtype, rank == 9, relative, keys)


@forms
def test_values_as_wide_as_a_model(triton_device, relative, keys):
    """The interpreter takes three chunks and a bit of them, or two where a chunk is 128."""
    half, full = (1000, 200) if triton_device == "cuda" else (264, 100)
    against_the_oracle(triton_device, (1, 1, 40, 7, half), torch.bfloat16, True, relative, keys)
    against_the_oracle(triton_device, (1, 1, 35, 7, full), torch.float32, False, relative, keys)


class Launched:
    """A kernel that keeps its grids."""

    def __init__(self, kernel):
        self.kernel, self.grids = kernel, []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self.kernel[grid]


@pytest.mark.parametrize(
    ("relative", "keys", "width"), [(*BY_BOTH, 24), (*WITH_KEYS, 40)], ids=["one chunk", "two chunks"]
)
def test_heads_in_slices(triton_device, monkeypatch, relative, keys, width):
    """Two sequences of two heads, three at a time: the same gradients to the bit."""
    inputs = tensors((2, 2, 40, 7, width), [torch.float32] * 3, triton_device)
    inputs.append(torch.randn_like(inputs[0]).requires_grad_())
    out = shared_attention(*inputs[:3], False, "triton", relative, inputs[3])
    upstream = torch.randn_like(out)
    gradients = []
    for limit, grids in ((module.SLICE, [(8,)]), (3 * 3 * 32 * 32 * 4, [(6,), (2,)])):
        launched = Launched(module.tiles.rows_kernel)
        with monkeypatch.context() as patch:
            patch.setattr(module, "SLICE", limit)
            patch.setattr(module.tiles, "rows_kernel", launched)
            gradients.append(torch.autograd.grad(out, inputs, upstream, retain_graph=True))
        assert launched.grids == grids
    for whole, sliced in zip(*gradients, strict=True):
        assert torch.equal(whole, sliced)


@most_parts
def test_in_the_tiles_of_other_gpus(triton_device, monkeypatch, relative, keys):
    chosen = module.launches
    monkeypatch.setattr(module, "launches", lambda half, hopper, *more: chosen(half, False, *more))
    against_the_oracle(triton_device, (1, 1, 70, 7, 72), torch.bfloat16, relative, relative, keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_inputs_in_half_precision(triton_device, dtype):
    inputs = tensors((2, 3, 17, 7, 24), [dtype] * 3, triton_device)
    check(lambda *x: shared_attention(*x, True, "triton"), inputs, True, TOLERANCES[dtype])


@strictness
def test_large_scores_do_not_overflow(triton_device, strict):
    inputs = tensors((1, 1, 70, 3, 16), [torch.float32] * 3, triton_device)
    with torch.no_grad():
        inputs[0].mul_(1e3)
    check(lambda *x: shared_attention(*x, strict, "triton"), inputs, strict, 1e-3)


@forms
def test_scores_are_nearly_float32_for_values_in_bfloat16(triton_device, relative, keys):
    """The log-sum-exp shows them as they are: scores of rounded y and F would be wrong by 0.1."""
    y, F, v = (x.detach() for x in tensors((1, 2, 70, 7, 16), [torch.float32] * 3, triton_device, spare=0))
    y, k = y * 10, torch.randn_like(y)
    operands = module._operands(y, F, v.bfloat16(), k if keys else None, False, relative)
    _, found = module._forward(*operands, v.bfloat16(), 7, False)
    wide = y.double(), F.double(), torch.eye(70, device=v.device).double().expand(1, 2, 70, 70)
    weights = shared_attention_naive(*wide, relative=relative, keys=k.double() if keys else None)
    # log A_tt = S_tt - log-sum-exp
    own = (
        y.double() @ F[..., :1].double() if relative else (y.double() * F.mT.double()).sum(-1, keepdim=True)
    )
    own = own[..., 0] + (y.double() * k.double()).sum(-1) * keys
    expected = own - weights.diagonal(dim1=-2, dim2=-1).log()
    assert weights.diagonal(dim1=-2, dim2=-1).min() > 0
    torch.testing.assert_close(found.double() / module.LOG2E, expected.flatten(0, 1), rtol=0, atol=2e-3)


@forms
@pytest.mark.parametrize("token", [64, 66])
def test_the_future_has_no_influence(triton_device, token, relative, keys):
    """Not even to the bit, at the edge of a tile and within one."""
    y, F, v = (x.detach() for x in tensors((1, 2, 70, 7, 40), [torch.float32] * 3, triton_device))
    v, k = v.bfloat16(), torch.randn_like(y) if keys else None
    function = functools.partial(shared_attention, backend="triton", relative=relative)
    before = function(y, F, v, keys=k)
    y[:, :, token:] = -1.0
    F[..., token:] = 9.0
    v[:, :, token:] = 5.0
    if keys:
        k[:, :, token:] = 7.0
    after = function(y, F, v, keys=k)
    assert torch.equal(before[:, :, :token], after[:, :, :token])
    assert not torch.equal(before[:, :, token:], after[:, :, token:])


@forms
def test_the_compiler_knows_the_results(triton_device, relative, keys):
    """Their shapes, types and layouts, without computing them; half of the forms are strict."""
    strict = keys != relative
    y, F, v = (x.detach() for x in tensors((1, 2, 17, 3, 16), [torch.float32] * 3, triton_device, spare=0))
    operands = module._operands(y, F, v, y if keys else None, strict, relative)
    out, lse = module._forward(*operands, v, 3, strict)
    checks = {"test_utils": ("test_schema", "test_faketensor")}
    torch.library.opcheck(module._forward, (*operands, v, 3, strict), **checks)
    torch.library.opcheck(module._backward, (*operands, v, 3, strict, v, out, lse), **checks)


def test_a_rank_beyond_the_kernels(triton_device):
    inputs = tensors((1, 1, 5, 33, 3), [torch.float32] * 3, triton_device)
    check(shared_attention, inputs, False, 1e-5)
    with pytest.raises(ValueError, match=r"cf_backend=triton .* 32 .* 33"):
        shared_attention(*inputs, backend="triton")


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "cattn_m"},
        {"attention": "cattn_m", "cattn_strict": True},
        {"attention": "cattn_relative", "cattn_content": True, "cattn_proj": True},
        {"attention": "cattn_relative", "cattn_value_heads": 1},
    ],
    ids=str,
)
def test_a_layer(triton_device, tiny, options):
    results = []
    x = torch.randn(2, 17, 24, device=triton_device)
    for backend in ("torch", "triton"):
        torch.manual_seed(0)
        config = tiny(cf_backend=backend, cattn_heads=3, **options)
        layer = ATTENTION[config.attention](config).to(triton_device)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.2)
        out = layer(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_on_a_gpu_compiled_and_repeated(triton_device, dtype):
    if triton_device != "cuda":
        pytest.skip("needs a GPU")
    torch._dynamo.reset()
    inputs = tensors((2, 2, 1000, 7, 400), (torch.float32, torch.float32, dtype), "cuda")
    inputs.append(torch.randn_like(inputs[0]).requires_grad_())
    upstream = torch.randn(inputs[2].shape)
    for relative, found in ((False, shared_attention), (True, with_keys_by_distance)):
        given, compiled = inputs[: 3 + relative], torch.compile(found, fullgraph=True)
        runs = [result_and_gradients(f, given, upstream) for f in (found, found, compiled)]
        for one, two, three in zip(*runs, strict=True):
            assert torch.equal(one, two)
            torch.testing.assert_close(one, three)
        oracle = functools.partial(with_keys, shared_attention_naive, relative=True) if relative else None
        check(found, given, False, TOLERANCES[dtype] * (1 + relative), oracle=oracle)
