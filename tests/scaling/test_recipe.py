"""How a family at a size is trained."""

import pytest

from scaling.recipe import moved_rate, steps
from scaling.sizing import parse
from training.config import TrainConfig


def test_rates_move_with_the_width():
    assert moved_rate(8e-3, 128, 384, 1.0) == 2.67e-3
    assert moved_rate(8e-3, 128, 512, 0.5) == 4e-3
    assert moved_rate(8e-3, 128, 512, 0.0) == 8e-3


def test_the_configuration_of_a_run(study):
    made = study("--sizes=20K,80K", "--seeds=5", "--rates=4e-3", "--weight_decay=0.3")
    dense, ladders = made.families
    small, large = made.sizes
    (run,) = made.runs_at(dense, large)
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
    (other,) = made.runs_at(ladders, large)
    assert (other.config["ffn"], keys["ffn"]) == ("cffn_gated", "mlp")
    assert (other.config["dyadic"], keys["dyadic"]) == (True, False)
    assert other.tokens == run.tokens  # the same batches
    (short,) = made.runs_at(dense, small)
    assert short.config["max_iters"] == 155  # 40,000 / 256 = 156.25
    made.state["seconds"][dense.name] = {large.label: 0.01}
    (run,) = made.runs_at(dense, large)
    assert run.work(run.tokens) == pytest.approx(0.01 * 160_000 / 3600)


def test_the_warmup_is_at_most_a_tenth_of_the_run(study):
    made = study("--sizes=20K", "--rates=4e-3", "--warmup_iters=12")
    (run,) = made.runs_at(made.families[0], made.sizes[0])[:1]
    assert (run.config["max_iters"], run.config["warmup_iters"]) == (155, 12)
    made = study("--sizes=20K", "--rates=4e-3", "--warmup_iters=100")
    (run,) = made.runs_at(made.families[0], made.sizes[0])[:1]
    assert run.config["warmup_iters"] == 15
    made = study("--sizes=20K", "--rates=4e-3", "--lr_schedule=rsqrt", "--batch_size=120")
    (run,) = made.runs_at(made.families[0], made.sizes[0])[:1]
    assert (run.config["max_iters"], run.config["warmup_iters"]) == (5, 1)  # rsqrt needs one


def test_a_run_has_the_nearest_number_of_fifths():
    config = TrainConfig(batch_size=4, gradient_accumulation_steps=1, block_size=64)
    assert [steps(config, parse(size), 20.0) for size in ("1K", "19K", "20K")] == [80, 1485, 1560]


def test_muons_rate_keeps_its_ratio(study):
    made = study("--sizes=20K,80K", "--rates=4e-3", "--optimizer=muon", "--muon_learning_rate=2e-2")
    family = made.families[0]
    for size in made.sizes:
        run, *_ = made.runs_at(family, size)
        found = run.config["muon_learning_rate"] / run.config["learning_rate"]
        assert found == pytest.approx(2e-2 / family.config.learning_rate, rel=0.01)
