"""Training on pairs: all targets of a step count alike, on any number of ranks, and after a resume."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch

import ablate
from corpus.binary import prepare
from corpus.loader import batch_of
from corpus.pairs import PairDataset
from models import compilation
from tests.corpus.test_pairs import pairs_of
from tests.training.records import losses
from tests.training.test_distributed import records, train_watched
from train import main
from training.distributed import Ranks
from training.evaluation import evaluate

# micro-batches that do not divide the chunks of similar lengths
KEYS = ["--batch_size=6", "--block_size=40", "--eval_tokens=4000", "--eval_interval=10"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "set"
    prepare(lambda: pairs_of(600), {"made": "up"}, "bytes", out, 0.2, 1, pairs=True)
    return out


def test_the_loss_is_the_mean_over_all_targets_of_a_step(run, pairs):
    _, found = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=4", "--log_interval=1")
    # one micro-batch as large as the two, without another change
    large = ["--batch_size=12", "--gradient_accumulation_steps=1"]
    _, whole = run("b", *KEYS, f"--dataset={pairs}", "--max_iters=4", "--log_interval=1", *large)
    for one, other in zip(found, whole, strict=True):
        assert one["tokens"] == other["tokens"]
        for key in {"loss", "grad_norm", "val_loss"} & one.keys():
            assert one[key] == pytest.approx(other[key], rel=2e-5)
    data = PairDataset(pairs, "train", 40)
    tokens = [record["tokens"] for record in found if "loss" in record]
    assert tokens == [data.targets(0, 12 * step, 1337) for step in range(1, 5)]
    assert "mfu" not in found[-1]


def test_evaluation_scores_each_target_once(build, pairs):
    model = build(vocab_size=257, block_size=40).eval()
    windows = PairDataset(pairs, "val", 40).validation_windows(10**6)
    nats = count = 0
    for row in windows:
        tokens, targets = batch_of(row[None, : np.flatnonzero(~row.mask)[-1] + 1])
        n = int((targets >= 0).sum())
        nats += model(tokens, targets).double().item() * n
        count += n
    for batch_size in (1, 7, 500):
        found = evaluate(model, windows, count, batch_size, "float32", Ranks())
        assert found["val_loss"] == pytest.approx(nats / count, rel=1e-6)
        assert found["val_bits_per_byte"] == pytest.approx(nats / count / math.log(2), rel=1e-6)
    half = np.arange(len(windows) // 3)
    parts = {"a": half, "b": np.arange(len(half), len(windows))}
    found = evaluate(model, windows, count, 7, "float32", Ranks(), parts)
    assert found["val_loss"] == pytest.approx(nats / count, rel=1e-6)


@pytest.mark.parametrize("keys", [[], ["--score_source=True"], ["--attention=cattn_m", "--ffn=cffn_gated"]])
def test_it_learns_and_resumes_to_the_bit(run, pairs, keys):
    keys = [
        *KEYS,
        *keys,
        f"--dataset={pairs}",
        "--dropout=0.1",
        "--checkpoint_interval=6",
        "--keep_checkpoints=9",
    ]
    folder, whole = run("a", *keys, "--max_iters=20")
    assert losses(whole)[-1] != losses(whole)[0]
    values = [record["val_loss"] for record in whole if "val_loss" in record]
    assert values[-1] < values[0] - 0.5
    for path in (folder / "ckpt").iterdir():
        if path.name != "step_00000006.pt":
            path.unlink()
    main([f"--out_dir={folder}", "--resume=True"])
    again = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert losses(again) == losses(whole)
    assert [r["tokens"] for r in again] == [r["tokens"] for r in whole]


def test_a_resumed_run_cannot_score_others(run, pairs, capsys):
    folder, _ = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=2")
    with pytest.raises(SystemExit) as stop:
        main([f"--out_dir={folder}", "--resume=True", "--max_iters=4", "--score_source=True"])
    assert "score_source was False, now True (" in str(stop.value.code)


def test_what_a_run_says_of_pairs(run, pairs, dataset, tmp_path, capsys):
    run("a", *KEYS, f"--dataset={pairs}", "--max_iters=2")
    said = capsys.readouterr().out
    data = PairDataset(pairs, "train", 40)
    out = f"{data.n_windows} training pairs ({data.left_out} longer than block_size=40 are left out)"
    assert f"data: {pairs}, {out}, vocabulary 257" in said
    assert f"run: 2 steps of 12 pairs, 24 in all ({24 / data.epoch:.2f} epochs), on cpu" in said
    other = tmp_path / "other"
    shutil.copytree(pairs, other)
    _, found = run("b", *KEYS, f"--dataset={pairs}:2,{other}:1", "--max_iters=2")
    assert f"0.3333 {other}, {out}" in capsys.readouterr().out
    assert {"val_loss_set", "val_loss_other"} <= found[0].keys() or "val_loss" in found[0]
    with pytest.raises(SystemExit) as stop:
        run("c", *KEYS, "--score_source=True")
    assert f"score_source=True, but {dataset} holds texts" in str(stop.value.code)


def test_a_dry_run_names_the_longest_pair(arguments, pairs, capsys, monkeypatch):
    monkeypatch.setattr("training.dry_run.activations", lambda *keys, **more: 0)
    main([*arguments, *KEYS, f"--dataset={pairs}", "--dry_run=True"])
    assert "as if each pair had 40 tokens" in capsys.readouterr().out


def test_an_ablation_on_pairs(pairs, arguments, here, tmp_path, capsys):
    keys = [*arguments, *KEYS, f"--dataset={pairs}", "--max_iters=2", "--parallel=1"]
    with pytest.raises(SystemExit) as stop:
        ablate.main(["config/gpt2.py", *keys, "--seeds=1,2", f"--out_dir={tmp_path / 'ablation'}"])
    assert stop.value.code == 0
    assert len(here) == 2
    # the bar counts tokens of full windows, which the log of a run on pairs does not have
    assert re.search(r"100%\|█+\| 1.92k/1.92k \[", capsys.readouterr().err)


def test_two_ranks_train_as_one(pairs, tmp_path):
    keys = {
        "dataset": pairs, "n_layer": 1, "n_head": 2, "n_embd": 16, "max_iters": 6, "warmup_iters": 1,
        "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1, "checkpoint_interval": 4, "device": "cpu",
        "gradient_accumulation_steps": 4, "dtype": "float32", "compile": False,
    }  # fmt: skip
    arguments = [*KEYS, *(f"--{key}={value}" for key, value in keys.items())]
    train_watched(tmp_path, {1: {"one": (arguments, {})}, 2: {"two": (arguments, {})}})
    one, two = (records(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert a["tokens"] == b["tokens"]
        for key in {"loss", "grad_norm", "val_loss"} & a.keys():
            assert b[key] == pytest.approx(a[key], rel=2e-5), (a["step"], key)


def test_compiled_for_every_width(build):
    """More widths than torch.compile would compile by itself."""
    torch._dynamo.reset()  # the limit counts what other tests have compiled, too
    model = build(n_layer=1, block_size=64, n_embd=12, n_head=1)
    compilation.compile_parts(model, backend="eager", shapes=12)
    for width in range(20, 32):
        tokens = torch.randint(100, (2, width))
        with compilation.eager():
            expected = model(tokens, tokens)
        assert torch.allclose(model(tokens, tokens), expected)
