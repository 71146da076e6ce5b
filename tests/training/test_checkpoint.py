"""Checkpoints on disk: whole or not there, data and never code."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from training import checkpoint
from training.checkpoint import CheckpointError

CONTENT = {
    **{"step": 1, "config": {"a": 1}, "model": {"w": torch.ones(3)}, "optimizer": {}, "tokenizer": {}},
    **{"data": {}, "best_val_loss": 1.0, "seconds": 0.0, "tracker_id": None, "scaler": {}, "samples": 8},
    **{"tokens": 64, "ranks": 1, "records": 0, "commit": "abc"},
}


def save(folder, step, best=False, keep=2, **more):
    return checkpoint.save(folder, step, {**CONTENT, "step": step, **more}, keep, best)


def test_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step, best=step == 2)
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "step_00000004.pt", "step_00000005.pt"]
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 2
    run = tmp_path.parent / "run"
    run.mkdir()
    (run / "ckpt").symlink_to(tmp_path)
    assert checkpoint.find(run).name == "step_00000005.pt"
    assert checkpoint.find(run, "best").name == "best.pt"
    assert checkpoint.find(tmp_path / "step_00000004.pt").name == "step_00000004.pt"


def test_best_without_hard_links(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    save(tmp_path, 3, best=True)
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "step_00000003.pt"]
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 3


def test_round_trip(tmp_path):
    path = save(tmp_path, 7)
    content = checkpoint.load(path)
    assert torch.equal(content["model"]["w"], torch.ones(3))
    assert content["versions"]["torch"] == str(torch.__version__)


class Bomb:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("torch_format", [True, False])
def test_a_pickle_bomb_is_refused_and_never_runs(tmp_path, torch_format):
    trace, path = tmp_path / "exploded", tmp_path / "bomb.pt"
    if torch_format:
        torch.save({**CONTENT, "format": checkpoint.FORMAT, "extra": Bomb(trace)}, path)
    else:
        path.write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(CheckpointError, match=r"bomb\.pt is not plain tensors"):
        checkpoint.load(path)
    assert not trace.exists()
    with contextlib.suppress(RuntimeError):
        torch.load(path, weights_only=False)
    assert trace.exists()  # the bomb was live


def test_foreign_and_damaged_files(tmp_path):
    path = tmp_path / "a.pt"
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.load(path)
    for content, message in [
        ({"model": {}}, r"train\.py: its format is None"),
        ({"format": "other 2"}, "its format is 'other 2'"),
        ({"format": checkpoint.FORMAT, "model": {}}, "it lacks parts"),
        ([1, 2], "its format is None"),
    ]:
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load(path)
    whole = save(tmp_path, 1).read_bytes()
    for damaged in (b"", b"hello", whole[: len(whole) // 2], whole[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.pt is (damaged or not a|not plain) "):
            checkpoint.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no checkpoint")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        checkpoint.load(path)


def test_what_find_says(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        checkpoint.find(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds neither ckpt/"):
        checkpoint.find(tmp_path)
    (tmp_path / "ckpt").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        checkpoint.find(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(CheckpointError, match=f"part of a run folder.* {tmp_path},"):
        checkpoint.find(tmp_path / "ckpt")


def test_foreign_files(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("no checkpoint at all")
    with pytest.raises(CheckpointError, match=r"\(no archive of torch\.save\)|not plain"):
        checkpoint.load(path, mmap=True)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_piece_of_a_sharded_checkpoint(tmp_path, name):
    (tmp_path / name).write_bytes(b"pieces of tensors")
    with pytest.raises(CheckpointError, match=f"part of a sharded checkpoint.* {tmp_path}"):
        checkpoint.load(tmp_path / name)


def test_weights_of_another_model(build):
    path = Path("a.pt")
    stored = {"model": build().state_dict()}
    checkpoint.load_weights(build(seed=1), stored, path)
    with pytest.raises(CheckpointError, match=r"a\.pt .*embedding\.weight is \[128, 24\]"):
        checkpoint.load_weights(build(n_embd=48), stored, path)
    with pytest.raises(CheckpointError, match=r"lacks blocks\.0\.ffn\.gate\.weight"):
        checkpoint.load_weights(build(ffn="cffn_gated"), stored, path)


FULL_DISK = """
import resource, sys, torch
from pathlib import Path
from training import checkpoint
content = dict(step=1, config={}, model={"w": torch.ones(1000)}, optimizer={}, tokenizer={},
    data={}, best_val_loss=1.0, seconds=0.0, tracker_id=None, scaler={}, samples=8,
    tokens=64, ranks=1, records=0, commit="abc")
checkpoint.save(Path(sys.argv[1]), 1, content, 2, True)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    checkpoint.save(Path(sys.argv[1]), 2, {**content, "model": {"w": torch.ones(1_000_000)}}, 2, True)
except OSError as error:
    print(error)
"""


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "step_00000002.pt could not be written" in found.stdout
    assert "earlier checkpoints are untouched" in found.stdout
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "step_00000001.pt"]
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 1


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from training import checkpoint
content = dict(step=1, config={}, model={"w": torch.ones(1000)}, optimizer={}, tokenizer={},
    data={}, best_val_loss=1.0, seconds=0.0, tracker_id=None, scaler={}, samples=8,
    tokens=64, ranks=1, records=0, commit="abc")
checkpoint.save(Path(sys.argv[1]), 1, content, 2, True)
place = sys.argv[2]
def die(*arguments, **keys):
    os.kill(os.getpid(), signal.SIGKILL)
def write_half(content, file):
    file.write(b"half of it")
    file.flush()
    die()
if place == "write":
    torch.save = write_half
else:
    setattr(os, place, die)
checkpoint.save(Path(sys.argv[1]), 2, {**content, "step": 2}, 2, True)
"""


@pytest.mark.parametrize(("place", "newest"), [("write", 1), ("replace", 1), ("fsync", 1), ("link", 1)])
def test_a_kill_while_saving_leaves_a_whole_checkpoint(tmp_path, place, newest):
    found = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), place], check=False)
    assert found.returncode == -signal.SIGKILL
    assert checkpoint.load(checkpoint.numbered(tmp_path)[-1])["step"] == newest
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 1
    assert list(tmp_path.glob("*.tmp"))
    save(tmp_path, 3, best=True)  # what was left is in nobody's way, and swept up
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "step_00000001.pt", "step_00000003.pt"]
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 3


def test_two_kills_in_the_same_step_leave_a_whole_best_checkpoint(tmp_path, monkeypatch):
    """The first leaves best.pt and the checkpoint without a name as two names of one file."""

    class Killed(BaseException):
        pass

    def replace(source, target, really=os.replace):
        if target.name != "best.pt":
            raise Killed
        really(source, target)

    def write_half(content, file):
        file.write(b"half of it")
        file.flush()
        raise Killed

    save(tmp_path, 1, best=True)
    for where, what, do in ((os, "replace", replace), (torch, "save", write_half)):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, do)
            with pytest.raises(Killed):
                save(tmp_path, 2, best=True)
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 2
    assert checkpoint.load(checkpoint.numbered(tmp_path)[-1])["step"] == 1
