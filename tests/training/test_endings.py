"""How a run ends before its end: signals, full disks, losses that are not finite, memory."""

import copy
import os
import resource
import signal
import sys

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from model import GPT
from tests.training.records import losses
from train import main
from training import checkpoint, stopping, trainer
from training.distributed import Ranks
from training.endings import one_speaks
from training.log import read_log


def interrupt(monkeypatch, step, *signals):
    """These signals arrive while the gradients of a step are made."""
    real = trainer.learning_rate

    def rate(now, *rest):
        if now == step and signals:
            for number in signals:
                os.kill(os.getpid(), number)
        return real(now, *rest)

    monkeypatch.setattr(trainer, "learning_rate", rate)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [7, 9])
def test_a_signal_ends_the_run_with_a_checkpoint(run, monkeypatch, capsys, tmp_path, number, status, step):
    """The step at hand is finished; the rest, an evaluation that was due included, comes on resume."""
    _, whole = run("whole")
    with monkeypatch.context() as patch:
        interrupt(patch, step, number)
        with pytest.raises(SystemExit) as stop:
            run("parts")
    assert stop.value.code == status
    said = capsys.readouterr()
    assert f"stopped at step {step + 1}; --resume=True --out_dir={tmp_path / 'parts'} goes on\n" in said.out
    assert "stopping after this step" in said.err
    _, parts = run("parts", "--resume=True")
    assert losses(parts) == losses(whole)


class KilledError(BaseException):
    """Ends a run as SIGKILL would: nothing catches it."""


def test_a_kill_between_a_late_evaluation_and_its_checkpoint_loses_no_best_one(run, monkeypatch, tmp_path):
    """A signal stops the run at step 10 before its evaluation; the resumed one evaluates, and is killed."""
    keys = ("--max_iters=10", "--checkpoint_interval=10")
    whole, records = run("whole", *keys)
    with monkeypatch.context() as patch:
        interrupt(patch, 9, signal.SIGTERM)
        with pytest.raises(SystemExit):
            run("parts", *keys)
    folder = tmp_path / "parts"
    assert not (folder / "ckpt" / "best.pt").exists()

    def kill(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", kill)
        with pytest.raises(KilledError):
            run("parts", *keys, "--resume=True")
    assert losses(read_log(folder)) == losses(records)
    run("parts", *keys, "--resume=True")
    assert losses(read_log(folder)) == losses(records)
    best = checkpoint.load(folder / "ckpt" / "best.pt")
    assert best["best_val_loss"] == checkpoint.load(whole / "ckpt" / "best.pt")["best_val_loss"]
    assert checkpoint.load(checkpoint.find(folder))["best_val_loss"] == best["best_val_loss"]


def test_signals_of_a_launcher_that_sends_them_twice(run, monkeypatch):
    interrupt(monkeypatch, 3, signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run("a")
    assert stop.value.code == 130
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_ctrl_c_stops_at_once(run, monkeypatch, tmp_path):
    times = iter([0.0, 2.0])
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(times))
    interrupt(monkeypatch, 7, signal.SIGINT, signal.SIGINT)
    with pytest.raises(SystemExit, match=r"interrupted.* step_00000005\.pt"):
        run("a")
    assert checkpoint.find(tmp_path / "a").name == "step_00000005.pt"


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(run, capsys):
    """No file may grow beyond half a checkpoint: the next one fails, and works when there is room again."""
    _, whole = run("whole", "--max_iters=10")
    folder, _ = run("a", "--max_iters=10", "--keep_checkpoints=9")
    (folder / "ckpt" / "step_00000010.pt").unlink()
    (folder / "ckpt" / "best.pt").unlink()
    saved = checkpoint.find(folder)
    content = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, limits[1]))
    try:
        message = r"step_00000010\.pt could not be written"
        with pytest.raises(SystemExit, match=message) as stop:
            main([f"--out_dir={folder}", "--resume=True"])
        assert stop.value.code.endswith(f". --resume=True --out_dir={folder} goes on from {saved.name}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == content
    assert [p.name for p in (folder / "ckpt").iterdir()] == [saved.name]
    main([f"--out_dir={folder}", "--resume=True"])
    assert losses(read_log(folder)) == losses(whole)


def test_a_full_disk_before_the_first_checkpoint(run, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    again = "The same command with --resume=True starts again: there is no checkpoint yet$"
    try:
        with pytest.raises(SystemExit, match=again):
            run("b", "--max_iters=2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run("b", "--max_iters=2", "--resume=True")


def test_a_log_that_cannot_be_written_ends_the_run(run, capsys, tmp_path):
    folder, before = run("a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "log.jsonl").stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(SystemExit, match=r"log\.jsonl .*File too large"):
            main([f"--out_dir={folder}", "--resume=True", "--max_iters=25"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert losses(read_log(folder))[: len(before)] == losses(before)
    main([f"--out_dir={folder}", "--resume=True", "--max_iters=25"])
    assert read_log(folder)[-1]["step"] == 25


def poison(monkeypatch):
    """Step 6 alone meets a loss that is not finite, in its second micro-batch: samples 52 to 55.

    -> the (weights, moments) from before that step, and from where the run ends.
    """
    held, wanted = [], []
    forward, backward, explain = GPT.forward, trainer.Trainer.backward, trainer.Trainer.explain

    def hold(self):
        held.append(copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()["state"]]))

    def poisoned(self, tokens, targets=None):
        loss = forward(self, tokens, targets)
        return loss * torch.nan if wanted and torch.equal(tokens, wanted[0]) else loss

    def watched(self, step):
        if step == 6:
            hold(self)
            wanted.append(self.loader.batch(52)[0])
        return backward(self, step)

    def ended(self, *figures):
        hold(self)
        explain(self, *figures)

    monkeypatch.setattr(GPT, "forward", poisoned)
    monkeypatch.setattr(trainer.Trainer, "backward", watched)
    monkeypatch.setattr(trainer.Trainer, "explain", ended)
    return held


SELDOM = [f"--{key}_interval=100" for key in ("log", "eval", "checkpoint")]


@pytest.mark.parametrize(
    ("keys", "later"),
    [
        (["--log_interval=1", "--checkpoint_interval=3"], 0),
        (["--log_interval=5", "--optimizer=muon", "--checkpoint_interval=6"], 3),
        (["--checkpoint_interval=4"], 1),
        (["--checkpoint_interval=4", "--optimizer=muon", "--dtype=float16"], 1),
        (["--eval_interval=9", "--attention=cattn_m", "--ffn=cffn_added"], 2),
        (["--eval_interval=3", "--log_interval=5", "--dtype=float16"], 2),
        (["--max_iters=12"], 5),
    ],
)
def test_from_a_step_that_is_not_finite_on_nothing_changes(run, monkeypatch, tmp_path, keys, later):
    """Though the steps after it are finite; the run ends at the next record, evaluation or checkpoint."""
    held = poison(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        run("a", *SELDOM, *keys)
    said = str(stop.value.code)
    scale = ", loss scale 65536" if "--dtype=float16" in keys else ""
    nor = f" (nor the {later} after it)" if later else ""
    assert f"loss nan and gradient norm nan{scale} at step 6, which was not made{nor}.\n" in said
    assert "\n  rank 0, samples 52 to 55: loss nan, every output finite" in said
    assert said.count("rank 0") == 1
    (weights, moments), (weights_after, moments_after) = held
    assert all(torch.equal(weights[name], tensor) for name, tensor in weights_after.items())
    for before, after in zip(moments.values(), moments_after.values(), strict=True):
        assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    for path in checkpoint.numbered(tmp_path / "a" / "ckpt"):
        assert checkpoint.load(path)["step"] <= 6
        assert f"the last checkpoint is {path}" in said or path != checkpoint.find(tmp_path / "a")


def test_a_signal_after_a_step_that_is_not_finite_saves_nothing(run, monkeypatch, tmp_path):
    poison(monkeypatch)
    interrupt(monkeypatch, 8, signal.SIGTERM)
    with pytest.raises(SystemExit, match=r"step 6\b.* the 2 after"):
        run("a", *SELDOM)
    assert not (tmp_path / "a" / "ckpt").exists()


def test_out_of_memory_says_what_to_change(run, monkeypatch):
    def allocate(self, step):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(trainer.Trainer, "backward", allocate)
    with pytest.raises(SystemExit, match=r"rank 0 is out of memory"):
        run("a")


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_repeats_a_mistake_of_the_command_line_at_its_end(tmp_path, monkeypatch, capsys, rank):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(Ranks, "let_another_speak", lambda *given, **keys: None)

    def mistake():
        print("train.py: a mistake:\n  --a=1", file=sys.stderr)
        sys.exit(2)

    with pytest.raises(SystemExit), one_speaks(Ranks()):
        mistake()
    said = capsys.readouterr().err
    assert said == ("train.py: a mistake:\n  --a=1\n" if rank == 0 else "")
    assert path.exists() == (rank == 0)
    if rank == 0:
        told = ChildFailedError("train.py", {0: ProcessFailure(0, 1, 2, str(path))}).format_msg()
        assert "train.py: a mistake:\n    --a=1\n====" in told
