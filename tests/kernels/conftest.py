"""Where the Triton kernels are tested: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch

from kernels import backend

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture
def triton_device():
    """ "cuda", or "cpu" in a process that was started with TRITON_INTERPRET=1, as test_triton.py does."""
    return "cpu" if backend.INTERPRETED else "cuda"


@pytest.fixture(params=DEVICES)
def any_device(request):
    return request.param


def pytest_collection_modifyitems(config, items):
    """Tests of `triton_device` run where Triton does; under TRITON_INTERPRET=1 nothing else runs here."""

    def chosen(item):
        if not item.path.is_relative_to(__file__.rsplit("/", 1)[0]):
            return True
        if "triton_device" in item.fixturenames:
            return not backend.why_not_triton()
        return not backend.INTERPRETED

    config.hook.pytest_deselected(items=[item for item in items if not chosen(item)])
    items[:] = filter(chosen, items)
