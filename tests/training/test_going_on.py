"""How a run goes on with --resume, and what keeps its folder from being overwritten."""

import pytest

from tests.training.records import losses
from tests.training.refusals import refused
from train import main
from training import checkpoint, trainer
from training.inputs import saved_config
from training.log import open_run, read_log


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["--dropout=0.2", "--attention=cattn_m", "--ffn=cffn_added", "--dtype=bfloat16"],
        ["--dropout=0.2", "--attention=cattn_u", "--dtype=float16", "--activation_checkpointing=True"],
        [
            "--ffn=cffn_product",
            "--dyadic=True",
            "--max_iters=16",
            "--cf_eval_clip=True",
        ],
        [
            "--optimizer=muon",
            "--attention=cattn_m",
            "--ffn=cffn_product",
            "--dyadic=True",
            "--max_iters=16",
        ],
        ["--optimizer=muon", "--muon_learning_rate=0.01", "--dtype=bfloat16", "--log_interval=6"],
        ["--optimizer=muon", "--dtype=float16"],
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one(run, monkeypatch, keys):
    """Stopped by an exception in the middle of step 8, after the checkpoint of step 5."""
    _, whole = run("whole", *keys)
    real = trainer.learning_rate

    def stop_at_8(step, *rest):
        if step == 8:
            raise RuntimeError("stop")
        return real(step, *rest)

    monkeypatch.setattr(trainer, "learning_rate", stop_at_8)
    with pytest.raises(RuntimeError, match="stop"):
        run("parts", *keys)
    monkeypatch.setattr(trainer, "learning_rate", real)
    _, parts = run("parts", *keys, "--resume=True")
    assert losses(parts) == losses(whole)


def test_a_finished_run_stays_as_it_is(run, capsys):
    folder, before = run("a", "--max_iters=5")
    time = checkpoint.find(folder).stat().st_mtime_ns
    _, after = run("a", "--max_iters=5", "--resume=True")
    assert after == before
    assert checkpoint.find(folder).stat().st_mtime_ns == time


def test_resume_needs_nothing_but_the_folder(run, capsys):
    folder, before = run("a", "--max_iters=5")
    main([f"--out_dir={folder}", "--resume=True", "--keep_checkpoints=1"])
    assert read_log(folder) == before
    main([f"--out_dir={folder}", "--resume=True", "--max_iters=9"])  # not: the default warmup is longer
    assert read_log(folder)[-1]["step"] == 9


def test_resume_from_nothing_starts_from_scratch(run, capsys):
    _, records = run("new", "--max_iters=2", "--resume=True")
    assert [r["step"] for r in records if "loss" in r] == [1, 2]
    assert "holds no checkpoint: starting from scratch" in capsys.readouterr().out


def test_resuming_a_folder_that_is_none_names_its_neighbour(run, capsys, tmp_path):
    """Where nothing else is named; a first start with the same command as a later one is no mistake."""
    run("speeches", "--max_iters=2")
    said = refused(capsys, [], "--resume=True", f"--out_dir={tmp_path / 'speechs'}")
    assert "speechs has no checkpoint to go on from" in said
    assert f"did you mean {tmp_path / 'speeches'}?" in said
    assert saved_config({"resume": True, "out_dir": str(tmp_path / "new"), "n_layer": 2}) is None


def test_resuming_without_config_json_asks_for_it(run, arguments, capsys):
    folder, before = run("a", "--max_iters=5")
    (folder / "config.json").rename(folder.parent / "kept.json")
    said = refused(capsys, [], "--resume=True", f"--out_dir={folder}")
    assert f"{folder} has checkpoints" in said
    assert "did you mean" not in said
    run("a", "--max_iters=5", "--resume=True")
    assert read_log(folder) == before
    assert (folder / "config.json").is_file()


def test_resume_with_another_configuration_is_refused(run, arguments, capsys, tmp_path):
    folder, _ = run("a", "--max_iters=5")
    before = (folder / "config.json").read_bytes(), (folder / "log.jsonl").read_bytes()
    said = refused(
        capsys,
        arguments,
        f"--out_dir={folder}",
        "--resume=True",
        "--max_iters=5",
        "--n_embd=16",
        "--seed=2",
    )
    assert "n_embd was 32, now 16 (" in said
    assert "; seed was 1337, now 2 (" in said
    assert before == ((folder / "config.json").read_bytes(), (folder / "log.jsonl").read_bytes())


def test_resume_on_other_data_is_refused(run, arguments, capsys, tmp_path):
    from corpus.binary import prepare

    folder, _ = run("a", "--max_iters=5")
    texts = [f"text number {n} " * 40 for n in range(100)]
    prepare(lambda: iter(texts), {}, "bytes", tmp_path / "other", 0.2, workers=1)
    said = refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=5",
                   f"--dataset={tmp_path / 'other'}")  # fmt: skip
    assert "holds other data" in said


def test_an_existing_run_folder_is_refused(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=2")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    said = refused(capsys, arguments, f"--out_dir={folder}")
    assert "is not empty" in said
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_a_second_process_in_the_same_folder_is_refused(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=2")
    with open_run(folder, resume=True):
        said = refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=2")
    assert "another process is training in" in said


def test_resume_never_loses_a_log(run, arguments, capsys, tmp_path):
    """No checkpoint to go on from: the log of the lost run is kept under another name."""
    folder, _ = run("a", "--max_iters=5")
    old = (folder / "log.jsonl").read_bytes()
    keys = (f"--out_dir={folder}", "--resume=True", "--max_iters=5")
    for path in (folder / "ckpt").glob("*.pt"):
        path.unlink()
    main([*arguments, *keys])
    assert (folder / "log.1.jsonl").read_bytes() == old
    (folder / "log.jsonl").write_bytes(old.replace(b'{"step": 2,', b"garbage", 1))
    assert "log.jsonl, line " in refused(capsys, arguments, *keys)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "log.jsonl").write_text("precious")
    said = refused(capsys, arguments, f"--out_dir={foreign}", "--resume=True")
    assert "holds files but no run" in said
    assert (foreign / "log.jsonl").read_text() == "precious"


def test_best_alone_is_enough_to_go_on(run):
    """What a kill between the two names of the very first checkpoint leaves behind."""
    _, whole = run("whole")
    folder, _ = run("cut", "--keep_checkpoints=9")
    for path in checkpoint.numbered(folder / "ckpt"):
        if path.name == "step_00000010.pt":
            path.replace(folder / "ckpt" / "best.pt")
        else:
            path.unlink()
    _, again = run("cut", "--keep_checkpoints=9", "--resume=True")
    assert losses(again) == losses(whole)


@pytest.mark.parametrize(("form", "name"), [("whole", "best.pt"), ("sharded", "best_00000020")])
def test_going_back_says_what_becomes_of_a_later_best_checkpoint(run, capsys, form, name):
    """It stays where later losses are not below what the earlier checkpoint knows, and is replaced else."""
    keys = ("--keep_checkpoints=9", f"--checkpoint_format={form}", "--resume=True")
    folder, records = run("a", *keys)
    known, best = (r["val_loss"] for r in records if r.get("val_loss") and r["step"])
    assert best < known
    assert "replaces it" not in capsys.readouterr().out

    def back(*changes):
        for path in checkpoint.numbered(folder / "ckpt"):
            if checkpoint.step_of(path) > 10:
                path.rename(folder / f"{path.name} {len(changes)}")
        run("a", *keys, *changes)
        return (
            f"  {folder}/ckpt/{name} is of step 20 (validation loss {best:.4f}), and the steps after 10 "
            f"are made again: the next evaluation below {known:.4f} replaces it. Copy it to keep it\n"
        ) in capsys.readouterr().out

    assert back("--max_iters=15", "--learning_rate=3")
    kept = checkpoint.find(folder, "best")
    assert (kept.name, checkpoint.load(kept)["step"]) == (name, 20)
    assert back("--max_iters=15")
    assert checkpoint.load(checkpoint.find(folder, "best"))["step"] == 15
