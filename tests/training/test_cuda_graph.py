"""Gradients of captured micro-batches: with a stand-in for CUDA graphs, and on a GPU with them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import train
from tests.training.records import losses
from training import cuda_graph
from training.cuda_graph import CapturedBackward

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def stand_in(monkeypatch):
    """Like a graph, it computes at each replay alone, into the memory of its capture."""
    parameters = []
    real = CapturedBackward.__init__

    def init(self, given, *others):
        parameters[:] = given
        real(self, parameters, *others)

    def captured(warm_up, function, pool):
        adds = warm_up() is None
        kept, loss = [p.grad for p in parameters], torch.full((), torch.nan)

        def set_all(gradients):
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient

        def replay():
            found = [p.grad for p in parameters]
            set_all([None] * len(found))
            loss.copy_(function())
            for p, own in zip(parameters, kept, strict=True):
                if own is not None:
                    own.copy_(own + p.grad if adds else p.grad)
            set_all(found)

        return replay, loss

    monkeypatch.setattr(CapturedBackward, "__init__", init)
    monkeypatch.setattr(cuda_graph, "captured", captured)
    monkeypatch.setattr(cuda_graph, "unchanged_random_numbers", torch.random.fork_rng)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def gradients_of_two_steps(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    unused = nn.Parameter(torch.ones(2, device=device))

    def compute(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss.detach()

    def batches():
        return [(torch.randn(4, 3, device=device), torch.randn(4, 2, device=device)) for _ in range(3)]

    run = CapturedBackward([*model.parameters(), unused], compute, batches()[0])
    assert all(p.grad is None for p in model.parameters())
    for _ in range(2):
        step = batches()
        expected = [compute(*batch) for batch in step]
        wanted = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        found = [run(batch, first=number == 0).clone() for number, batch in enumerate(step)]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([p.grad for p in model.parameters()], wanted)
        assert unused.grad is None
        model.zero_grad(set_to_none=True)


def test_gradients_of_two_steps_of_three_micro_batches(stand_in):
    gradients_of_two_steps(CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_with_graphs():
    before = torch.cuda.get_rng_state()
    gradients_of_two_steps(CUDA)
    assert not torch.equal(torch.cuda.get_rng_state(), before)  # of the batches


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "keys", [[], ["--dropout=0.2"], ["--dtype=float16", "--gradient_accumulation_steps=3"]]
)
def test_a_run_on_a_gpu_trains_to_the_same_losses(run, keys):
    keys = [*keys, "--max_iters=8", "--eval_interval=4", "--device=cuda", "--compile=True"]
    keys += ["--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True"]
    _, plain = run("plain", *keys, "--cuda_graph=False")
    _, replayed = run("replayed", *keys)
    assert losses(replayed) == losses(plain)


@pytest.mark.parametrize(
    "keys", [["--dropout=0.2"], ["--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True"]]
)
def test_a_run_trains_to_the_same_losses(run, stand_in, monkeypatch, keys):
    """With dropout, micro-batches, sleeping depths and evaluations in between."""
    keys = [*keys, "--max_iters=6", "--eval_interval=3"]
    _, plain = run("plain", *keys)
    monkeypatch.setattr(cuda_graph, "fits", lambda *_: True)
    _, replayed = run("replayed", *keys)
    assert losses(replayed) == losses(plain)


def test_what_cannot_be_captured_ends_with_what_to_do(run, stand_in, monkeypatch):
    def captured(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda_graph, "fits", lambda *_: True)
    monkeypatch.setattr(cuda_graph, "captured", captured)
    with pytest.raises(SystemExit, match=r"\(operation not permitted .* capturing\).*--cuda_graph=False"):
        run("a")


def test_only_runs_of_equal_steps_on_one_gpu_are_captured():
    config = train.TrainConfig()
    text, pairs = SimpleNamespace(unit="tokens"), SimpleNamespace(unit="pairs")
    assert cuda_graph.fits(config, CUDA, 1, text)
    assert not cuda_graph.fits(config, CPU, 1, text)
    assert not cuda_graph.fits(config, CUDA, 2, text)
    assert not cuda_graph.fits(config, CUDA, 1, pairs)
    for key, value in [("cuda_graph", False), ("compile", False), ("activation_checkpointing", True)]:
        assert not cuda_graph.fits(train.TrainConfig(**{key: value}), CUDA, 1, text)
    assert not cuda_graph.fits(train.TrainConfig(model="saffu"), CUDA, 1, text)
