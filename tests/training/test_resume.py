"""A run killed with SIGKILL, as often as one likes, ends as if nothing had happened."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train
from tests.training.test_distributed import train_watched
from training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
KEYS = [f"--max_iters={STEPS}", "--checkpoint_interval=3", "--dropout=0.1", "--dtype=bfloat16"]
LADDERS = ["--attention=cattn_m", "--ffn=cffn_product", "--cf_eval_clip=True", "--dyadic=True"]
VARIANTS = [(1, LADDERS), (2, [*LADDERS, "--activation_checkpointing=True"])]


def start(folder, arguments, *overrides, program=(ROOT / "train.py",), ranks=1):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command = [
        sys.executable,
        *(launcher if ranks > 1 else []),
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


def ranks_of(process):
    """The process ids of a run's ranks: torchrun's children, or the process itself."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [pid for pid in children if "train.py" in Path(f"/proc/{pid}/cmdline").read_text()]
    return [int(pid) for pid in found] or [process.pid]


def losses(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [
        (r["step"], r.get("loss"), r.get("val_loss"), r.get("grad_norm")) for r in map(json.loads, lines)
    ]


def finish(folder, arguments, *overrides, ranks=1):
    """To the end: one rank in this process, several ones forked."""
    keys = [*arguments, *KEYS, *overrides, "--resume=True"]
    if ranks == 1:
        train.main([*keys, f"--out_dir={folder}"])
    else:
        train_watched(folder.parent, {ranks: {folder.name: (keys, {})}})
    return losses(folder)


def steps_logged(folder):
    path = folder / "log.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


@pytest.mark.parametrize(("ranks", "variant"), VARIANTS)
def test_killed_at_random_moments(arguments, tmp_path, ranks, variant):
    """Every logged number of the pieced-together run equals the uninterrupted run's, to the bit.

    Of two ranks one is killed; the other ends by itself, and says which one it misses.
    """
    whole = finish(tmp_path / "whole", arguments, *variant, ranks=ranks)
    assert [step for step, loss, *_ in whole if loss is not None] == list(range(1, STEPS + 1))
    dice = random.Random(5)
    folder, kills = tmp_path / "killed", 0
    for last in sorted(dice.sample(range(3, STEPS - 5), 2 if ranks == 1 else 1)):
        # a survivor looks for the others for as long, and three seconds
        process = start(folder, arguments, *variant, "--distributed_timeout=20", ranks=ranks)
        deadline = time.monotonic() + 300  # on a busy machine
        while steps_logged(folder) < last and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.01))
        victim = dice.choice(ranks_of(process)) if process.poll() is None else None
        if victim:
            os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        # on a busy machine it may have ended before it was hit
        assert process.returncode in (-signal.SIGKILL, 0, 1)
        kills += process.returncode != 0
        if ranks > 1 and process.returncode:
            said = rf"did not arrive at .*; rank \d is dead or hanging \(process {victim} on \S+\)"
            assert len(re.findall(said, errors.decode())) == 1, errors.decode()
            # killed as soon as step 3 was logged, it has no checkpoint yet
            assert re.search(r"--resume=True (.* goes on from step_|starts again: )", errors.decode())
            assert "Signal 9 (SIGKILL)" in errors.decode()
    assert kills
    assert finish(folder, arguments, *variant, ranks=ranks) == whole


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
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert list((folder / "ckpt").glob("*.tmp"))
    newest = checkpoint.load(checkpoint.find(folder))["step"]
    assert 0 < newest < max(step for step, *_ in losses(folder)) + 1
    assert finish(folder, arguments) == whole
    assert not list((folder / "ckpt").glob("*.tmp"))
