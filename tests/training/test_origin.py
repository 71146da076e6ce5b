"""A checkpoint or a log that another run has written, in the place of the run's own; a log cut short."""

import shutil

import pytest

import sample
from train import main
from training import checkpoint, pretrained
from training.checkpoint import CheckpointError
from training.log import read_log


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
    with pytest.raises(CheckpointError, match=r"best\.pt is not of this run: its"):
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
    with pytest.raises(CheckpointError, match=r"step 7, .*log\.jsonl .*step 2\b"):
        pretrained.open_source(str(folder))
    pretrained.open_source(str(folder), which="last")


def resumed(folder, *keys):
    main([f"--out_dir={folder}", "--resume=True", *keys])


@pytest.mark.parametrize("name", ["ckpt/step_00000004.pt", "log.jsonl"])
def test_files_of_a_run_with_another_learning_rate_are_refused(run, name):
    """Two runs of a sweep: a resumed run may change its learning rate, and is still no other run."""
    keys = ("--max_iters=4", "--eval_interval=2", "--checkpoint_interval=2")
    folder, other = (run(f"rate{r}", *keys, f"--learning_rate={r}", "--min_lr=0")[0] for r in (1e-3, 2e-3))
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    shutil.copy(other / name, folder / name)
    if name == "log.jsonl":  # best.pt has a message of its own
        (folder / "ckpt" / "best.pt").unlink()
    with pytest.raises(SystemExit, match=r"step_00000004\.pt .*: the lowest"):
        resumed(folder, "--max_iters=6")
    (folder / name).write_bytes(before)
    resumed(folder, "--max_iters=6")


def test_a_log_that_was_cut_short_is_refused_and_one_that_is_gone_is_told(run, capsys):
    folder, _ = run("a", "--max_iters=10")
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    for kept in ("".join(lines[:7]), "".join(lines[:11]) + lines[11][:9]):
        log.write_text(kept)
        with pytest.raises(SystemExit, match=r"log\.jsonl has \d+ records .* 12 "):
            resumed(folder, "--max_iters=12")
        assert log.read_text() == kept
    log.unlink()
    resumed(folder, "--max_iters=12")
    told = "log.jsonl has no records before step 10: it begins there"
    assert f"  {told}\n" in capsys.readouterr().out
    first, *_ = read_log(folder)
    assert first["resumed"]["log.jsonl"] == told
    resumed(folder, "--max_iters=13")
    assert read_log(folder)[-1]["step"] == 13
