"""train.py: what a run does and leaves behind, and what it refuses."""

import dataclasses
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from corpus.loader import Dataset
from models import compilation
from reports import picture
from tests.training.records import losses
from tests.training.refusals import refused
from training import checkpoint, hardware, log, trainer
from training.config import TrainConfig
from training.distributed import Ranks
from training.evaluation import evaluate
from training.log import draw_losses

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.pictures
def test_a_run_learns_and_leaves_a_complete_folder(run, dataset):
    folder, records = run("a", "--max_iters=60")
    assert sorted(p.name for p in folder.iterdir()) == [
        ".lock",
        "ckpt",
        "config.json",
        "given.json",
        "log.jsonl",
        "loss.png",
    ]
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert config.keys() == {f.name for f in dataclasses.fields(TrainConfig)}
    assert config["vocab_size"] == 257  # from the data
    content = checkpoint.load(checkpoint.find(folder))
    assert content["config"] == config
    assert content["step"] == 60
    training = [r for r in records if "loss" in r]
    evaluations = [r for r in records if "val_loss" in r]
    assert [r["step"] for r in training] == list(range(1, 61))
    assert [r["step"] for r in evaluations] == list(range(0, 61, 10))
    assert training[0].keys() == {
        "step", "tokens", "seconds", "loss", "learning_rate", "grad_norm", "tokens_per_second",
        "peak_memory",
    }  # fmt: skip
    assert training[0]["tokens"] == 4 * 2 * 32
    assert evaluations[0]["val_loss"] == pytest.approx(math.log(257), abs=0.1)
    assert evaluations[-1]["val_loss"] < evaluations[0]["val_loss"] - 1
    assert evaluations[-1]["val_perplexity"] == pytest.approx(math.exp(evaluations[-1]["val_loss"]))
    seconds = [r["seconds"] for r in training]
    assert seconds == sorted(seconds)
    assert (folder / "ckpt" / "best.pt").is_file()


def test_bits_per_byte_counts_the_bytes_of_the_targets(dataset, build):
    """A byte is a token here, so bits per byte = loss / ln 2 x tokens / (tokens - end-of-texts)."""
    model = build(vocab_size=257)
    data = Dataset(dataset, "val", 17)
    windows = data.validation_windows(11)
    result = evaluate(model, windows, data.target_bytes(windows), 4, "float32", Ranks())
    with torch.no_grad():
        rows = torch.from_numpy(windows)
        loss = model.eval()(rows[:, :-1], rows[:, 1:]).item()
    targets = windows[:, 1:]
    assert result["val_loss"] == pytest.approx(loss, rel=1e-5)
    expected = loss / math.log(2) * targets.size / (targets != 256).sum()
    assert result["val_bits_per_byte"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_does_not_depend_on_the_micro_batch(run):
    _, a = run("a", "--max_iters=5", "--batch_size=8", "--gradient_accumulation_steps=1")
    _, b = run("b", "--max_iters=5", "--batch_size=2", "--gradient_accumulation_steps=4")
    for x, y in zip(losses(a), losses(b), strict=True):
        assert np.allclose(*(np.array(v, dtype=float) for v in (x, y)), rtol=1e-4, equal_nan=True)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(run):
    a, b, c = (
        run(name, f"--seed={seed}", "--max_iters=5")[1] for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    )
    assert losses(a) == losses(b) != losses(c)


def test_an_output_folder_that_cannot_be_written_is_refused(arguments, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for out_dir in ("/proc/no/run", tmp_path / "file" / "run"):
        assert "cannot be made" in refused(capsys, arguments, f"--out_dir={out_dir}")


def test_data_that_cannot_serve_is_refused_before_anything_is_written(arguments, capsys, tmp_path, dataset):
    out = tmp_path / "out"
    for overrides, message in [
        ([f"--dataset={tmp_path / 'nowhere'}"], "is not a prepared data set"),
        (["--batch_size=100000"], "fewer than the 200,000 of one step"),
        (["--block_size=100000"], "windows of block_size=100000"),
        (["--vocab_size=100"], "the vocabulary of"),
    ]:
        assert message in refused(capsys, arguments, f"--out_dir={out}", *overrides)
    cut = tmp_path / "cut"
    cut.mkdir()
    for path in dataset.iterdir():
        (cut / path.name).write_bytes(path.read_bytes())
    whole = (cut / "train.bin").read_bytes()
    (cut / "train.bin").write_bytes(whole[:-10])
    said = refused(capsys, arguments, f"--out_dir={out}", f"--dataset={cut}")
    assert "it was cut short" in said
    (cut / "train.bin").write_bytes(np.full(len(whole) // 2, 60000, dtype=np.uint16).tobytes())
    said = refused(capsys, arguments, f"--out_dir={out}", f"--dataset={cut}")
    assert "holds token 60000" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--n_embed=3", "unknown key 'n_embed'; did you mean n_embd"),
        ("--max_iters=ten", "max_iters must be of type int, not 'ten'"),
        ("--batch_size=0", "batch_size must be at least 1, not 0"),
        ("--learning_rate=nan", "learning_rate must be finite, not nan"),
        ("--label_smoothing=1", r"label_smoothing .* 1\.0"),
        ("--min_lr=1.0", "min_lr=1.0 is above learning_rate=0.003"),
        ("--optimizer=sgd", "optimizer .*'sgd'"),
        ("--muon_learning_rate=0.01", r"muon_learning_rate=0\.01 .*optimizer=muon"),
        ("--muon_learning_rate=0", "muon_learning_rate must be above 0, not 0"),
        ("--warmup_iters=20", "warmup_iters=20 leaves nothing of max_iters=20"),
        (
            "--dyadic=True",
            "dyadic=True.*attention=softmax.*ffn=mlp",
        ),
        ("--beta2=1.0", r"beta2 .* 1\.0"),
        ("--dtype=float8", "dtype .*'float8'"),
        (
            "--attention=linear",
            "attention .*'linear'",
        ),
    ],
)
def test_unsound_keys_are_refused(arguments, capsys, tmp_path, override, message):
    assert re.search(message, refused(capsys, arguments, f"--out_dir={tmp_path / 'out'}", override))
    assert not (tmp_path / "out").exists()


def test_the_warmup_that_is_advised_is_taken(arguments, capsys, tmp_path):
    keys = ("--lr_schedule=rsqrt", "--max_iters=5", f"--out_dir={tmp_path / 'out'}")
    assert "take --warmup_iters=1, a tenth" in refused(capsys, arguments, "--warmup_iters=5", *keys)
    assert "a tenth" not in refused(capsys, arguments, "--max_iters=-5", f"--out_dir={tmp_path / 'out'}")


def test_a_damaged_checkpoint_is_named(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=5")
    path, best = checkpoint.find(folder), folder / "ckpt/best.pt"
    damaged = path.read_bytes()[:1000]
    best.unlink()
    best.write_bytes(path.read_bytes())  # as where there are no hard links

    def told():
        return refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=5")

    path.write_bytes(damaged)
    assert f"{path} is damaged" in told()
    assert "; move it away, and the run goes on from best.pt" in told()
    best.unlink()
    assert "; move it away, and the run starts" in told()
    best.hardlink_to(path)
    assert "; move it and best.pt, " in told()


def test_a_loss_that_is_not_finite_ends_the_run_before_a_checkpoint(run, tmp_path):
    """Also where no step is logged in between: what is saved is from before."""
    told = r"(?s)loss \S+ and gradient norm \S+ at step 1\b.* a lower learning_rate"
    told += r" than 1e\+30 or grad_clip=1.0 or cf_pole=positive or ladder_lr=0.05$"
    with pytest.raises(SystemExit, match=told):
        run("a", "--learning_rate=1e30", "--grad_clip=0", "--ffn=cffn_product", "--cf_pole=clamp",
            "--log_interval=100", "--checkpoint_interval=1")  # fmt: skip
    for path in (tmp_path / "a" / "ckpt").glob("*.pt"):
        assert all(t.isfinite().all() for t in checkpoint.load(path)["model"].values())


def test_compiled_training_repeats_itself_on_two_threads(run):
    """Inductor's own gradient of an embedding would add in the order in which threads arrive."""
    torch.set_num_threads(2)
    keys = ("--max_iters=12", "--compile=True", "--batch_size=8", "--block_size=64", "--n_embd=64")
    runs = [losses(run(name, *keys, "--dtype=bfloat16")[1]) for name in "ab"]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("native", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_half_precision_is_chosen_where_the_processor_has_it(monkeypatch, native, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native}, raising=False)
    assert hardware.choose_device("cpu") == torch.device("cpu")
    assert hardware.choose_dtype("auto", torch.device("cpu")) == dtype
    assert hardware.choose_dtype("float16", torch.device("cpu")) == "float16"


def test_without_a_compiler_training_goes_on(run, capsys, monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    run("a", "--max_iters=2", "--compile=True")
    said = capsys.readouterr().out
    assert "torch.compile lacks a C++ compiler" in said
    assert "training goes on without it" in said


def test_evaluation_neither_drops_nor_records(dataset, build):
    model = build(vocab_size=257, ffn="cffn_added", cf_eval_clip=True, dropout=0.5).train()
    data = Dataset(dataset, "val", 17)
    windows = data.validation_windows(11)
    ranges = {name: b.clone() for name, b in model.named_buffers()}
    first, second = (
        evaluate(model, windows, data.target_bytes(windows), 4, "float32", Ranks()) for _ in range(2)
    )
    assert first == second
    assert len(ranges) == 4
    assert all(torch.equal(ranges[name], b) for name, b in model.named_buffers())


def test_evaluations_do_not_disturb_training(run):
    """Dropout stays on after an evaluation, and draws the same numbers."""
    keys = ("--max_iters=6", "--dropout=0.5", "--attention=cattn_m", "--ffn=cffn_added")
    _, often = run("often", *keys, "--eval_interval=1")
    _, seldom = run("seldom", *keys, "--eval_interval=100")
    _, none = run("none", *keys[:1], "--dropout=0.0", *keys[2:])
    often, seldom, none = ([r["loss"] for r in records if "loss" in r] for records in (often, seldom, none))
    assert often == seldom
    assert all(a != b for a, b in zip(often, none, strict=True))


def test_dropout_depends_on_seed_and_step():
    masks = set()
    for seed in (1, 2, 1337):
        for step in (0, 1, 2):
            torch.manual_seed(trainer.seed_of(seed, step))
            masks.add(tuple(torch.rand(4).tolist()))
    assert len(masks) == 9


def test_every_key_of_the_optimizer_and_the_precision_acts(run):
    _, base = run("base", "--max_iters=6")
    for key in (
        "weight_decay=5.0", "beta1=0.5", "beta2=0.5", "grad_clip=0.1", "dtype=bfloat16", "min_lr=2e-3",
        "warmup_iters=3", "learning_rate=2e-3",
    ):  # fmt: skip
        _, changed = run(key, "--max_iters=6", f"--{key}")
        assert losses(changed)[-1][2] != losses(base)[-1][2], key
        assert losses(changed)[-1][2] == pytest.approx(losses(base)[-1][2], rel=0.2), key


def test_the_rate_of_muon_acts(run):
    results = []
    for keys in ([], ["--optimizer=muon"], ["--optimizer=muon", "--muon_learning_rate=0.01"]):
        folder, records = run(str(len(results)), "--max_iters=6", *keys)
        results.append(losses(records)[-1][2])
        assert checkpoint.load(checkpoint.find(folder))["config"]["optimizer"] == (
            "muon" if keys else "adamw"
        )
    assert len(set(results)) == 3
    assert results == pytest.approx([results[0]] * 3, rel=0.2)


def test_best_is_the_lowest_validation_loss(run, monkeypatch):
    values = iter([9.0, 3.0, 1.0, 2.0, 1.5])
    result = {"val_perplexity": 1.0, "val_bits_per_byte": 1.0}
    monkeypatch.setattr(trainer, "evaluate", lambda *rest: {"val_loss": next(values), **result})
    folder, _ = run("a", "--max_iters=4", "--eval_interval=1", "--checkpoint_interval=1")
    assert checkpoint.load(folder / "ckpt" / "best.pt")["step"] == 2


def test_rate_and_clock_leave_evaluations_out(run, monkeypatch):
    """A clock that advances one second a reading, and a thousand in each evaluation."""
    now = [0.0]

    def tick():
        now[0] += 1
        return now[0]

    def slow(*rest):
        now[0] += 1000
        return {"val_loss": 1.0, "val_perplexity": 1.0, "val_bits_per_byte": 1.0}

    monkeypatch.setattr(hardware.time, "perf_counter", tick)
    monkeypatch.setattr(trainer, "evaluate", slow)
    _, records = run("a", "--max_iters=4", "--eval_interval=1")
    training = [r for r in records if "loss" in r]
    assert 0 < training[-1]["seconds"] < 100
    for before, after in itertools.pairwise(training):
        seconds = after["seconds"] - before["seconds"]
        assert after["tokens_per_second"] == pytest.approx(256 / seconds)


def test_a_data_set_without_its_parts_is_refused_before_training(arguments, capsys, tmp_path, dataset):
    for name in ("token_bytes.npy", "val.bin"):
        folder = tmp_path / name
        shutil.copytree(dataset, folder)
        (folder / name).unlink()
        said = refused(capsys, arguments, f"--dataset={folder}", f"--out_dir={tmp_path / 'out'}")
        assert name in said
    assert not (tmp_path / "out").exists()


def test_nan_in_the_log_does_not_stop_the_picture(tmp_path):
    records = [{"tokens": n, "loss": float("nan") if n == 3 else 1.0} for n in range(5)]
    picture.write(draw_losses("a", records), tmp_path / "a.png", own=True)
    before = (tmp_path / "a.png").read_bytes()
    picture.write(draw_losses("b", [{"tokens": 1, "val_loss": float("nan")}]), tmp_path / "a.png", own=True)
    assert (tmp_path / "a.png").read_bytes() != before


def test_the_first_losses_of_a_run_from_weights_are_seen():
    """Of a run from scratch they are left out where they would squeeze the rest."""
    records = [{"tokens": 0, "val_loss": 8.0}]
    records += [{"tokens": 10**7 * n, "val_loss": 3.0 - 0.05 * n} for n in range(1, 11)]
    for whole in (False, True):
        (axes,) = draw_losses("a_$1_$2", records, whole).axes
        assert (axes.get_ylim()[1] > 8.0) == whole
        assert 2.2 < axes.get_ylim()[0] < 2.5
        assert axes.get_xlabel() == "million tokens"
        assert [text.get_text() for text in axes.get_legend().texts] == [r"a_\$1_\$2: validation"]


def test_one_training_loss_is_a_point():
    records = [{"tokens": n, "loss": 3.0} for n in range(2)]
    for count, marker in ((1, "o"), (2, "")):
        (line,) = draw_losses("a", records[:count]).axes[0].lines
        assert line.get_marker() == marker


@pytest.mark.pictures
def test_loss_png_of_a_run_from_weights_is_whole(run, monkeypatch):
    asked, draw = [], log.draw_losses
    monkeypatch.setattr(log, "draw_losses", lambda *given: asked.append(given[2]) or draw(*given))
    first, _ = run("first", "--max_iters=2")
    run("second", "--max_iters=2", f"--init_from={first}")
    assert asked == [False, True]


def test_compiled_training_equals_eager_training(run):
    """The real compiler, float32: losses agree to rounding."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    keys = ("--max_iters=4", "--n_layer=1", "--attention=cattn_m", "--ffn=cffn_added")
    _, eager = run("eager", *keys)
    _, compiled = run("compiled", *keys, "--compile=True")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # embedding, block, head
    for a, b in zip(losses(eager), losses(compiled), strict=True):
        assert np.allclose(*(np.array(v, dtype=float) for v in (a, b)), rtol=1e-4, equal_nan=True)


def test_the_script_itself(arguments, tmp_path):
    """As a user calls it: mistakes go to stderr with status 2, nothing else happens."""
    found = subprocess.run(
        [sys.executable, ROOT / "train.py", *arguments, "--nonsense=1"], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "unknown key 'nonsense'" in found.stderr
    assert "Traceback" not in found.stderr


def test_keys_unused_keys_are_announced(run, capsys):
    run("a", "--max_iters=2", "--cf_depth=5", "--rope_base=7", "--n_kv_head=1")
    said = capsys.readouterr().out
    assert (
        "without effect in this model: cf_ladders=3, cf_depth=5, bigbird_block=4, rope_base=7.0\n" in said
    )
    run("b", "--max_iters=2", "--attention=bigbird", "--ffn=cffn_added")
    assert "without effect" not in capsys.readouterr().out
