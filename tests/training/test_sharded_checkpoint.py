"""Checkpoints that are folders, written while training goes on: one process. See test_sharded_ranks.py."""

import contextlib
import errno
import json
import os
import pickle
import shutil
import sys
import threading
import zlib

import pytest
import torch

import evaluate
import export
import sample
from train import main
from training import checkpoint, pretrained, sharded_checkpoint, trainer
from training.checkpoint import CheckpointError

SHARDED = "--checkpoint_format=sharded"
LADDERS = ("--attention=cattn_m", "--ffn=cffn_added", "--dyadic=True", "--cf_eval_clip=True")


def losses(records):
    return [(r["step"], r.get("loss"), r.get("val_loss")) for r in records if "resumed" not in r]


def resumed(folder, *overrides):
    main([f"--out_dir={folder}", "--resume=True", *overrides])
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def back_to(folder, step):
    """The run as if it had been killed after this step."""
    for path in (folder / "ckpt").iterdir():
        if int(path.name.split("_")[1].removesuffix(".pt") if "_" in path.name else 99) > step:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def weights(path):
    return pretrained.weights_of_run(path, checkpoint.load(path))


@pytest.fixture
def folder(run):
    """A run of 10 steps with sharded checkpoints at 5 and 10."""
    return run("sharded", "--max_iters=10", SHARDED)[0]


@pytest.mark.parametrize("keys", [LADDERS, ("--optimizer=muon", "--dropout=0.1")])
def test_a_run_is_the_same_in_either_format(run, capsys, keys):
    """To the bit, and so is one that goes on: sharded to sharded, to whole, and back."""
    keys = (*keys, "--max_iters=12", "--checkpoint_interval=3", "--eval_interval=6", "--keep_checkpoints=9")
    whole, expected = run("whole", *keys)
    folder, records = run("sharded", *keys, SHARDED)
    assert losses(records) == losses(expected)
    names = [f"step_{step:08d}" for step in (3, 6, 9, 12)]
    assert sorted(os.listdir(folder / "ckpt")) == ["best_00000012", *names]
    files = {".metadata", "__0_0.distcp", "run.pt"}
    assert {path.name for path in checkpoint.find(folder).iterdir()} == files
    ours, theirs = weights(checkpoint.find(folder)), weights(checkpoint.find(whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = (checkpoint.load(checkpoint.find(one)) for one in (folder, whole))
    same = theirs.keys() - {"model", "optimizer", "checksums", "format", "config", "seconds"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}

    back_to(folder, 9)  # ladder weights of which a part has no state yet
    assert losses(resumed(folder)) == losses(expected)
    back_to(folder, 6)
    records = resumed(folder, "--checkpoint_format=whole")
    assert losses(records) == losses(expected)
    (change,) = [r["resumed"] for r in records if "resumed" in r]
    assert [*change] == ["checkpoint_format"]
    told = change["checkpoint_format"]
    assert told.startswith("checkpoint_format was 'sharded', now 'whole'")
    assert told in capsys.readouterr().out
    assert sorted(os.listdir(folder / "ckpt")) == ["best.pt", *names[:2], *(f"{n}.pt" for n in names[2:])]
    back_to(folder, 9)
    assert losses(resumed(folder, SHARDED)) == losses(expected)
    assert min(os.listdir(folder / "ckpt")) == "best_00000012"


def test_every_script_reads_a_folder(run, folder, arguments, tmp_path, capsys):
    whole, _ = run("whole", "--max_iters=10")
    last = checkpoint.find(folder)
    texts = []
    for model in (folder, last, whole):
        capsys.readouterr()
        sample.main([str(model), "--start=ab", "--max_new_tokens=20", "--seed=3"])
        texts.append(capsys.readouterr().out.rpartition("---")[2])
    assert texts[0] == texts[1] == texts[2]
    text = tmp_path / "text.txt"
    text.write_text("ab cd efgh " * 40)
    evaluate.main([str(last), str(whole), f"--texts={text}", "--device=cpu"])
    rows = [
        line.split("|")[1:]
        for line in capsys.readouterr().out.splitlines()
        if "step_" in line or "whole" in line
    ]
    assert rows[0][0].strip() == "sharded/step_00000010"
    assert rows[0][1:] == rows[1][1:]
    export.main([str(folder), str(tmp_path / "exported")])
    exported, ours = pretrained.load(tmp_path / "exported")[0].state_dict(), weights(last)
    assert all(torch.equal(exported[name], ours[name]) for name in ours if "blocks" in name)
    main([*arguments, f"--init_from={last}", "--max_iters=2", f"--out_dir={tmp_path / 'next'}"])
    assert "weights kept" in capsys.readouterr().out


def test_another_best_takes_the_place_of_the_one_before(run):
    folder, records = run("a", "--eval_interval=5", SHARDED)
    values = {r["step"]: r["val_loss"] for r in records if "val_loss" in r and r["step"]}
    best = min(values, key=values.get)
    names = sorted(os.listdir(folder / "ckpt"))
    assert names == [f"best_{best:08d}", "step_00000015", "step_00000020"]
    assert checkpoint.load(checkpoint.find(folder, "best"))["best_val_loss"] == values[best]
    assert pretrained.open_source(str(folder)).step == best


def test_a_step_that_is_saved_twice(folder):
    """The first one stays until the second is whole."""
    path, step = folder / "ckpt", 10
    content = checkpoint.load(checkpoint.find(folder))
    saver = sharded_checkpoint.Saver(path, trainer.Ranks(), keep=2)
    model = torch.nn.Linear(2, 2)
    for name in ("step_00000010_2", "step_00000010"):
        saver.save(content, model, torch.optim.AdamW(model.parameters()), best=True)
        saver.finish()
        newest = checkpoint.find(folder)
        assert (newest.name, checkpoint.step_of(newest)) == (name, step)
        assert checkpoint.find(folder, "best").name == name.replace("step", "best")
        assert len(os.listdir(path)) == 3
    checkpoint.save(path, step, {**content, "model": {}, "optimizer": {}}, 2, best=True)
    assert sorted(os.listdir(path)) == ["best.pt", "step_00000005", "step_00000010.pt"]


def test_two_best_ones(folder):
    """A run was killed after it had a new best checkpoint, and before it removed the old one."""
    content = {**checkpoint.load(checkpoint.find(folder)), "model": {}, "optimizer": {}}
    for step, name in ((7, "best_00000010"), (12, "best.pt")):
        checkpoint.write_archive(
            folder / "ckpt" / "best.pt", {**content, "format": checkpoint.FORMAT, "step": step}
        )
        assert checkpoint.find(folder, "best").name == name


def test_training_goes_on_while_a_checkpoint_is_written(run, monkeypatch):
    """The writer waits until three more steps are done."""
    done, waited = threading.Event(), []
    write, step = sharded_checkpoint._Writer.write_data, trainer.Trainer.step

    def held(self, plan, planner):
        if not done.is_set():
            waited.append(done.wait(30))
        return write(self, plan, planner)

    def steps(self, stop):
        if self.progress.step == 8:
            assert self.saver.writing is not None
            assert sorted(os.listdir(self.folder / "ckpt")) == ["step_00000005.tmp"]
            done.set()
        return step(self, stop)

    monkeypatch.setattr(sharded_checkpoint._Writer, "write_data", held)
    monkeypatch.setattr(trainer.Trainer, "step", steps)
    folder, records = run("held", "--max_iters=10", SHARDED, "--keep_checkpoints=9")
    assert waited == [True]
    monkeypatch.undo()
    expected, _ = run("free", "--max_iters=10", SHARDED, "--keep_checkpoints=9")
    # what was saved is the state of step 5, not of 8
    for name in ("step_00000005", "step_00000010"):
        ours, theirs = (weights(one / "ckpt" / name) for one in (folder, expected))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert len(losses(records)) == 12


def test_one_checkpoint_at_a_time(run, monkeypatch):
    """The second one waits for the first."""
    writing, most = [], []
    write = sharded_checkpoint._Writer.write_data

    def noted(self, plan, planner):
        writing.append(self)
        most.append(len(writing))
        threading.Event().wait(0.05)
        found = write(self, plan, planner)
        writing.pop()
        return found

    monkeypatch.setattr(sharded_checkpoint._Writer, "write_data", noted)
    folder, _ = run("a", "--max_iters=6", "--checkpoint_interval=1", SHARDED)
    assert most == [1] * 6
    assert sorted(os.listdir(folder / "ckpt"))[-1] == "step_00000006"


@pytest.mark.parametrize("where", ["pieces", "rest", "last"])
def test_a_full_disk_ends_the_run_and_keeps_the_checkpoint_before(
    run, tmp_path, monkeypatch, capsys, where
):
    """last: at the checkpoint that no step follows."""
    full = OSError(errno.ENOSPC, "No space left on device")
    real, saves = sharded_checkpoint._Writer.write_data, []
    archived = checkpoint.write_archive

    def write_data(self, plan, planner):
        saves.append(1)
        if len(saves) == (4 if where == "last" else 2) and where != "rest":
            (self.path / "__0_0.distcp").write_bytes(b"a part")
            raise full
        return real(self, plan, planner)

    def write_archive(path, content):
        if len(saves) == 2 and where == "rest":
            raise full
        archived(path, content)

    monkeypatch.setattr(sharded_checkpoint._Writer, "write_data", write_data)
    monkeypatch.setattr(checkpoint, "write_archive", write_archive)
    step, steps = (
        8 if where == "last" else 4,
        ("--max_iters=8", "--checkpoint_interval=2", "--eval_interval=100"),
    )
    message = (
        rf"step_{step:08d} .*the disk is full.*"
        rf"--resume=True --out_dir={tmp_path / 'a'} goes on from step_{step - 2:08d}$"
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # with a bar
    with pytest.raises(SystemExit, match=message):
        run("a", SHARDED, *steps, "--keep_checkpoints=1")
    assert capsys.readouterr().err.endswith("\n")  # the message has a line of its own
    names = sorted(os.listdir(tmp_path / "a" / "ckpt"))
    assert [name for name in names if "step" in name] == [f"step_{step - 2:08d}"]
    monkeypatch.undo()
    assert resumed(tmp_path / "a")[-1]["step"] == 8


def test_a_failure_ends_the_run_at_the_next_step(run, tmp_path, monkeypatch):
    """And not only when the next checkpoint is due."""

    def fail(self, plan, planner):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sharded_checkpoint._Writer, "write_data", fail)
    step = trainer.Trainer.step

    def slowly(self, stop):
        if self.saver.writing is not None:
            with contextlib.suppress(BaseException):
                self.saver.writing.result(10)
        return step(self, stop)

    monkeypatch.setattr(trainer.Trainer, "step", slowly)
    with pytest.raises(SystemExit, match="the disk is full"):
        run("a", SHARDED, "--eval_interval=100", "--checkpoint_interval=10", "--max_iters=100")
    steps = [json.loads(line)["step"] for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    assert max(steps) == 11


def test_a_signal_ends_a_run_with_a_whole_checkpoint(run, monkeypatch, tmp_path):
    step = trainer.Trainer.step

    def stopped(self, stop):
        if self.progress.step == 6:
            stop.signal = 15
        return step(self, stop)

    monkeypatch.setattr(trainer.Trainer, "step", stopped)
    with pytest.raises(SystemExit) as ended:
        run("a", SHARDED)
    assert ended.value.code == 143
    assert sorted(os.listdir(tmp_path / "a" / "ckpt")) == ["step_00000005", "step_00000007"]


def test_a_flipped_bit_anywhere_is_noticed_or_means_nothing(folder):
    path = checkpoint.find(folder)
    expected = weights(path)
    noticed = dict.fromkeys((".metadata", "__0_0.distcp", "run.pt"), 0)
    for name in noticed:
        file = path / name
        whole = file.read_bytes()
        for place in range(5, len(whole), len(whole) // 40):
            data = bytearray(whole)
            data[place] ^= 1 << place % 8
            file.write_bytes(data)
            try:
                found = weights(path)
            except CheckpointError as error:
                noticed[name] += str(path) in str(error)
            else:
                assert all(torch.equal(found[key], expected[key]) for key in expected), (name, place)
        file.write_bytes(whole)
    assert noticed[".metadata"] >= 39
    assert noticed["__0_0.distcp"] >= 5  # a third of it is read here; the rest is the optimizer's
    assert noticed["run.pt"] >= 10


def test_a_flipped_bit_in_the_optimizers_state(folder):
    path = checkpoint.find(folder)
    metadata = sharded_checkpoint._metadata(path, checkpoint.load(path))
    pieces = metadata.storage_data.items()
    place = next(place for piece, place in pieces if piece.fqn.endswith("up.weight.exp_avg"))
    file = path / place.relative_path
    data = bytearray(file.read_bytes())
    data[place.offset + place.length // 2] ^= 1
    file.write_bytes(data)
    weights(path)
    advice = r"best_00000010.* step_00000005"
    with pytest.raises(SystemExit, match=r"__0_0\.distcp .*optimizer\..*exp_avg.*" + advice):
        resumed(folder, "--max_iters=12")


def test_files_of_another_checkpoint_and_missing_ones(folder):
    first, last = checkpoint.numbered(folder / "ckpt")
    kept = (last / "__0_0.distcp").read_bytes()
    shutil.copy(first / "__0_0.distcp", last)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp .*model\..*not what was written"):
        weights(last)
    (last / "__0_0.distcp").write_bytes(kept[:5000])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is damaged"):
        weights(last)
    (last / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp does not exist"):
        weights(last)
    (last / "__0_0.distcp").write_bytes(kept)
    weights(last)
    shutil.copy(first / ".metadata", last)
    with pytest.raises(CheckpointError, match=r"\.metadata .*checksum.*run\.pt"):
        weights(last)
    (last / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=r"\.metadata cannot be read"):
        weights(last)
    with pytest.raises(CheckpointError, match=r"run\.pt is a part of a sharded"):
        checkpoint.load(last / "run.pt")
    (last / "run.pt").unlink()
    with pytest.raises(SystemExit, match=r"run\.pt does not exist.* step_0{7}5"):
        resumed(folder, "--max_iters=12")
    left = last.rename(last.with_name(f"{last.name}.tmp"))
    with pytest.raises(CheckpointError, match=r"\.tmp.* is what is left"):
        checkpoint.find(left)
    assert checkpoint.find(folder) == first


def test_weights_of_another_model(folder, tmp_path):
    path = checkpoint.find(folder)
    other = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match=r"step_00000010 .*lacks weight"):
        sharded_checkpoint.read_state(
            path, checkpoint.load(path), other, torch.optim.AdamW(other.parameters())
        )


class Bomb:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_metadata_are_never_run(folder, tmp_path):
    path = checkpoint.find(folder)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    (path / ".metadata").write_bytes(bomb)
    content = checkpoint.load(path)
    content["metadata"] = zlib.crc32(bomb)
    with pytest.raises(CheckpointError, match=r"\.metadata holds code \(posix\.mkdir"):
        pretrained.weights_of_run(path, content)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists()


def test_pytorchs_own_tools_read_the_folder(folder, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    path = checkpoint.find(folder)
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    found, ours = torch.load(tmp_path / "whole.pt"), weights(path)
    assert all(torch.equal(found["model"][name], ours[name]) for name in ours)
    assert found["optimizer"].keys() <= found["model"].keys()
