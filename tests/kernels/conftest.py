"""Where the Triton kernels are tested: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch

from kernels import backend


@pytest.fixture(scope="session")
def triton_device():
    """"cuda", or "cpu" in a process that was started with TRITON_INTERPRET=1 (as test_triton.py does)."""
    if backend.INSTALLED and not backend.why_not_triton():
        return "cpu" if backend.INTERPRETED else "cuda"
    pytest.skip("needs a GPU or TRITON_INTERPRET=1")


@pytest.fixture(params=["cpu", "cuda"])
def any_device(request):
    """For code that runs on both."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return request.param
