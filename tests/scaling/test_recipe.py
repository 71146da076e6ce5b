"""How a family at a size is trained, and that longer runs go on from shorter ones as if alone."""

import json

import pytest
import torch

import train
from ablation import execution
from ablation.plan import PlanError
from scaling.recipe import Scaled, chained, head_start, moved_rate
from training import checkpoint
from training.config import DEFAULTS


def test_rates_move_with_the_width():
    assert moved_rate(8e-3, 128, 384, 1.0) == 2.67e-3
    assert moved_rate(8e-3, 128, 512, 0.5) == 4e-3
    assert moved_rate(8e-3, 128, 512, 0.0) == 8e-3


def test_the_configuration_of_a_run(study):
    made = study("--sizes=20K,80K", "--seeds=5", "--rates=4e-3", "--weight_decay=0.3")
    dense, ladders = made.families
    small, large = made.sizes
    (run,) = made.main_runs(dense, large)
    keys = run.config
    # 160,000 tokens in steps of 256, in whole fifths
    assert (keys["max_iters"], keys["eval_interval"], keys["checkpoint_interval"]) == (625, 125, 125)
    assert run.tokens == 160_000
    assert keys["warmup_iters"] == 2
    assert keys["weight_decay"] == 0.3
    widths = [made.shapes[dense.name, size.label].model.n_embd for size in made.sizes]
    assert keys["learning_rate"] == moved_rate(4e-3, *widths, 1.0)
    # a tenth of it, as in config/gpt2.py
    assert keys["min_lr"] / keys["learning_rate"] == pytest.approx(0.1, rel=0.01)
    (other,) = made.main_runs(ladders, large)
    assert (other.config["ffn"], keys["ffn"]) == ("cffn_gated", "mlp")
    assert (other.config["dyadic"], keys["dyadic"]) == (True, False)
    assert other.tokens == run.tokens  # the same batches
    (short,) = made.main_runs(dense, small)
    assert short.config["max_iters"] == 155  # 40,000 / 256 = 156.25
    made.state["seconds"][dense.name] = {large.label: 0.01}
    (run,) = made.main_runs(dense, large)
    assert run.work(run.tokens) == pytest.approx(0.01 * 160_000 / 3600)


def test_the_warmup_is_at_most_a_tenth_of_the_shortest_run(study):
    made = study("--sizes=20K", "--rates=4e-3", "--tokens_per_parameter=1,4", "--warmup_iters=100")
    runs = made.main_runs(made.families[0], made.sizes[0])
    assert {run.config["warmup_iters"] for run in runs} == {8}
    assert [run.config["max_iters"] for run in runs[:2]] == [80, 310]
    # and stays so for lengths that come later
    made.note(made.known())
    (dense, *_), keys = made.families, ("--sizes=20K", "--warmup_iters=100")
    longer = study(*keys, "--tokens_per_parameter=8")
    assert {run.config["warmup_iters"] for run in longer.main_runs(dense, longer.sizes[0])} == {8}
    with pytest.raises(PlanError, match="with a warmup of 8 steps: too many for 15 steps"):
        study(*keys, "--tokens_per_parameter=0.2")


def test_which_lengths_share_their_steps(study):
    lengths = ("--sizes=20K", "--rates=4e-3", "--tokens_per_parameter=1,2,4", "--seeds=1")
    made = study(*lengths, "--lr_schedule=wsd")
    dense, ladders = (made.main_runs(family, made.sizes[0]) for family in made.families)
    assert [run.after for run in dense] == [None, dense[0].name, dense[1].name]
    assert [run.shared for run in dense] == [0, 64 * 256, 124 * 256]
    assert [run.after for run in ladders] == [None] * 3  # the dyadic schedule
    made = study(*lengths)
    assert [run.after for run in made.main_runs(made.families[0], made.sizes[0])] == [None] * 3


def wsd_run(arguments, steps, name):
    config = {**DEFAULTS, "max_iters": steps, "lr_schedule": "wsd", "dyadic": False}
    own = (f"--max_iters={steps}", "--lr_schedule=wsd", f"--eval_interval={steps // 5}")
    own += (f"--checkpoint_interval={steps // 5}", "--keep_checkpoints=2", "--dropout=0.1")
    config |= {"batch_size": 4, "gradient_accumulation_steps": 2, "block_size": 32}
    return Scaled(name, name, config, "dense", "1K", 1.0, 1), [*arguments, *own]


def test_a_longer_run_goes_on_as_if_alone(arguments, tmp_path):
    """To the bit, with dropout, from the shorter run's checkpoint before its decay."""
    short, short_arguments = wsd_run(arguments, 10, "short")
    long, long_arguments = wsd_run(arguments, 20, "long")
    train.main([*short_arguments, f"--out_dir={tmp_path / 'short'}"])
    train.main([*long_arguments, f"--out_dir={tmp_path / 'alone'}"])
    chained([short, long])
    assert (long.after, long.shared) == ("short", 8 * 256)
    assert head_start(tmp_path, short, long) == 8
    assert head_start(tmp_path, short, long) == 0  # it has begun
    train.main([*long_arguments, f"--out_dir={tmp_path / 'long'}", "--resume=True"])
    ends = [checkpoint.load(tmp_path / name / "ckpt/step_00000020.pt") for name in ("alone", "long")]
    assert all(torch.equal(ends[0]["model"][key], ends[1]["model"][key]) for key in ends[0]["model"])
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("alone", "long")]
    alone, went_on = ({r["step"]: r["loss"] for r in map(json.loads, log) if "loss" in r} for log in logs)
    assert alone == went_on
    assert any("max_iters was 10, now 20" in line for line in logs[1])
    # the shorter run is as it was
    assert [p.name for p in checkpoint.numbered(tmp_path / "short" / "ckpt")] == [
        "step_00000008.pt",
        "step_00000010.pt",
    ]
    assert json.loads((tmp_path / "long" / "config.json").read_text())["max_iters"] == 20


def test_without_the_checkpoint_a_longer_run_starts_anew(tmp_path, arguments):
    short, _ = wsd_run(arguments, 10, "short")
    long, _ = wsd_run(arguments, 20, "long")
    assert head_start(tmp_path, short, long) == 0
    assert not (tmp_path / "long").exists()
    assert execution.steps_so_far(tmp_path / "long") == 0
