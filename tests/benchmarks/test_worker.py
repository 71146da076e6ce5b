"""The process of each thing that is measured."""

import os
import signal

import pytest
import torch

from benchmarks.worker import BenchError, Worker

CPU = torch.device("cpu")


def fails(kind):
    if kind == "raises":
        raise ValueError("five")
    if kind == "dies":
        os._exit(3)
    return {"one": lambda: 1, "turns": turns}


def turns():
    yield
    yield
    return 3


def blocked():
    return {"signals": lambda: [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]}


def test_ctrl_c_reaches_the_parent_alone():
    """From the first instruction of the server on, whose processes are forked with what it blocks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with Worker("a", CPU, 1, blocked) as worker:
        worker.ask("sections")
        assert signal.SIGINT in worker.ask("turn", "signals")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_process_that_fails_is_named():
    with (
        Worker("a", CPU, 1, fails, "raises") as worker,
        pytest.raises(BenchError, match="a: ValueError: five"),
    ):
        worker.ask("sections")
    with (
        Worker("b", CPU, 1, fails, "dies") as worker,
        pytest.raises(BenchError, match=r"b: .* exit code 3"),
    ):
        worker.ask("sections")
    with Worker("c", CPU, 1, fails, "nothing") as worker:
        assert worker.ask("sections") == ["one", "turns"]
        assert worker.ask("turn", "one") == 1
        assert [worker.ask("turn", "turns") for _ in range(6)] == 2 * [None, None, 3]
    assert not worker.process.is_alive()
