"""Ladders in training: the dyadic schedule, decay, learning rate and clip of their own, statistics."""

import pytest
import torch

from corpus.loader import Dataset
from layers.ladder import Fraction
from model import GPT
from models.architecture import model_config
from tests.training.records import losses
from training import checkpoint, trainer
from training.distributed import Ranks
from training.evaluation import evaluate
from training.optimizer import adamw
from training.schedule import Dyadic


def test_dyadic_training_starts_as_if_the_ladders_were_fixed(run):
    """No ladder weight moves in the first half; the end differs from that of an undivided run."""
    keys = ("--attention=cattn_m", "--ffn=cffn_added", "--max_iters=16", "--checkpoint_interval=4")
    folder, dyadic = run("dyadic", *keys, "--dyadic=True", "--keep_checkpoints=9")
    _, plain = run("plain", *keys)
    assert losses(dyadic)[-1] != losses(plain)[-1]
    weights = {n: checkpoint.load(folder / "ckpt" / f"step_{n:08d}.pt")["model"] for n in (4, 8, 12, 16)}
    for name in weights[4]:
        depth = int(name.rpartition(".")[2]) + 1 if ".W." in name or ".b." in name else 0
        same = {n: torch.equal(weights[4][name], weights[n][name]) for n in (8, 12, 16)}
        # wakes at steps 8, 12 and 14
        assert same == {0: {8: False, 12: False, 16: False}, 1: {8: True, 12: False, 16: False}}.get(
            depth, {8: True, 12: True, 16: False}
        ), name


def test_the_wake_table_is_printed(run, capsys):
    run("a", "--max_iters=6", "--ffn=cffn_gated", "--dyadic=True", "--dyadic_iters=4")
    said = capsys.readouterr().out
    assert "depth 1:          198 parameters wake at step         2 and get         4 updates" in said
    assert "depth 3:          198 parameters wake at step         4 and get         2 updates" in said


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_sleeping_depths_reach_nothing(run, monkeypatch, dtype):
    """Neither the norm, nor the finiteness checks of float16, nor the optimizer see them."""
    real = trainer.Trainer.backward
    norms = []

    def poison(self, step):
        loss = real(self, step)
        sleeping = {id(p) for d, ps in self.dyadic.parameters.items() for p in ps if step < 8}
        for parameter in self.model.parameters():
            if id(parameter) in sleeping:
                parameter.grad.fill_(torch.inf)
                assert not self.optimizer.state[parameter]
        awake = [p.grad for p in self.model.parameters() if id(p) not in sleeping]
        norms.append((torch.nn.utils.get_total_norm(awake) / self.scaler.get_scale()).item())
        return loss

    monkeypatch.setattr(trainer.Trainer, "backward", poison)
    keys = ("--max_iters=16", "--ffn=cffn_gated", "--dyadic=True", f"--dtype={dtype}")
    _, records = run("a", *keys)
    logged = [r["grad_norm"] for r in records if "loss" in r]
    assert logged[:8] == pytest.approx(norms[:8], rel=1e-4)
    if dtype == "float16":
        assert {r["loss_scale"] for r in records if r["step"] < 9 and "loss" in r} == {65536.0}


def test_ladder_weights_decay_only_where_that_is_asked_for(run):
    keys = ("--max_iters=5", "--ffn=cffn_gated", "--weight_decay=50.0", "--cf_init=nanogpt")
    _, kept = run("kept", *keys)
    _, decayed = run("decayed", *keys, "--decay_ladders=True")
    assert losses(kept)[-1] != losses(decayed)[-1]


@pytest.mark.parametrize(
    "keys", [{"attention": "cattn_u", "ffn": "cffn_product"}, {"attention": "cattn_m"}]
)
def test_intercepts_wake_with_their_depth_and_never_decay(build, keys):
    """Also where the matrices of the ladders do; a_0's intercept is no ladder's and never sleeps."""
    model = build(cf_linear_intercept=True, cattn_scores="collapsed", **keys)
    named = dict(model.named_parameters())
    intercepts = {name for name in named if ".b." in name or name.endswith(("b0", "U.bias", ".intercept"))}
    assert any(".b." in name for name in intercepts)
    assert any(".b." not in name for name in intercepts)
    groups = adamw(model, 1e-3, 0.5, (0.9, 0.95), decay_ladders=True).param_groups
    found = {id(p): group for group in groups for p in group["params"]}
    asleep = {id(p) for parameters in Dyadic(model, 8).parameters.values() for p in parameters}
    for name in intercepts:
        own = found[id(named[name])]
        assert own["weight_decay"] == 0, name
        assert (own["depth"] > 0) == (".b." in name) == (id(named[name]) in asleep), name
        if ".b." in name:
            weight = named[name.replace(".b.", ".W.")]
            assert (found[id(weight)]["depth"], found[id(weight)]["weight_decay"]) == (own["depth"], 0.5)


def test_ladder_weights_have_a_learning_rate_of_their_own(run):
    keys = ("--max_iters=2", "--ffn=cffn_gated", "--grad_clip=0", "--warmup_iters=0", "--eval_interval=2")

    def weights(name, *more):
        return checkpoint.load(checkpoint.find(run(name, *keys, *more)[0]))["model"]

    start = weights("start", "--learning_rate=1e-30", "--min_lr=0")
    usual, slow = weights("usual"), weights("slow", "--ladder_lr=1e-3")
    ladders = [name for name in usual if ".ladders.W" in name or ".ladders.b" in name]
    assert len(ladders) == 2 * 2 * 3

    def step(found, names):
        return max(float((found[name] - start[name]).abs().max()) for name in names)

    assert 0 < step(slow, ladders) < 0.002 * step(usual, ladders)


def test_ladder_statistics_are_in_the_log(run):
    keys = ("--attention=cattn_u", "--ffn=cffn_product", "--cf_pole=clamp", "--cf_intercept=zero")
    _, records = run("a", *keys, "--max_iters=10", "--dyadic=True")
    first, last = (r["ladders"] for r in records if "val_loss" in r)
    layers = {f"blocks.{n}.{part}" for n in (0, 1) for part in ("attention", "ffn.first", "ffn.second")}
    assert first.keys() == last.keys() == layers
    for layer, values in last.items():
        assert values.keys() == {"clamped", "min_denominator", "z_99", "grad_norm"}
        assert 0 <= values["clamped"] <= 1
        assert first[layer]["grad_norm"] is None
        assert values["grad_norm"] > 0
    # partial denominators near zero at odd depth: with intercepts at 0 ladders start in the clamp
    assert first["blocks.0.ffn.first"]["clamped"] > 0.05
    assert first["blocks.0.ffn.first"]["min_denominator"] < 0.01
    _, records = run("dense", "--max_iters=2")
    assert all("ladders" not in r for r in records)


def test_evaluation_with_and_without_the_clip(run):
    """They agree where nothing is out of range, and differ where the range is narrow."""
    keys = ("--ffn=cffn_added", "--cf_eval_clip=True", "--max_iters=6", "--eval_interval=6", "--n_layer=1")
    folder, records = run("a", *keys)
    first, last = (r for r in records if "val_loss" in r)
    assert first["val_loss"] == first["val_loss_unclipped"]  # no range yet
    assert last["val_loss_unclipped"] == pytest.approx(last["val_loss"], abs=0.01)
    content = checkpoint.load(checkpoint.find(folder))
    model = GPT(model_config(content["config"]))
    model.load_state_dict(content["model"])
    data = Dataset(content["config"]["dataset"], "val", 32)
    windows = data.validation_windows(20)
    size = data.target_bytes(windows)
    for fraction in (m for m in model.modules() if isinstance(m, Fraction)):
        fraction.z_max.fill_(-3.0)
        fraction.z_min.fill_(-3.0)
    result = evaluate(model, windows, size, 4, "float32", Ranks())
    assert result["val_loss_unclipped"] == pytest.approx(last["val_loss_unclipped"], rel=1e-6)
    assert abs(result["val_loss"] - result["val_loss_unclipped"]) > 1e-3
    assert all(m.clip for m in model.modules() if isinstance(m, Fraction))
