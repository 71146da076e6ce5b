"""What a resumed run may change, what that does, and what is refused with which reason."""

import itertools
import json
import shutil
import weakref

import numpy as np
import pytest
import torch

import config_keys
from config_keys import MAKES_THE_MODEL, resume_rule
from models.architecture import ModelConfig
from train import main
from training import checkpoint, trainer
from training.config import TrainConfig
from training.environment import commit


def losses(records):
    return {r["step"]: r["loss"] for r in records if "loss" in r}


def refused(capsys, folder, *overrides):
    with pytest.raises(SystemExit) as stop:
        main([f"--out_dir={folder}", "--resume=True", *overrides])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def resumed(folder, *overrides):
    main([f"--out_dir={folder}", "--resume=True", *overrides])
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_finished_run_goes_on_with_more_steps(run, capsys):
    """The steps that were made stay; the new ones go on in the data, at the rate of the new schedule."""
    folder, first = run("a", "--max_iters=10")
    given = (folder / "given.json").read_text()
    records = resumed(folder, "--max_iters=20")
    assert (folder / "given.json").read_text() == given
    assert records[: len(first)] == first
    (change,) = [r for r in records if "resumed" in r]
    assert change["step"] == 10
    assert "max_iters was 10, now 20" in change["resumed"]["max_iters"]
    assert "max_iters was 10, now 20" in capsys.readouterr().out
    _, longer = run("b", "--max_iters=20")
    rates = [r["learning_rate"] for r in records if r["step"] > 10 and "loss" in r]
    assert rates == [r["learning_rate"] for r in longer if r["step"] > 10 and "loss" in r]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 21))
    assert json.loads((folder / "config.json").read_text())["max_iters"] == 20


def test_with_warmup_stable_decay_the_stable_part_can_go_on_for_ever(run):
    """Stopped before the decay, resumed with more steps: as if they had been asked for at once."""
    keys = ("--lr_schedule=wsd", "--wsd_decay_iters=3", "--checkpoint_interval=8", "--keep_checkpoints=9")
    folder, _ = run("a", "--max_iters=12", *keys)
    for path in (folder / "ckpt").glob("*.pt"):
        if path.name != "step_00000008.pt":
            path.unlink()
    _, whole = run("b", "--max_iters=20", *keys)
    assert losses(resumed(folder, "--max_iters=20")) == losses(whole)


def test_dyadic_wake_times_stay_where_they_were(run, capsys):
    keys = ("--attention=cattn_m", "--ffn=cffn_added", "--dyadic=True")
    folder, _ = run("a", "--max_iters=10", *keys)
    records = resumed(folder, "--max_iters=14")
    assert json.loads((folder / "config.json").read_text())["dyadic_iters"] == 10
    assert records[-1]["step"] == 14
    said = refused(capsys, folder, "--dyadic_iters=14")
    assert "dyadic_iters was 10, now 14 (" in said
    said = refused(capsys, folder, "--dyadic=False")
    assert "dyadic was True, now False (" in said


def test_another_batch_goes_on_at_the_next_unread_sample(run):
    """Ten steps of 8 samples, then five of 16: the same samples as twenty of 8."""
    folder, _ = run("a", "--max_iters=10", "--lr_schedule=wsd")
    records = resumed(folder, "--max_iters=15", "--batch_size=8")
    assert [r["tokens"] for r in records if r["step"] > 10 and "loss" in r] == [
        (80 + 16 * n) * 32 for n in range(1, 6)
    ]
    assert checkpoint.load(checkpoint.find(folder))["samples"] == 160
    (change,) = [r["resumed"] for r in records if "resumed" in r]
    assert change.keys() == {"max_iters", "batch_size"}


def test_the_same_samples_in_other_micro_batches(run):
    """Only rounding differs from the run that was never cut."""
    _, whole = run("whole", "--max_iters=10")
    folder, _ = run("b", "--max_iters=10", "--keep_checkpoints=9")
    (folder / "ckpt" / "step_00000010.pt").unlink()
    (folder / "ckpt" / "best.pt").unlink()
    records = resumed(folder, "--batch_size=2", "--gradient_accumulation_steps=4")
    for step, loss in losses(records).items():
        assert loss == pytest.approx(losses(whole)[step], rel=1e-5)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (
            "seed=2",
            "seed was 1337, now 2 (",
        ),
        ("block_size=16", "block_size was 32, now 16 ("),
        ("n_embd=16", "n_embd was 32, now 16 ("),
        ("norm=rmsnorm", "norm was 'layernorm', now 'rmsnorm' ("),
        ("eval_tokens=320", "eval_tokens was 640, now 320 ("),
        ("max_iters=4", "max_iters=4, but the run has done 5 steps"),
        (
            "optimizer=muon",
            "optimizer was 'adamw', now 'muon' (",
        ),
    ],
)
def test_what_is_refused_says_why(run, capsys, key, reason):
    folder, _ = run("a", "--max_iters=5")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert reason in refused(capsys, folder, f"--{key}")
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_key_that_the_model_does_not_read_may_change(run):
    folder, _ = run("a", "--max_iters=5")
    assert len(losses(resumed(folder, "--max_iters=6", "--cf_pole=clamp"))) == 6


def test_a_start_that_came_to_nothing_leaves_no_trace(run, monkeypatch, tmp_path):
    """No checkpoint: neither the wake times nor the precision of the lost start count."""
    keys = ("--dyadic=True", "--ffn=cffn_added")
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "backward", lambda self, step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("a", "--max_iters=16", "--dtype=auto", *keys)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dyadic_iters"] == 16
    run("a", "--max_iters=12", "--dtype=auto", *keys, "--resume=True")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dyadic_iters"] == 12


def test_the_same_documents_in_another_order_are_other_data(run, dataset, capsys, tmp_path):
    folder, _ = run("a", "--max_iters=5")
    shuffled = tmp_path / "shuffled"
    shutil.copytree(dataset, shuffled)
    tokens = np.fromfile(shuffled / "train.bin", dtype="<u2")
    np.roll(tokens, 12_345).tofile(shuffled / "train.bin")
    said = refused(capsys, folder, f"--dataset={shuffled}", "--max_iters=9")
    assert "holds other data" in said
    moved = tmp_path / "moved"
    shutil.copytree(dataset, moved)
    assert resumed(folder, f"--dataset={moved}", "--max_iters=9")[-1]["step"] == 9


def test_the_checkpoint_is_not_held_in_memory(run, monkeypatch):
    folder, _ = run("a", "--max_iters=5")
    held = []
    real = checkpoint.load

    def load(*arguments):
        content = real(*arguments)
        held.append(weakref.ref(content["model"]["embedding.weight"]))
        return content

    def look(self, step):
        assert held[0]() is None
        return step_before(self, step)

    monkeypatch.setattr(checkpoint, "load", load)
    step_before = trainer.Trainer.backward
    monkeypatch.setattr(trainer.Trainer, "backward", look)
    assert resumed(folder, "--max_iters=7")[-1]["step"] == 7
    assert len(held) == 1


def test_the_scale_of_float16_goes_on(run, monkeypatch):
    """A scale that has fallen, and the count of steps until it grows."""
    real = torch.amp.GradScaler
    options = {"init_scale": 2.0**30, "growth_interval": 12}
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: real(*a, **k, **options))
    keys = ("--dtype=float16", "--lr_schedule=wsd")
    _, whole = run("whole", "--max_iters=40", *keys)
    scales = [r["loss_scale"] for r in whole if "loss" in r]
    assert any(b > a for a, b in itertools.pairwise(scales))
    assert scales[25] < scales[0]
    folder, _ = run("a", "--max_iters=40", *keys, "--keep_checkpoints=99")
    for path in checkpoint.numbered(folder / "ckpt"):
        if path.name > "step_00000025.pt":
            path.unlink()
    (folder / "ckpt" / "best.pt").unlink()
    assert [r["loss_scale"] for r in resumed(folder) if "loss" in r] == scales


def test_changed_optimizer_keys_take_effect(run):
    """The optimizer's state comes from the checkpoint, its decay and betas from the configuration."""
    results = []
    for name, change in (
        ("a", []),
        ("b", ["--weight_decay=5.0"]),
        ("c", ["--beta1=0.5"]),
        ("d", ["--grad_clip=0.01"]),
    ):
        folder, _ = run(name, "--max_iters=5")
        results.append(losses(resumed(folder, "--max_iters=8", *change)))
    assert len({tuple(r.values()) for r in results}) == 4
    assert len({tuple(r[s] for s in range(1, 7)) for r in results}) == 1  # step 7 is the first to see it


def test_the_rate_of_muon_may_change(run):
    folder, _ = run("a", "--max_iters=5", "--optimizer=muon")
    records = resumed(folder, "--max_iters=8", "--muon_learning_rate=0.01")
    (change,) = [r["resumed"] for r in records if "resumed" in r]
    assert change["muon_learning_rate"].startswith("muon_learning_rate was None, now 0.01")
    other, _ = run("b", "--max_iters=5", "--optimizer=muon")
    assert losses(resumed(other, "--max_iters=8"))[8] != losses(records)[8]


@pytest.mark.parametrize("key", ["optimizer", "cf_later"])
def test_a_run_of_another_version_is_refused(run, key):
    """A key less or a key more may be another model."""
    folder, _ = run("a", "--max_iters=5")
    path = checkpoint.find(folder)
    content = checkpoint.load(path)
    if content["config"].pop(key, None) is None:
        content["config"][key] = 3
    torch.save(content, path)
    with pytest.raises(SystemExit, match=f"with .*{key}.*{commit()}"):
        resumed(folder, "--max_iters=8")


def test_every_key_has_a_rule():
    """A new key of a model is refused on resume; whoever declares one of training says what it may do."""
    own = {*config_keys.names(TrainConfig)} - {*config_keys.names(ModelConfig)}
    assert not [key for key in own if resume_rule(TrainConfig, key) == MAKES_THE_MODEL]
    assert resume_rule(TrainConfig, "cf_depth") == MAKES_THE_MODEL


def test_evaluations_with_scaled_positions_after_training_without(run):
    """The ExPE paper's halved columns, tried on a run that was trained with whole ones."""
    folder, before = run("a", "--max_iters=10", "--position=expe", "--expe_theta=0.5")
    still = ("--learning_rate=1e-12", "--min_lr=0.0")
    records = resumed(folder, "--max_iters=11", "--expe_inference_scale=0.5", *still)
    last, scaled = ([r["val_loss"] for r in rs if "val_loss" in r][-1] for rs in (before, records))
    assert scaled != pytest.approx(last, abs=1e-4)
    assert scaled == pytest.approx(last, abs=0.5)


def test_stopped_before_its_last_evaluation_a_run_ends_with_the_same_checkpoint(run, monkeypatch):
    """The last step is not repeated, and what it left in the optimizer stays, its learning rate too."""
    whole, _ = run("whole", "--max_iters=10")
    step = trainer.Trainer.step

    def stopped(self, stop):
        rate, ladders, _ = step(self, stop)
        return rate, ladders, self.progress.step == 10

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "step", stopped)
        with pytest.raises(SystemExit):
            run("stopped", "--max_iters=10")
    folder = whole.parent / "stopped"
    (folder / "ckpt" / "step_00000008.pt.tmp").write_text("what a kill left")
    resumed(folder)
    one, other = (checkpoint.load(path / "ckpt" / "step_00000010.pt") for path in (whole, folder))
    same = ("step", "samples", "best_val_loss")
    assert {key: one[key] for key in same} == {key: other[key] for key in same}
    assert one["optimizer"]["param_groups"] == other["optimizer"]["param_groups"]
    assert not list((folder / "ckpt").glob("*.tmp"))
    resumed(folder)
    (folder / "ckpt" / "best_00000008.tmp").mkdir()
    resumed(folder)  # which saves nothing
    assert not list((folder / "ckpt").glob("*.tmp"))
