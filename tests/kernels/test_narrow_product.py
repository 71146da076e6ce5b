"""The sum over few columns against a linear map."""

import pytest
import torch
from torch.nn.functional import linear

from kernels import narrow_product as module
from kernels.narrow_product import narrow_product
from layers.ladder import LadderEnsemble
from models.architecture import ModelConfig

SHAPES = [((2, 37), 7, 19), ((1, 1), 1, 3), ((5,), 8, 16), ((0, 3), 2, 4)]


def with_gradients(function, tensors, **autocast):
    tensors = [x.clone().requires_grad_() for x in tensors]
    with torch.autocast("cpu", torch.bfloat16, **autocast):
        out = function(*tensors)
    torch.manual_seed(1)
    return out, *torch.autograd.grad(out, tensors, torch.randn(out.shape, dtype=out.dtype))


@pytest.mark.parametrize(("rows", "ladders", "width"), SHAPES)
@pytest.mark.parametrize("half", [False, True])
def test_equals_a_linear_map(rows, ladders, width, half):
    """Under autocast the gradients have the same factors, and the result has fewer roundings."""
    torch.manual_seed(0)
    tensors = torch.randn(*rows, ladders), torch.randn(width, ladders)
    found = with_gradients(narrow_product, tensors, enabled=half)
    expected = with_gradients(linear, tensors, enabled=half)
    for one, other in zip(found, expected, strict=True):
        atol = (2e-2 if half else 1e-5) * max(1.0, other.abs().amax().item() if other.numel() else 0.0)
        torch.testing.assert_close(one, other, rtol=0, atol=atol)
    exact = with_gradients(linear, [x.double() for x in tensors], enabled=False)[0]
    if half and exact.numel():
        assert (found[0] - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("half", [False, True])
def test_ladders_on_a_gpu(monkeypatch, half):
    """With the sum that a GPU compiles, an ensemble and all its gradients are those of the linear map."""
    torch.manual_seed(0)
    made = LadderEnsemble(ModelConfig(), 8, 5, 3, 3)
    made.init_weights()
    x = torch.randn(2, 7, 8, requires_grad=True)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = made(x)
        return out, *torch.autograd.grad(out.float().square().sum(), (x, *made.parameters()))

    expected = run()
    monkeypatch.setattr(module, "fuses", lambda z: True)
    for one, other in zip(run(), expected, strict=True):
        atol = (2e-2 if half else 1e-5) * max(1e-3, other.abs().amax().item())
        torch.testing.assert_close(one, other, rtol=0, atol=atol)
