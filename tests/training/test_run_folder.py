"""Run folders that a kill, a full disk or a stranger's file left in an odd state."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training import checkpoint, log
from training.log import RunFolderError, open_run, read_log, write_whole

ROOT = Path(__file__).resolve().parents[2]

KILLED = """
import os, signal, sys
from pathlib import Path
from training import log
setattr(os, sys.argv[2], lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
with log.open_run(sys.argv[1], False) as folder:
    log.write_whole(folder / "config.json", "{}")
"""


@pytest.mark.parametrize("place", ["fsync", "replace"])
@pytest.mark.parametrize("resume", [False, True])
def test_killed_before_config_json_was_in_place(tmp_path, place, resume):
    """The folder holds no run yet: it can be started again and resumed."""
    folder = tmp_path / "run"
    found = subprocess.run([sys.executable, "-c", KILLED, str(folder), place], cwd=ROOT)
    assert found.returncode == -signal.SIGKILL
    assert {path.name for path in folder.iterdir()} == {".lock", "config.json.tmp"}
    with open_run(str(folder), resume):
        write_whole(folder / "config.json", "{}")
    assert {path.name for path in folder.iterdir()} == {".lock", "config.json"}


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage_log(folder):
    (folder / "log.jsonl").write_text("[" * 100_000 + "\n" + (folder / "log.jsonl").read_text())


def log_of_texts(folder):
    text = (folder / "log.jsonl").read_text()
    (folder / "log.jsonl").write_text(text.replace('"step": 1,', '"step": "1",', 1))


def log_is_folder(folder):
    (folder / "log.jsonl").rename(folder / "log.old")
    (folder / "log.jsonl").mkdir()


def picture_is_folder(folder):
    (folder / "loss.png").unlink(missing_ok=True)
    (folder / "loss.png").mkdir()


def best_is_folder(folder):
    (folder / "ckpt" / "best.pt").rename(folder / "ckpt" / "moved")
    (folder / "ckpt" / "best.pt").mkdir()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage_log, "log.jsonl, line 1: damaged"),
        (log_of_texts, "line 2: damaged"),
        (log_is_folder, "log.jsonl is a folder"),
        (picture_is_folder, "loss.png is a folder"),
        (best_is_folder, "best.pt is a folder"),
    ],
)
def test_a_refused_resume_writes_nothing(run, change, said):
    folder, _ = run("a", "--max_iters=2", "--eval_interval=2")
    change(folder)
    before = content_of(folder)
    with pytest.raises(SystemExit) as stop:
        run("a", "--max_iters=4", "--resume=True")
    assert said in str(stop.value.code)
    assert content_of(folder) == before


def test_a_log_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "log.jsonl").write_text("{}\n")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(RunFolderError, match=r"log\.jsonl.*Permission denied"):
        read_log(tmp_path)


def test_a_file_in_the_place_of_the_checkpoints(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "ckpt").write_text("mine")
    with (
        pytest.raises(RunFolderError, match="ckpt is a file"),
        open_run(str(tmp_path), resume=True),
    ):
        pass
    assert (tmp_path / "ckpt").read_text() == "mine"


def test_a_kept_log_replaces_no_other(tmp_path):
    """log.1.jsonl was deleted, log.2.jsonl was not."""
    (tmp_path / "log.2.jsonl").write_text("older")
    for text in ("first", "second"):
        (tmp_path / "log.jsonl").write_text(text)
        log.Log(tmp_path, 0).file.close()
    assert (tmp_path / "log.1.jsonl").read_text() == "first"
    assert (tmp_path / "log.2.jsonl").read_text() == "older"
    assert (tmp_path / "log.3.jsonl").read_text() == "second"


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_called_full(tmp_path, monkeypatch):
    """The log, config.json and checkpoints, whose writer in PyTorch has words of its own."""
    with open("/dev/full", "wb") as device:
        monkeypatch.setattr("builtins.open", lambda *_, **__: device)
        content = dict.fromkeys(checkpoint.REQUIRED)
        with pytest.raises(OSError, match=r"step_00000001\.pt .*the disk is full"):
            checkpoint.save(tmp_path, 1, {**content, "model": [0] * 100_000}, 2, True)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"config\.json .*the disk is full"):
        write_whole(tmp_path / "config.json", "{}")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    opened = log.Log(tmp_path, 0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"log\.jsonl .*the disk is full"):
        opened.sync()


@pytest.fixture
def small_disk(tmp_path):
    """A folder that is a disk of 300 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can make a disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk):
    content = {**dict.fromkeys(checkpoint.REQUIRED), "step": 1}
    path = checkpoint.save(small_disk / "ckpt", 1, {**content, "model": {"a": torch.ones(20_000)}}, 9, True)
    with pytest.raises(OSError, match=r"step_00000002\.pt .*the disk is full"):
        checkpoint.save(small_disk / "ckpt", 2, {**content, "model": {"a": torch.ones(100_000)}}, 9, True)
    assert sorted((small_disk / "ckpt").iterdir()) == [small_disk / "ckpt" / "best.pt", path]
    assert checkpoint.load(path)["step"] == 1


def test_records_are_held_against_what_a_record_is(tmp_path):
    for line in (
        "[]",
        '{"step": true, "tokens": 1}',
        '{"step": 1}',
        "7",
        '{"step": 1.5, "tokens": 1}',
        '{"step": 1, "tokens": 1, "loss": "1"}',
    ):
        (tmp_path / "log.jsonl").write_text(f"{line}\n" + json.dumps({"step": 1, "tokens": 8}) + "\n")
        with pytest.raises(RunFolderError, match="line 1: damaged"):
            read_log(tmp_path)


def test_a_link_to_nothing_is_no_run_folder(tmp_path):
    (tmp_path / "link").symlink_to("nothing")
    with (
        pytest.raises(RunFolderError, match="link is a symbolic link to nothing"),
        open_run(str(tmp_path / "link"), resume=False),
    ):
        pass
