"""The training loop: signals, full disks, float16, recomputation, the dyadic schedule, what is logged."""

import json

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.records import losses
from training import checkpoint, trainer


def test_float16_scales_its_loss(run):
    """The scale is logged, saved, and halves where the gradients overflow, without a step being lost."""
    folder, records = run("a", "--max_iters=6", "--dtype=float16")
    _, exact = run("b", "--max_iters=6")
    scales = [r["loss_scale"] for r in records if "loss" in r]
    assert set(scales) == {65536.0}
    assert checkpoint.load(checkpoint.find(folder))["scaler"]["scale"] == 65536.0
    assert checkpoint.load(checkpoint.find(folder))["scaler"]["_growth_tracker"] == 6
    for a, b in zip(losses(records), losses(exact), strict=True):
        assert np.allclose(*(np.array(v, dtype=float) for v in (a, b)), rtol=5e-3, equal_nan=True)
    assert losses(records) != losses(exact)


def test_float16_leaves_out_a_step_whose_gradients_overflow(run, monkeypatch):
    """A scale that is far too large is halved until the gradients fit; the weights stay finite."""
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: real(*a, **k, init_scale=2.0**40))
    folder, records = run("a", "--max_iters=30", "--warmup_iters=1", "--dtype=float16")
    scales = [r["loss_scale"] for r in records if "loss" in r]
    assert scales[0] == 2.0**39
    assert 1 < scales[-1] < 2.0**30
    overflowed = [r["grad_norm"] is None for r in records if "loss" in r]
    assert overflowed[0]
    assert not overflowed[-1]
    values = [r["loss"] for r in records if "loss" in r]
    assert values[0] > values[-1] + 0.3
    content = checkpoint.load(checkpoint.find(folder))
    assert all(tensor.isfinite().all() for tensor in content["model"].values())


def test_a_log_is_json_where_gradients_overflow(run, monkeypatch):
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: real(*a, **k, init_scale=2.0**40))
    keys = ("--max_iters=4", "--dtype=float16", "--ffn=cffn_gated", "--eval_interval=1")
    folder, _ = run("a", *keys)
    for line in (folder / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity


def test_each_seed_drops_other_activations(run, monkeypatch):
    drawn, real = {}, trainer.Trainer.step

    def noted(self, stop):
        found = real(self, stop)
        drawn.setdefault(self.config.seed, torch.initial_seed())  # of the first step
        return found

    monkeypatch.setattr(trainer.Trainer, "step", noted)
    for seed in (1, 2):
        run(f"seed{seed}", f"--seed={seed}", "--max_iters=2", "--dropout=0.1")
    assert len(set(drawn.values())) == 2


def test_float16_whose_gradients_never_fit_ends(run, monkeypatch):
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: real(*a, **k, init_scale=2.0))
    monkeypatch.setattr(trainer.Trainer, "backward", overflowing(trainer.Trainer.backward))
    with pytest.raises(SystemExit, match=r"gradient norm inf, loss scale 1 at step 1"):
        run("a", "--dtype=float16")


def overflowing(real):
    def backward(self, step):
        loss = real(self, step)
        next(self.model.parameters()).grad.fill_(torch.inf)
        return loss

    return backward


@pytest.mark.parametrize(
    "keys", [["--attention=cattn_m", "--ffn=cffn_product"], ["--attention=cattn_u"], []]
)
def test_recomputing_blocks_changes_nothing(run, keys):
    """Dropout included: it is drawn again as it was."""
    keys = [*keys, "--max_iters=4", "--dropout=0.3", "--cf_eval_clip=True"]
    _, kept = run("kept", *keys)
    _, recomputed = run("recomputed", *keys, "--activation_checkpointing=True")
    assert losses(kept) == losses(recomputed)


def test_blocks_are_recomputed_where_that_is_asked_for(run, monkeypatch):
    import model

    calls = []
    real = model.checkpoint
    monkeypatch.setattr(model, "checkpoint", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
    run("kept", "--max_iters=2")
    assert not calls
    run("recomputed", "--max_iters=2", "--activation_checkpointing=True")
    assert len(calls) == 2 * 2 * 2  # steps, micro-batches, layers


class Waits(TorchDispatchMode):
    """Notes what would make the host wait for a GPU, in the operators and in the methods of a tensor."""

    METHODS = ("cpu", "item", "numpy", "tolist")

    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.equal):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        for name in self.METHODS:
            real = getattr(torch.Tensor, name)
            noted = lambda *a, name=name, real=real: (self.found.append(name), real(*a))[1]  # noqa: E731
            self.patch.setattr(torch.Tensor, name, noted)
        return super().__enter__()

    def __exit__(self, *exception):
        self.patch.undo()
        return super().__exit__(*exception)


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["--dtype=float16", "--dropout=0.1"],
        ["--optimizer=muon", "--dtype=bfloat16"],
        ["--optimizer=muon", "--dtype=float16", "--ffn=swiglu"],
        [
            "--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True", "--cf_eval_clip=True",
        ],
        ["--attention=cattn_u", "--ffn=cffn_gated", "--grad_clip=0"],
        ["--attention=synthesizer", "--ffn=cffn_added", "--cf_pole=clamp"],
        ["--attention=bigbird", "--position=expe", "--norm=rmsnorm", "--activation_checkpointing=True"],
    ],
)  # fmt: skip
def test_the_host_waits_for_the_device_only_to_look(run, monkeypatch, keys):
    """In no step is the value of a tensor asked for; between steps only before something is written."""
    waits, looks = [], []

    def step(self, stop):
        with Waits(waits):
            return real_step(self, stop)

    real_step, real_look = trainer.Trainer.step, trainer.Trainer.log_values
    monkeypatch.setattr(trainer.Trainer, "step", step)
    monkeypatch.setattr(
        trainer.Trainer,
        "log_values",
        lambda self, rate: (looks.append(self.progress.step), real_look(self, rate))[1],
    )
    run("a", *keys, "--max_iters=16", "--log_interval=7", "--checkpoint_interval=9")
    assert waits == []
    assert looks == [7, 9, 10, 14, 16]


@pytest.mark.parametrize("ask", ["item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__"])
def test_waiting_for_the_device_would_be_seen(ask):
    waits = []
    with Waits(waits):
        getattr(torch.ones(()), ask)()
    assert waits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("keys", [[], ["--optimizer=muon", "--dtype=bfloat16"], ["--dtype=float16"]])
def test_no_step_synchronises_a_gpu(run, monkeypatch, keys):
    """But for the first, which sets things up."""
    real, made = trainer.Trainer.step, []

    def step(self, stop):
        torch.cuda.set_sync_debug_mode("error" if made else "default")
        try:
            return real(self, stop)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            made.append(self.progress.step)

    monkeypatch.setattr(trainer.Trainer, "step", step)
    ladders = ("--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True", "--cf_eval_clip=True")
    run("a", *ladders, *keys, "--max_iters=12", "--log_interval=5", "--device=cuda")
    assert len(made) == 12


def test_groups_have_rates_of_their_own(run, monkeypatch):
    """Ladders and Muon a share of the schedule's, whose decay is the last fifth where it is not given."""
    seen, real = [], trainer.Trainer.set_learning_rates

    def noted(self, step):
        rate = real(self, step)
        seen.append((rate, {(g["depth"] > 0, g["muon"]): g["lr"] for g in self.optimizer.param_groups}))
        return rate

    monkeypatch.setattr(trainer.Trainer, "set_learning_rates", noted)
    keys = ("--max_iters=10", "--learning_rate=1e-3", "--min_lr=0", "--warmup_iters=0", "--lr_schedule=wsd")
    groups = ("--ffn=cffn_gated", "--optimizer=muon", "--muon_learning_rate=0.02", "--ladder_lr=0.5")
    run("a", *groups, *keys)
    for rate, of in seen:
        expected = {(False, False): rate, (True, False): 0.5 * rate, (False, True): 20 * rate}
        assert of == pytest.approx(expected)
    assert [rate for rate, _ in seen] == pytest.approx([1e-3] * 8 + [5e-4, 0])
