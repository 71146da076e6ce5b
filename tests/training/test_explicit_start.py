"""Runs of model=saffu: their start, its end by a kill or a signal, and what the scripts make of them."""

import json
import os
import signal

import pytest
import torch

import ablate
import bench
import compare
import count
import evaluate
import export
import finetune
import sample
import scale
import train
from corpus.loader import Dataset
from models.architecture import ModelConfig
from models.kinds import parameter_counts
from tests.training.test_distributed import train_watched
from training import checkpoint, explicit_start, pretrained, saffu_passes, trainer

ONLY = "--saffu_only=True"


@pytest.fixture
def run(dataset, tmp_path):
    """run("name", "--key=value", ...) trains in this process; returns the run folder and its log."""
    keys = {
        "model": "saffu", "dataset": dataset, "block_size": 32, "saffu_block": 9, "saffu_radius": 4,
        "saffu_block_width": 16, "saffu_radius_width": 10, "saffu_hidden": 24, "saffu_tokens": 20_000,
        "batch_size": 4, "gradient_accumulation_steps": 2, "max_iters": 6, "warmup_iters": 1,
        "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1, "eval_interval": 3, "eval_tokens": 640,
        "checkpoint_interval": 2, "weight_decay": 0.0, "device": "cpu", "dtype": "float32",
        "compile": False,
    }  # fmt: skip

    def trained(name, *overrides):
        folder = tmp_path / name
        train.main([*(f"--{k}={v}" for k, v in keys.items()), f"--out_dir={folder}", *overrides])
        return folder, records(folder)

    return trained


def records(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def without_time(log):
    measured = ("seconds", "tokens_per_second", "peak_memory")
    return [{k: v for k, v in r.items() if k not in measured} for r in log]


def last(folder):
    return checkpoint.load(checkpoint.numbered(folder / "ckpt")[-1])


def same_weights(one, other):
    one, other = last(one)["model"], last(other)["model"]
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def unigram(dataset):
    counts = torch.from_numpy(Dataset(dataset, "train", 32).tokens.astype("int64")).bincount() + 1.0
    p = (counts / counts.sum()).double()
    return -(p * p.log()).sum().item()


def test_a_start_alone(run, dataset, capsys, tmp_path):
    folder, log = run("only", ONLY, "--saffu_tuning=2")
    assert [r["step"] for r in log] == [0, 0, 0]
    assert log[0]["val_loss"] < 0.9 * unigram(dataset)
    assert [path.name for path in checkpoint.numbered(folder / "ckpt")] == ["step_00000000.pt"]
    model, tokenizer = pretrained.load(folder, "last")
    assert model.config.saffu_end_of_text == tokenizer.end_of_text
    windows = torch.from_numpy(Dataset(dataset, "val", 32).validation_windows(20))
    assert model(windows[:, :-1], windows[:, 1:]).item() == pytest.approx(log[-1]["val_loss"], abs=1e-5)
    again, _ = run("again", ONLY, "--saffu_tuning=2")
    assert same_weights(folder, again)
    # what the scripts make of it
    text = f"--texts={dataset / 'val.bin'}"
    sample.main([str(folder), "--max_new_tokens=60", "--device=cpu"])
    assert len((folder / "samples.txt").read_text()) > 60
    evaluate.main([str(folder), text, "--max_tokens=500", "--device=cpu"])
    evaluate.main([str(folder), text, "--task=recall", "--max_tokens=500", "--device=cpu"])
    compare.main([str(folder), f"--plot={tmp_path / 'picture.png'}"])
    assert "| only |" in capsys.readouterr().out
    for script, arguments, told in [
        (evaluate, [str(folder), text, "--task=extrapolation"], "here at most 8 tokens"),
        (export, [str(folder), str(tmp_path / "new")], "is of model=saffu"),
        (finetune, [str(folder), f"--data_dir={tmp_path}"], "describes no text"),
        (sample, [str(folder), "--compile=True", "--device=cpu"], "compile=True is for model=gpt"),
    ]:
        with pytest.raises(SystemExit) as stop:
            script.main(arguments)
        assert told in str(stop.value.code) + capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.main([f"--init_from={folder}", f"--out_dir={tmp_path / 'no'}", f"--dataset={dataset}"])
    assert "the weights of model=gpt" in capsys.readouterr().err


def test_training_follows_and_embeddings_stay(run):
    folder, log = run("warm")
    cold_folder, cold = run("cold", "--saffu_init=random")
    warm = [r["val_loss"] for r in log if "val_loss" in r]
    assert len(warm) == 3
    assert warm[0] < next(r["val_loss"] for r in cold if "val_loss" in r) - 0.5
    before, _ = run("only", ONLY)
    before, after, never = (last(one)["model"] for one in (before, folder, cold_folder))
    for number in range(2):
        name = f"units.{number}"
        assert torch.equal(before[f"{name}.embedding"], after[f"{name}.embedding"])
        assert torch.equal(before[f"{name}.embedding"], never[f"{name}.embedding"])
        assert not torch.equal(before[f"{name}.decoder"], after[f"{name}.decoder"])
    moved, _ = run("moved", "--saffu_train_embeddings=True")
    assert not torch.equal(before["units.0.embedding"], last(moved)["model"]["units.0.embedding"])


def test_a_run_goes_on_after_its_start(run):
    whole, log = run("whole")
    parts, _ = run("parts", ONLY)
    _, found = run("parts", "--resume=True", "--saffu_only=False")
    assert without_time([r for r in found if "resumed" not in r]) == without_time(log)
    assert same_weights(whole, parts)
    with pytest.raises(SystemExit, match=r"saffu_tokens was 20000, now 10000"):
        run("parts", "--resume=True", "--saffu_tokens=10000")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", [2, 5, 9, 12])
def test_a_kill_within_a_pass_changes_nothing(run, monkeypatch, when):
    keys = ("--saffu_tuning=1", "--max_iters=2", "--eval_interval=2")
    monkeypatch.setattr(saffu_passes, "CHUNK_TOKENS", 8192)  # three chunks
    whole, log = run("whole", *keys)
    with monkeypatch.context() as patch:
        patch.setattr(explicit_start, "SAVE_SECONDS", -1)
        real, saves = explicit_start._save, []

        def save(*given):
            real(*given)
            saves.append(1)
            if len(saves) == when:
                raise Killed

        patch.setattr(explicit_start, "_save", save)
        with pytest.raises(Killed):
            run("killed", *keys)
    killed, found = run("killed", *keys, "--resume=True")
    assert without_time(found) == without_time(log)
    assert same_weights(killed, whole)


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_a_signal_within_a_pass_ends_the_run_with_a_checkpoint(run, monkeypatch, form):
    keys = (ONLY, f"--checkpoint_format={form}")
    monkeypatch.setattr(saffu_passes, "CHUNK_TOKENS", 8192)
    whole, _ = run("whole", ONLY)
    real, calls = saffu_passes.Pass.add, []

    def add(self, *given):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(saffu_passes.Pass, "add", add)
        with pytest.raises(SystemExit) as stop:
            run("stopped", *keys)
    assert stop.value.code == 128 + signal.SIGTERM
    folder, _ = run("stopped", *keys, "--resume=True")
    model, other = pretrained.load(folder, "last")[0], pretrained.load(whole, "last")[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_damaged_sum_is_noticed(run, monkeypatch, tmp_path):
    monkeypatch.setattr(saffu_passes, "CHUNK_TOKENS", 8192)
    monkeypatch.setattr(explicit_start, "SAVE_SECONDS", -1)
    real = explicit_start._save

    def save(*given):
        real(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(explicit_start, "_save", save)
        with pytest.raises(Killed):
            run("killed", ONLY)
    (path,) = checkpoint.numbered(tmp_path / "killed" / "ckpt")
    content = path.read_bytes()
    sums = checkpoint.load(path)["start"]["sums"]["targets"].numpy().tobytes()
    at = content.index(sums)
    path.write_bytes(content[: at + 8] + b"\x01" + content[at + 9 :])
    with pytest.raises(SystemExit, match="damaged"):
        run("killed", ONLY, "--resume=True")


def test_two_ranks_start_as_one(run, tmp_path, dataset):
    """Sums of float64 in another order: equal to rounding. Each rank holds the same weights."""
    one, log = run("one", "--max_iters=2", "--saffu_tuning=1", "--eval_interval=2")
    settings = json.loads((one / "config.json").read_text())
    given = [f"--{key}={value}" for key, value in settings.items() if key not in ("out_dir",)]
    two = tmp_path / "two"
    train_watched(tmp_path, {2: {"two": (given, {})}})
    losses = [[r["val_loss"] for r in found if "val_loss" in r] for found in (log, records(two))]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    one, two = last(one)["model"], last(two)["model"]
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-4, rtol=1e-4)


def test_an_ablation_of_starts(here, dataset, tmp_path, capsys):
    (tmp_path / "a.py").write_text(
        f'model = "saffu"\ndataset = "{dataset}"\nblock_size = 32\nsaffu_block = 9\nsaffu_hidden = 24\n'
        "saffu_tokens = 8000\nsaffu_only = True\nbatch_size = 4\neval_tokens = 640\n"
        'device = "cpu"\ncompile = False\ngradient_accumulation_steps = 1\n'
    )
    folder = tmp_path / "ablation"
    arguments = [str(tmp_path / "a.py"), "--vary=saffu_radius=2,4", f"--out_dir={folder}"]
    with pytest.raises(SystemExit) as stop:
        ablate.main(arguments)
    assert stop.value.code in (0, None)
    assert len(here) == 2
    text = capsys.readouterr().out
    assert text.count("saffu_radius=") >= 2
    with pytest.raises(SystemExit):
        ablate.main(arguments)
    assert len(here) == 2  # done already


def test_what_is_no_solution_ends_the_run(run, monkeypatch):
    def none(self, sums):
        raise ValueError("no entry")

    monkeypatch.setattr(saffu_passes.Pass, "_finish_decoders", none)
    with pytest.raises(SystemExit, match=r"pass 'decoders'.*no entry"):
        run("none", ONLY)


def test_a_start_without_a_finite_loss_ends_the_run(run, monkeypatch):
    real = trainer.evaluate
    monkeypatch.setattr(trainer, "evaluate", lambda *given: real(*given) | {"val_loss": float("nan")})
    with pytest.raises(SystemExit, match="nan after pass 'head'"):
        run("none", ONLY)


def test_ngrams_count_what_the_start_counted(run, dataset, capsys):
    alone, _ = run("alone", ONLY)
    trained, _ = run("trained")
    for folder in (alone, trained):
        text = f"--texts={dataset}/val.bin"
        evaluate.main([str(folder), text, "--ngrams=True", "--device=cpu", "--dtype=float32"])
        assert f"training tokens of {folder.name}, which read 20,000" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_is_traced_to_its_module(run):
    keys = ("--learning_rate=1e38", "--min_lr=1e37", "--grad_clip=0")
    with pytest.raises(SystemExit, match=r"not finite in .*units"):
        run("diverged", *keys)


SIZES = ["block_size=32", "saffu_block=9", "saffu_hidden=24", "vocab_size=300"]


def test_plans_counts_and_speed(tmp_path, capsys):
    file = tmp_path / "a.py"
    file.write_text("\n".join(['model = "saffu"', *SIZES]))
    train.main([str(file), "--dry_run=True", "--dataset=nowhere", "--batch_size=4"])
    planned = capsys.readouterr().out
    count.main([str(file)])
    counted = capsys.readouterr().out
    total = sum(parameter_counts(ModelConfig(model="saffu", **_assigned())).values())
    assert f"{total:,} (" in planned
    assert f"{total:,} " in counted
    assert "sets no size" not in counted
    with pytest.raises(SystemExit, match="need one: take at least 16"):
        train.main(
            [
                str(file),
                "--dry_run=True",
                "--dataset=nowhere",
                "--vocab_size=None",
                "--saffu_radius_width=8",
            ]
        )
    short = ["--repetitions=1", "--seconds=0.01", "--batch_size=2", "--compile=False", "--device=cpu"]
    dense = "config/gpt2.py+config/size/tiny.py"
    bench.main([str(file), dense, "--block_size=32", "--vocab_size=300", *short])
    assert f"| {file} |" in " ".join(capsys.readouterr().out.split())
    bench.main([str(file), "--mode=infer", "--dtype=float32", *short])
    for script, arguments, told in [
        (bench, [str(file), "--mode=infer"], "add --compile=False"),
        (scale, [str(file), "--sizes=1M"], "scale.py takes model=gpt"),
    ]:
        with pytest.raises(SystemExit) as stop:
            script.main(arguments)
        assert told in str(stop.value.code) + capsys.readouterr().err


def _assigned():
    return {key: int(value) for key, value in (size.split("=") for size in SIZES)}


def test_compiled_training_is_the_same(run):
    keys = ("--saffu_block=None", "--max_iters=2")
    _, plain = run("plain", *keys)
    _, compiled = run("compiled", *keys, "--compile=True")
    losses = [[r["loss"] for r in log if "loss" in r] for log in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
