"""Gradients of captured micro-batches: with a stand-in for CUDA graphs, and on a GPU with them."""

import pytest
import torch
from torch import nn

from training import cuda_graph
from training.cuda_graph import CapturedBackward


@pytest.fixture(params=["stand-in", "cuda"])
def device(request, monkeypatch):
    """Like a graph, the stand-in computes at each replay, into the memory of its capture."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        return torch.device("cuda")

    def captured(warm_up, function, pool):
        warm_up()
        loss = function()
        kept = [p.grad for p in PARAMETERS]
        accumulates = pool["captures"]  # the second one begins with gradients
        pool["captures"] += 1

        def replay():
            for p in PARAMETERS:
                p.grad = None
            loss.copy_(function())
            for p, held in zip(PARAMETERS, kept, strict=True):
                if held is not None:
                    held.copy_(held + p.grad if accumulates else p.grad)
                p.grad = torch.full_like(p, float("nan"))  # what the caller finds is not this

        return replay, loss

    monkeypatch.setattr(cuda_graph, "captured", captured)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: {"captures": 0})
    return torch.device("cpu")


PARAMETERS = []


def test_gradients_of_two_steps_of_three_micro_batches(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    unused = nn.Parameter(torch.ones(2, device=device))
    PARAMETERS[:] = [*model.parameters(), unused]

    def compute(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss.detach()

    def batches():
        return [(torch.randn(4, 3, device=device), torch.randn(4, 2, device=device)) for _ in range(3)]

    run = CapturedBackward(PARAMETERS, compute, batches()[0])
    assert all(p.grad is None for p in PARAMETERS)
    for _ in range(2):
        step = batches()
        losses = [compute(*batch) for batch in step]
        wanted = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        found = [run(batch, first=number == 0).clone() for number, batch in enumerate(step)]
        torch.testing.assert_close(found, losses)
        torch.testing.assert_close([p.grad for p in model.parameters()], wanted)
        assert unused.grad is None
        model.zero_grad(set_to_none=True)
