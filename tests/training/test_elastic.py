"""torchrun starts the ranks again when one has died: from the last checkpoint, to the same losses."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from train import main
from training.distributed import Ranks

ROOT = Path(__file__).resolve().parents[2]


def torchrun(ranks, restarts, *program):
    """-> (exit status, what was printed)"""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    done = subprocess.run(
        [sys.executable, *launcher, f"--max_restarts={restarts}", *map(str, program)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_killed_rank_starts_the_group_again_from_the_last_checkpoint(arguments, tmp_path):
    """In step 7; the losses of all steps are those of a run that nobody killed, to the bit."""
    keys = ["--max_iters=12", "--checkpoint_interval=4", "--eval_interval=5", "--resume=True"]
    keys += ["--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True"]
    whole, killed = ([*arguments, *keys, f"--out_dir={tmp_path / name}"] for name in ("whole", "killed"))
    runs = [{"arguments": whole}, {"arguments": killed, "die": 7, "answer_seconds": 2}]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    watched = ROOT / "tests" / "training" / "watched_train.py"
    status, printed = torchrun(2, 1, watched, tmp_path / "runs.json")
    assert status == 0, printed
    assert re.search(r"did not arrive at step 7 \(.*\); rank 1 is dead or hanging", printed)
    assert "restart 1 of at most 1, with 2 ranks" in printed
    assert f"resuming from {tmp_path}/killed/ckpt/step_00000005.pt, step 5 of 12" in printed
    whole, killed = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "killed")
    )
    assert len(whole) == len(killed) == 12 + 4
    for one, other in zip(whole, killed, strict=True):
        for key in ("step", "tokens", "loss", "grad_norm", "val_loss"):
            assert one.get(key) == other.get(key), (one["step"], key)


def test_only_what_a_restart_may_mend_is_restarted(tmp_path):
    """A bug or a dead process is; what the program says itself, the second time, is not."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import os; from training.distributed import ends_process\n"
        "with ends_process():\n"
        "    print('started', flush=True)\n"
        "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        raise ValueError('a bug')\n"
        "    sys.exit('no data')\n"
    )
    status, printed = torchrun(1, 3, program)
    assert status != 0
    assert printed.count("ValueError: a bug") == 1
    assert printed.count("started") == 2
    assert printed.count("no data\n") == 1


def test_restarts_need_resume(arguments, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--max_restarts=3" in capsys.readouterr().err


def test_a_smaller_group_must_divide_the_micro_batches(arguments, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit):
        main([*arguments, "--resume=True", "--gradient_accumulation_steps=8"])
    said = capsys.readouterr().err
    assert "WORLD_SIZE=3 does not divide it: take 6 or 9" in said


def meet(store, world, seconds=10.0):
    """The names that the ranks of one start agree on, each in a thread."""
    names = [None] * world

    def come(number):
        ranks = Ranks()
        ranks.rank, ranks.world = number, world
        names[number] = ranks._meeting(store, seconds)

    threads = [threading.Thread(target=come, args=(number,)) for number in reversed(range(world))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return names


def test_a_meeting_ignores_what_dead_ranks_left_in_the_store():
    """torchrun keeps its store when it starts the ranks again."""
    store = dist.HashStore()
    found = [set(meet(store, world)) for world in (3, 3, 2, 4)]
    assert [len(names) for names in found] == [1] * 4
    assert len(set.union(*found)) == 4
    absent = Ranks()
    absent.world = 3
    with pytest.raises(RuntimeError, match="rank 1 did not come"):
        absent._meeting(store, 0.1)
