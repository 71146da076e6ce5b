"""Trackers get what log.jsonl holds, once for each step, also where a run goes on."""

import importlib.machinery
import json
import sys
import types

import pytest

from configurator import ConfigError, resolve
from training import checkpoint, tracking
from training.config import TrainConfig
from training.log import read_log
from training.trainer import Trainer


class Stub(types.ModuleType):
    """A tracker's package: what it keeps of each run, {step: values}, and what it was told."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="a stub")
        self.runs, self.finished = [], 0

    def init(self, **told):
        run = types.SimpleNamespace(
            id=f"run{len(self.runs)}", told=told, rows={}, name=told["name"], finish=self.finish
        )
        run.log = lambda values, step: self.keep(run.rows, values, step)
        self.runs.append(run)
        return run

    def finish(self):
        self.finished += 1


class Wandb(Stub):
    """Takes no more values of a step that is over."""

    @staticmethod
    def keep(rows, values, step):
        if step >= max(rows, default=0):
            rows.setdefault(step, {}).update(values)


class Trackio(Stub):
    """Goes on with the newest run of a name, and shows all that it was ever told of a step."""

    def init(self, resume, embed, **told):
        assert not embed
        if resume == "must":
            run = next(run for run in reversed(self.runs) if run.name == told["name"])
            run.resumed = True
            return run
        return super().init(**told)

    @staticmethod
    def keep(rows, values, step):
        for key, value in values.items():
            rows.setdefault(step, {}).setdefault(key, []).append(value)

    def Api(self):
        def runs(project):
            found = [run for run in self.runs if run.told["project"] == project]
            if not found:
                raise ValueError(f"Project '{project}' does not exist")
            return found

        return types.SimpleNamespace(runs=runs)


STUBS = {"wandb": Wandb, "trackio": Trackio}


@pytest.fixture(params=STUBS)
def tracker(request, monkeypatch) -> Stub:
    stub = STUBS[request.param](request.param)
    monkeypatch.setitem(sys.modules, request.param, stub)
    return stub


def by_step(records, several: bool) -> dict:
    """What a tracker must hold of these records. several: as lists of all values of a key."""
    found = {}
    for record in records:
        row = found.setdefault(record["step"], {})
        for key, value in record.items():
            if key != "step":
                row[key] = [*row.get(key, []), value] if several else value
    return found


def test_a_tracker_gets_the_log(run, tracker):
    folder, records = run("a", f"--track={tracker.__name__}", "--track_project=mine", "--max_iters=4")
    (one,) = tracker.runs
    assert one.rows == by_step(records, tracker.__name__ == "trackio")
    assert {key: one.told[key] for key in ("project", "name", "group")} == {
        "project": "mine",
        "name": "a",
        "group": "a",
    }
    assert one.told["config"] == json.loads((folder / "config.json").read_text())
    assert tracker.finished == 1
    assert checkpoint.load(checkpoint.find(folder))["tracker_id"] == "run0"


def test_after_a_kill_a_new_run_has_the_curve_of_the_log(run, monkeypatch, tracker):
    """The steps that are made again have other losses here, so that they are told apart."""
    keys = (
        f"--track={tracker.__name__}", "--track_name=name", "--max_iters=20", "--checkpoint_interval=5",
    )  # fmt: skip
    step = Trainer.step

    def killed(self, stop):
        if self.progress.step == 13:
            raise KeyboardInterrupt
        return step(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", killed)
        with pytest.raises(SystemExit):
            run("a", *keys)
    folder, records = run("a", *keys, "--resume=True", "--label_smoothing=0.1")
    first, second = tracker.runs
    assert max(first.rows) == 13
    assert {one.told["group"] for one in (first, second)} == {"name"}
    assert second.told["config"]["resumed_from"] == "run0"
    assert second.told["config"]["resumed_at_step"] == 10
    assert "resumed_from" not in json.loads((folder / "config.json").read_text())
    assert second.rows == by_step(records, tracker.__name__ == "trackio")
    assert first.rows[12]["loss"] != second.rows[12]["loss"]
    assert list(by_step(records, False)[10]["resumed"]) == ["label_smoothing"]


def test_trackio_goes_on_with_a_run_of_which_nothing_is_made_again(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", stub := Trackio("trackio"))
    run("a", "--track=trackio", "--max_iters=5", "--checkpoint_interval=5")
    folder, records = run("a", "--track=trackio", "--max_iters=9", "--resume=True")
    (one,) = stub.runs
    assert one.resumed
    assert one.rows == by_step(records, several=True)
    assert checkpoint.load(checkpoint.find(folder))["tracker_id"] == "run0"


@pytest.mark.parametrize("change", ["another of its name", "the project is gone"])
def test_trackio_does_not_go_on_with_a_run_of_another(run, monkeypatch, change):
    monkeypatch.setitem(sys.modules, "trackio", stub := Trackio("trackio"))
    run("a", "--track=trackio", "--max_iters=5", "--checkpoint_interval=5")
    if change == "another of its name":
        run("b", "--track=trackio", "--track_name=a", "--max_iters=2")
    else:
        stub.runs.clear()
    _, records = run("a", "--track=trackio", "--max_iters=9", "--resume=True")
    assert stub.runs[-1].rows == by_step(records, several=True)
    assert not any(hasattr(one, "resumed") for one in stub.runs)


def test_without_a_tracker_none_is_imported(run, monkeypatch):
    for name in STUBS:
        monkeypatch.setitem(sys.modules, name, None)  # an import raises ImportError
    folder, _ = run("a", "--max_iters=2")
    assert checkpoint.load(checkpoint.find(folder))["tracker_id"] is None


@pytest.mark.parametrize("place", ["nowhere", "a folder of earlier runs"])
def test_a_tracker_that_is_not_installed_is_named_before_any_work(monkeypatch, tmp_path, place):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    if place == "a folder of earlier runs":
        (tmp_path / "wandb").mkdir()
    with pytest.raises(ConfigError, match=r"track=wandb needs the wandb package: (uv )?pip install wandb"):
        resolve(TrainConfig, ["--track=wandb"])


def test_a_start_that_failed_early_does_not_block_its_folder(run, monkeypatch, tracker):
    def fail(**told):
        raise RuntimeError("no network")

    monkeypatch.setattr(tracker, "init", fail)
    with pytest.raises(SystemExit, match=rf"{tracker.__name__} did not start \(no network\)"):
        run("a", f"--track={tracker.__name__}")
    run("a", "--max_iters=2")


def test_wandb_offline(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder, _ = run("a", "--max_iters=3", "--track=wandb", "--track_name=name")
    (offline,) = (folder / "wandb").glob("offline-run-*")
    assert list(offline.glob("*.wandb"))
    assert checkpoint.load(checkpoint.find(folder))["tracker_id"] in offline.name


def test_trackio_itself(run, monkeypatch, tmp_path):
    """The real package, where it is installed: one run, then a longer one, with every value of the log."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    assert tracking.mistakes(tracking.Keys(track="trackio")) == []
    run("a", "--track=trackio", "--max_iters=5", "--checkpoint_interval=5")
    folder, _ = run("a", "--track=trackio", "--max_iters=9", "--resume=True")
    (one,) = trackio.Api().runs("cofrgenet")
    assert checkpoint.load(checkpoint.find(folder))["tracker_id"] == one.id
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("cofrgenet", one.name, run_id=one.id)
    seen = [(row["step"], row.get("loss"), row.get("val_loss")) for row in rows]
    assert seen == [(r["step"], r.get("loss"), r.get("val_loss")) for r in read_log(folder)]
