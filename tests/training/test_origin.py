"""A best.pt that another run has written, in the place of the run's own."""

import shutil

import pytest

import sample
from train import main
from training import checkpoint, pretrained
from training.checkpoint import CheckpointError


@pytest.fixture
def folder(run):
    """A run that was evaluated at steps 0 and 2."""
    return run("own", "--max_iters=2", "--eval_interval=2", "--checkpoint_interval=2")[0]


def test_the_best_checkpoint_of_another_run_is_refused(run, folder):
    own = folder / "ckpt" / "best.pt"
    pretrained.open_source(str(folder))
    other, _ = run("other", "--seed=2", "--max_iters=2", "--eval_interval=2")
    kept = own.rename(folder / "kept.pt")
    shutil.copy(other / "ckpt" / "best.pt", own)
    with pytest.raises(CheckpointError, match=r"best\.pt is not of this run: its validation loss"):
        pretrained.open_source(str(folder))
    with pytest.raises(SystemExit, match="is not of this run"):
        sample.main([str(folder), "--max_new_tokens=1"])
    sample.main([str(folder), "--max_new_tokens=1", "--which=last"])
    for path in checkpoint.numbered(folder / "ckpt"):
        path.unlink()
    with pytest.raises(SystemExit, match="is not of this run"):
        main([f"--out_dir={folder}", "--resume=True"])
    kept.replace(own)
    pretrained.open_source(str(folder))


def test_what_the_log_tells(folder):
    """A step that the run has not seen is refused; a log that is damaged or not whole tells nothing."""
    best, log = folder / "ckpt" / "best.pt", folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    for content in ("".join(lines[-1:]), "damaged\n" * 3, ""):
        log.write_text(content)
        pretrained.open_source(str(folder))
    log.unlink()
    pretrained.open_source(str(folder))
    log.write_text("".join(lines))
    content = checkpoint.load(best)
    best.unlink()
    checkpoint.save(folder / "ckpt", 7, {**content, "step": 7}, keep=9, best=True)
    with pytest.raises(CheckpointError, match=r"at step 7, where .*log\.jsonl has no evaluation"):
        pretrained.open_source(str(folder))
