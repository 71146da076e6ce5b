import pytest
import torch
import torch.nn.functional as F

from kernels.embedding import embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (3, 17), (2, 130)])
def test_equals_the_lookup_and_its_gradient(dtype, shape):
    torch.manual_seed(0)
    weight = torch.randn(37, 5).to(dtype).requires_grad_()
    tokens = torch.randint(0, 37, shape)
    out, expected = embedding(weight, tokens), F.embedding(tokens, weight)
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out).transpose(0, -1).contiguous().transpose(0, -1)  # not contiguous
    (grad,) = torch.autograd.grad(out, weight, upstream)
    (expected,) = torch.autograd.grad(expected, weight, upstream)
    assert torch.equal(grad, expected)
