"""--profile traces some steps, changes no loss, and is refused where the run is too short."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from tests.training.records import losses
from tests.training.refusals import refused
from training import profiling
from training.log import read_log

N = 2


def test_a_trace_of_n_steps_with_the_same_losses(run, capsys):
    _, plain = run("plain", "--max_iters=8", "--eval_interval=4")
    capsys.readouterr()
    folder, records = run("traced", "--max_iters=8", "--eval_interval=4", f"--profile={N}")
    assert losses(records) == losses(plain)
    with gzip.open(folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {f"ProfilerStep#{profiling.WARM_UP + number}" for number in range(N)}
    # two layers' products of two micro-batches in N steps, at the least
    assert (
        sum(event.get("name") == "aten::addmm" or event.get("name") == "aten::mm" for event in events)
        >= 8 * N
    )
    assert not list(folder.glob("*tmp*"))
    assert not (folder / "memory.pickle").exists()
    said = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(said) if line.startswith("profile of 2 steps: "))
    assert str(folder / "trace.json.gz") in said[begin]
    rows = [line for line in said[begin + 1 :] if line.startswith("|")]
    assert len(rows) == 2 + profiling.ROWS
    assert rows[0].split("|")[1].strip() == "operator"
    assert json.loads((folder / "given.json").read_text())["profile"] == N


def test_without_it_nothing_is_traced(run, monkeypatch):
    monkeypatch.setattr(profiling, "profile", None)  # a call raises TypeError
    folder, _ = run("a", "--max_iters=5")
    assert not (folder / "trace.json.gz").exists()


def test_only_the_first_rank_profiles(tmp_path):
    trace = profiling.Trace(1, torch.device("cpu"), tmp_path, first=False)
    assert trace.profiler is None
    with trace:
        assert [trace.step() for _ in range(6)] == [False] * profiling.WARM_UP + [True] + [False] * 2
    assert not list(tmp_path.iterdir())


def test_a_run_that_goes_on_traces_only_if_it_is_told_again(run, capsys):
    folder, _ = run("a", "--max_iters=5", "--profile=2")
    (folder / "trace.json.gz").unlink()
    run("a", "--max_iters=6", "--resume=True")
    assert not (folder / "trace.json.gz").exists()
    run("a", "--max_iters=10", "--resume=True", "--profile=1")
    assert (folder / "trace.json.gz").exists()


def test_steps_that_a_run_does_not_have_are_refused(arguments, capsys):
    wrong = "profile=3 traces 3 steps after 3 others, and the run has 5 steps to go"
    assert wrong in refused(capsys, arguments, "--max_iters=5", "--profile=3")


def test_a_run_that_goes_on_for_too_few_steps_says_that_it_traces_nothing(run, capsys):
    run("a", "--max_iters=4")
    folder, _ = run("a", "--max_iters=6", "--resume=True", "--profile=1")
    said = "  profile=1 traces 1 step after 3 others, and the run has 2 steps to go: take a smaller"
    assert said in capsys.readouterr().out
    assert read_log(folder)[-1]["step"] == 6
    assert not (folder / "trace.json.gz").exists()


def test_a_run_that_ends_within_the_trace_writes_none(run, monkeypatch):
    from training.trainer import Trainer

    step = Trainer.step

    def killed(self, stop):
        if self.progress.step == 4:
            raise KeyboardInterrupt
        return step(self, stop)

    monkeypatch.setattr(Trainer, "step", killed)
    with pytest.raises(SystemExit, match="interrupted"):
        run("a", "--max_iters=8", "--profile=4")
    monkeypatch.setattr(Trainer, "step", step)
    folder, _ = run("a", "--max_iters=8", "--resume=True")  # the profiler is free again
    assert read_log(folder)[-1]["step"] == 8
    assert not (folder / "trace.json.gz").exists()


def test_a_trace_that_cannot_be_written_leaves_none(tmp_path):
    def fail(path):
        open(path, "w").close()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"trace\.json\.gz could not be written \(the disk is full"):
        profiling.write_beside(tmp_path / "trace.json.gz", fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("on_gpu", "kind"), [(False, DeviceType.CPU), (True, DeviceType.CUDA)])
def test_costs_are_by_the_time_in_themselves(on_gpu, kind):
    """Against a count by hand, of events that both kinds of devices have."""

    def event(key, device, microseconds, count=4, annotation=False):
        return SimpleNamespace(
            key=key, device_type=device, count=count, is_user_annotation=annotation,
            self_cpu_time_total=microseconds * (device == DeviceType.CPU),
            self_device_time_total=microseconds * (device == DeviceType.CUDA),
        )  # fmt: skip

    other = DeviceType.CPU if on_gpu else DeviceType.CUDA
    events = [event(f"k{n}", kind, 1000 * n, count=2 * n) for n in range(1, 13)]
    events += [event("elsewhere", other, 10**6), event("zero", kind, 22_000)]
    events += [event("all of it", kind, 10**6, annotation=True)] * on_gpu
    rows = profiling.costs(events, 2, on_gpu)
    assert [next(iter(row.values())) for row in rows] == ["zero", *(f"k{n}" for n in range(12, 3, -1))]
    assert rows[1] | {"share": ""} == {
        "kernel" if on_gpu else "operator": "k12",
        "calls a step": "12",
        "ms a step": "6.000",
        "share": "",
    }
    assert rows[0]["share"] == "22.0%"
