"""A run killed with SIGKILL, as often as one likes, ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training import checkpoint

ROOT = Path(__file__).resolve().parents[1]
STEPS = 60
KEYS = [f"--max_iters={STEPS}", "--checkpoint_interval=3", "--dropout=0.1", "--dtype=bfloat16"]
VARIANTS = [[], ["--attention=cattn_m", "--ffn=cffn_product", "--cf_eval_clip=True"]]


def start(folder, arguments, *overrides, program=(ROOT / "train.py",)):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        *program,
        *arguments,
        *KEYS,
        *overrides,
        f"--out_dir={folder}",
        "--resume=True",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def losses(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [
        (r["step"], r.get("loss"), r.get("val_loss"), r.get("grad_norm")) for r in map(json.loads, lines)
    ]


def finish(folder, arguments, *overrides):
    process = start(folder, arguments, *overrides)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    return losses(folder)


def steps_logged(folder):
    path = folder / "log.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_at_random_moments(arguments, tmp_path, variant):
    """Every logged number of the pieced-together run equals the uninterrupted run's, to the bit."""
    whole = finish(tmp_path / "whole", arguments, *variant)
    assert [step for step, loss, *_ in whole if loss is not None] == list(range(1, STEPS + 1))
    seed = random.randrange(10**6)
    print(f"random seed {seed}")  # shown when the test fails
    dice = random.Random(seed)
    folder, kills = tmp_path / "killed", 0
    for last in sorted(dice.sample(range(3, STEPS - 5), 3)):
        process = start(folder, arguments, *variant)
        deadline = time.monotonic() + 60
        while steps_logged(folder) < last and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.01))
        process.kill()
        process.communicate()
        # on a busy machine it may have ended before it was hit
        assert process.returncode in (-signal.SIGKILL, 0)
        kills += process.returncode != 0
    assert kills
    assert finish(folder, arguments, *variant) == whole


KILLED_WHILE_SAVING = """
import os, signal, sys, torch
saves = 0
save = torch.save
def write_half(content, file):
    global saves
    saves += 1
    if saves < 4:
        return save(content, file)
    save(content, file)
    file.truncate(file.tell() // 2)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
torch.save = write_half
sys.path.insert(0, os.getcwd())
import train
train.main(sys.argv[1:])
"""


def test_killed_while_writing_a_checkpoint(arguments, tmp_path):
    whole = finish(tmp_path / "whole", arguments)
    folder = tmp_path / "killed"
    process = start(folder, arguments, program=("-c", KILLED_WHILE_SAVING))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert list((folder / "ckpt").glob("*.tmp"))
    newest = checkpoint.load(checkpoint.find(folder))["step"]
    assert 0 < newest < max(step for step, *_ in losses(folder)) + 1
    assert finish(folder, arguments) == whole
    assert not list((folder / "ckpt").glob("*.tmp"))
