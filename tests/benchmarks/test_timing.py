"""How functions are timed: on a CPU, and on a GPU whose driver is replaced by one that counts."""

import contextlib

import pytest
import torch

from benchmarks import timing
from benchmarks.timing import Call, quartiles, result_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def measure(*given):
    return result_of(timing.measure(*given))


class Driver:
    """Enough of torch.cuda: each call of a function, and each call that a graph replays, takes 2 ms."""

    def __init__(self, monkeypatch, refuses=False):
        self.now, self.capturing, self.calls, self.refuses = 0.0, None, [], refuses
        driver = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = driver.now

            def synchronize(self):
                pass

            def elapsed_time(self, other):
                return other.at - self.at

        class Stream:
            def wait_stream(self, other):
                pass

        class Graph:
            def __init__(self):
                self.inputs = []

            def replay(self):
                driver.now += 2 * len(self.inputs)

        @contextlib.contextmanager
        def capture(graph):
            if driver.refuses:
                raise RuntimeError("operation not permitted\nwhen capturing")
            driver.capturing = graph
            yield
            driver.capturing = None

        fakes = {"Event": Event, "Stream": Stream, "CUDAGraph": Graph, "graph": capture}
        fakes |= {"current_stream": Stream, "stream": lambda _: contextlib.nullcontext()}
        fakes |= {"synchronize": lambda *_: None, "empty_cache": lambda: None}
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def function(self, inputs):
        if self.capturing is not None:
            self.capturing.inputs.append(inputs)
        else:
            self.now += 2
            self.calls.append(inputs)


def test_a_kernel_is_timed_on_cold_copies_in_one_graph(monkeypatch):
    driver = Driver(monkeypatch)
    monkeypatch.setattr(timing, "COLD_BYTES", 1000)
    tensor = torch.arange(24.0).view(4, 6).T.requires_grad_()
    found, method = measure(Call(driver.function, [tensor]), 3, 0.1, CUDA)
    assert found == pytest.approx([2e-3] * 3)
    assert method == "CUDA graph of 11 calls"  # of 96 bytes each
    replay, count = timing.captured(Call(driver.function, [tensor]))
    copies = [inputs[0] for inputs in replay()]
    assert len(copies) == count == len({one.data_ptr() for one in copies}) == 11
    assert all(one.requires_grad and one.is_leaf for one in copies)
    assert all(torch.equal(one, tensor) and one.stride() == tensor.stride() for one in copies)


def test_a_graph_of_tiny_tensors_has_an_end(monkeypatch):
    driver = Driver(monkeypatch)
    assert timing.captured(Call(driver.function, [torch.ones(3)]))[1] == timing.MOST_CALLS


def test_what_no_graph_can_hold_is_timed_by_events(monkeypatch):
    driver = Driver(monkeypatch, refuses=True)
    monkeypatch.setattr(timing, "COLD_BYTES", 100)
    found, method = measure(Call(driver.function, [torch.ones(3)]), 2, 0.1, CUDA)
    assert found == pytest.approx([2e-3] * 2)
    assert method == "CUDA events, no graph (operation not permitted)"
    found, method = measure(lambda: driver.function([]), 2, 0.1, CUDA)
    assert found == pytest.approx([2e-3] * 2)
    assert method == "CUDA events"


def test_every_repetition_is_measured():
    calls = []
    found, method = measure(lambda: calls.append(1), 3, 1e-4, CPU)
    assert method == "host clock"
    assert len(found) == 3 <= len(calls)
    assert min(found) > 0


def test_processes_can_take_turns_between_repetitions():
    calls = []
    steps = timing.measure(lambda: calls.append(1), 2, 0.0, CPU)
    seen = []
    for _ in steps:
        seen.append(len(calls))
    assert seen == [0, 1]
    assert len(calls) == 2


def test_the_costliest_operations():
    a = torch.rand(64, 64)
    rows, total = timing.costliest(lambda: (a @ a).sin(), CPU, 2)
    assert len(rows) == 2
    assert {"aten::mm", "aten::sin"} >= {row["name"] for row in rows}
    assert rows[0]["microseconds"] >= rows[1]["microseconds"] > 0
    assert total >= sum(row["microseconds"] for row in rows)


def test_quartiles():
    assert quartiles([3.0]) == (3, 3, 3)
    assert quartiles([5.0, 1.0, 2.0, 3.0, 4.0]) == (2, 3, 4)
