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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "count", "width"), [(3, 200, 70), (50, 37, 5), (9, 1, 64), (9, 0, 7), (1, 65, 3)]
)
def test_the_kernel_adds_the_rows_of_each_token(triton_device, dtype, rows, count, width):
    from kernels.embedding_triton import embedding_backward

    torch.manual_seed(0)
    tokens = torch.randint(0, rows, (count,)).to(triton_device)
    grad = torch.randn(count, width).to(triton_device, dtype)
    found = embedding_backward(grad, tokens, rows)
    exact = torch.zeros(rows, width, dtype=torch.float64, device=triton_device).index_add_(
        0, tokens, grad.double()
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found, exact.to(dtype))
    assert torch.equal(found, embedding_backward(grad, tokens, rows))
