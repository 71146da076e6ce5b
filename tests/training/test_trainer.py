"""The training loop: signals, full disks, float16, recomputation, the dyadic schedule, what is logged."""

import copy
import os
import resource
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from data.loader import Dataset
from layers.ladder import Fraction
from model import GPT, model_config
from train import main
from training import checkpoint, stopping, trainer
from training.distributed import Ranks
from training.evaluation import evaluate
from training.log import read_log
from training.optimizer import adamw


def losses(records):
    return [(r["step"], r.get("loss"), r.get("val_loss")) for r in records]


def interrupt(monkeypatch, step, *signals):
    """These signals arrive while the gradients of a step are made."""
    real = trainer.learning_rate

    def rate(now, *rest):
        if now == step and signals:
            for number in signals:
                os.kill(os.getpid(), number)
        return real(now, *rest)

    monkeypatch.setattr(trainer, "learning_rate", rate)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [7, 9])
def test_a_signal_ends_the_run_with_a_checkpoint(run, monkeypatch, capsys, number, status, step):
    """The step at hand is finished; the rest, an evaluation that was due included, comes on resume."""
    _, whole = run("whole")
    with monkeypatch.context() as patch:
        interrupt(patch, step, number)
        with pytest.raises(SystemExit) as stop:
            run("parts")
    assert stop.value.code == status
    said = capsys.readouterr()
    assert f"stopped at step {step + 1}; --resume=True goes on from there" in said.out
    assert "stopping after this step, with a checkpoint" in said.err
    _, parts = run("parts", "--resume=True")
    assert losses(parts) == losses(whole)


def test_signals_of_a_launcher_that_sends_them_twice(run, monkeypatch):
    interrupt(monkeypatch, 3, signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run("a")
    assert stop.value.code == 130
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_ctrl_c_stops_at_once(run, monkeypatch, tmp_path):
    times = iter([0.0, 2.0])
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(times))
    interrupt(monkeypatch, 7, signal.SIGINT, signal.SIGINT)
    with pytest.raises(SystemExit, match=r"interrupted. --resume=True .* goes on from step_00000005.pt"):
        run("a")
    assert checkpoint.find(tmp_path / "a").name == "step_00000005.pt"


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(run, capsys):
    """No file may grow beyond half a checkpoint: the next one fails, and works when there is room again."""
    _, whole = run("whole", "--max_iters=10")
    folder, _ = run("a", "--max_iters=10", "--keep_checkpoints=9")
    (folder / "ckpt" / "step_00000010.pt").unlink()
    (folder / "ckpt" / "best.pt").unlink()
    saved = checkpoint.find(folder)
    content = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, limits[1]))
    try:
        with pytest.raises(SystemExit, match=r"step_00000010.pt could not be written .* are untouched"):
            main([f"--out_dir={folder}", "--resume=True"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == content
    assert [p.name for p in (folder / "ckpt").iterdir()] == [saved.name]
    main([f"--out_dir={folder}", "--resume=True"])
    assert losses(read_log(folder)) == losses(whole)


def test_a_log_that_cannot_be_written_ends_the_run(run, capsys, tmp_path):
    folder, before = run("a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "log.jsonl").stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(SystemExit, match=r"log.jsonl could not be written \(File too large\)"):
            main([f"--out_dir={folder}", "--resume=True", "--max_iters=25"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert losses(read_log(folder))[: len(before)] == losses(before)
    main([f"--out_dir={folder}", "--resume=True", "--max_iters=25"])
    assert read_log(folder)[-1]["step"] == 25


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
    assert "depth 1:          198 parameters wake at step         2 and get         2 updates" in said
    assert "depth 3:          198 parameters never wake" in said


def test_a_woken_depth_warms_up(run, monkeypatch):
    """Groups of depth 1 wake at step 8: a third, two thirds of the rate, then all of it."""
    seen = {}
    real = trainer.Trainer.backward

    def look(self, step):
        rates = {group["depth"]: group["lr"] for group in self.optimizer.param_groups}
        seen[step] = rates[1] / rates[0]
        return real(self, step)

    monkeypatch.setattr(trainer.Trainer, "backward", look)
    run("a", "--max_iters=16", "--ffn=cffn_gated", "--dyadic=True", "--dyadic_rewarmup=2")
    assert [seen[step] for step in range(8, 16)] == pytest.approx([1 / 3, 2 / 3, *[1] * 6])


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


def test_ranges_are_forgotten_when_a_depth_wakes(run, monkeypatch):
    resets = []
    real = Fraction.reset_range
    monkeypatch.setattr(Fraction, "reset_range", lambda self: (resets.append(1), real(self)))
    keys = ("--max_iters=16", "--ffn=cffn_gated", "--dyadic=True", "--cf_eval_clip=True")
    run("kept", *keys)
    at_start = len(resets)
    run("forgotten", *keys, "--dyadic_reset_ranges=True")
    # twice as many starts, and the two layers at the wakes of three depths
    assert len(resets) == 2 * at_start + 2 * 3


def test_ladder_weights_decay_only_where_that_is_asked_for(run):
    keys = ("--max_iters=5", "--ffn=cffn_gated", "--weight_decay=50.0", "--cf_init=nanogpt")
    _, kept = run("kept", *keys)
    _, decayed = run("decayed", *keys, "--decay_ladders=True")
    assert losses(kept)[-1] != losses(decayed)[-1]


def test_ladder_weights_have_a_learning_rate_and_a_clip_of_their_own(run):
    keys = ("--max_iters=2", "--ffn=cffn_gated", "--grad_clip=0", "--warmup_iters=0", "--eval_interval=2")

    def weights(name, *more):
        return checkpoint.load(checkpoint.find(run(name, *keys, *more)[0]))["model"]

    start = weights("start", "--learning_rate=1e-30", "--min_lr=0")
    usual, slow = weights("usual"), weights("slow", "--ladder_lr=1e-3")
    clipped = weights("clipped", "--ladder_grad_clip=1e-9")
    ladders = [name for name in usual if ".ladders.W" in name or ".ladders.b" in name]
    others = [name for name in usual if name not in ladders]
    assert len(ladders) == 2 * 2 * 3

    def step(found, names):
        return max(float((found[name] - start[name]).abs().max()) for name in names)

    assert step(slow, ladders) < 0.002 * step(usual, ladders)
    # AdamW's first step does not depend on the gradient's size unless that comes near its epsilon of 1e-8
    assert step(clipped, ladders) < 0.3 * step(usual, ladders)
    assert step(clipped, others) > 0.5 * step(usual, others)


@pytest.mark.parametrize("grad_clip", [0.0, 2.0])
def test_the_norm_is_that_before_all_clipping(tiny, grad_clip):
    model = GPT(tiny(ffn="cffn_gated")).init_weights()
    optimizer = adamw(model, 1e-3, 0.1, (0.9, 0.95))
    ladders = [p for group in optimizer.param_groups if group["depth"] for p in group["params"]]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    for parameter in ladders:
        parameter.grad = torch.ones_like(parameter)
    ladders[0].grad = None  # a depth that sleeps
    config = SimpleNamespace(grad_clip=grad_clip, ladder_grad_clip=0.5)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    before = torch.nn.utils.get_total_norm(gradients)
    norm = trainer.Trainer.clip(SimpleNamespace(config=config, model=model, optimizer=optimizer))
    assert norm.item() == pytest.approx(before.item())
    assert torch.nn.utils.get_total_norm([p.grad for p in ladders[1:]]).item() == pytest.approx(0.5, 1e-4)
    assert torch.nn.utils.get_total_norm(gradients).item() < 1


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
            "--dyadic_reset_ranges=True", "--dyadic_rewarmup=2",
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

    real_step, real_look = trainer.Trainer.step, trainer.Trainer.look
    monkeypatch.setattr(trainer.Trainer, "step", step)
    monkeypatch.setattr(
        trainer.Trainer,
        "look",
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


def poison(monkeypatch):
    """Step 6 alone meets a loss that is not finite, in its second micro-batch: samples 52 to 55.

    -> the (weights, moments) from before that step, and from where the run ends.
    """
    held, wanted = [], []
    forward, backward, explain = GPT.forward, trainer.Trainer.backward, trainer.Trainer.explain

    def hold(self):
        held.append(copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()["state"]]))

    def poisoned(self, tokens, targets=None):
        loss = forward(self, tokens, targets)
        return loss * torch.nan if wanted and torch.equal(tokens, wanted[0]) else loss

    def watched(self, step):
        if step == 6:
            hold(self)
            wanted.append(self.loader.batch(52)[0])
        return backward(self, step)

    def ended(self, *figures):
        hold(self)
        explain(self, *figures)

    monkeypatch.setattr(GPT, "forward", poisoned)
    monkeypatch.setattr(trainer.Trainer, "backward", watched)
    monkeypatch.setattr(trainer.Trainer, "explain", ended)
    return held


SELDOM = [f"--{key}_interval=100" for key in ("log", "eval", "checkpoint")]


@pytest.mark.parametrize(
    ("keys", "later"),
    [
        (["--log_interval=1", "--checkpoint_interval=3"], 0),
        (["--log_interval=5", "--optimizer=muon", "--checkpoint_interval=6"], 3),
        (["--checkpoint_interval=4"], 1),
        (["--checkpoint_interval=4", "--optimizer=muon", "--dtype=float16"], 1),
        (["--eval_interval=9", "--attention=cattn_m", "--ffn=cffn_added"], 2),
        (["--eval_interval=3", "--log_interval=5", "--dtype=float16"], 2),
        (["--max_iters=12"], 5),
    ],
)
def test_from_a_step_that_is_not_finite_on_nothing_changes(run, monkeypatch, tmp_path, keys, later):
    """Though the steps after it are finite; the run ends at the next record, evaluation or checkpoint."""
    held = poison(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        run("a", *SELDOM, *keys)
    said = str(stop.value.code)
    scale = ", loss scale 65536" if "--dtype=float16" in keys else ""
    nor = f" (nor the {later} after it)" if later else ""
    assert f"loss nan and gradient norm nan{scale} at step 6, which was not made{nor}.\n" in said
    assert "\n  rank 0, samples 52 to 55: loss nan, every output finite, gradients not finite of" in said
    assert said.count("rank 0") == 1
    (weights, moments), (weights_after, moments_after) = held
    assert all(torch.equal(weights[name], tensor) for name, tensor in weights_after.items())
    for before, after in zip(moments.values(), moments_after.values(), strict=True):
        assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    for path in checkpoint.numbered(tmp_path / "a" / "ckpt"):
        assert checkpoint.load(path)["step"] <= 6
        assert f"the last checkpoint is {path}" in said or path != checkpoint.find(tmp_path / "a")


def test_a_signal_after_a_step_that_is_not_finite_saves_nothing(run, monkeypatch, tmp_path):
    poison(monkeypatch)
    interrupt(monkeypatch, 8, signal.SIGTERM)
    with pytest.raises(SystemExit, match=r"at step 6, which was not made \(nor the 2 after it\)"):
        run("a", *SELDOM)
    assert not (tmp_path / "a" / "ckpt").exists()


def test_mfu_is_of_all_ranks(tiny):
    """Four ranks at the rate at which one gets a share of the peak get a quarter of it each."""
    shares = []
    for world in (1, 4):
        run = SimpleNamespace(config=tiny(), device=torch.device("cpu"), ranks=SimpleNamespace(world=world))
        run.config.dtype = "bfloat16"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "peak_flops", lambda name, dtype: 1e9)
            shares.append(trainer.Trainer.mfu(run, 100.0)["mfu"])
    assert shares[0] == pytest.approx(4 * shares[1])


def test_ladder_statistics_are_in_the_log(run):
    keys = ("--attention=cattn_u", "--ffn=cffn_product", "--cf_pole=clamp", "--cf_init=nanogpt")
    _, records = run("a", *keys, "--max_iters=10", "--dyadic=True")
    first, last = (r["ladders"] for r in records if "val_loss" in r)
    layers = {f"blocks.{n}.{part}" for n in (0, 1) for part in ("attention", "ffn.first", "ffn.second")}
    assert first.keys() == last.keys() == layers
    for layer, values in last.items():
        assert values.keys() == {"clamped", "min_denominator", "z_99", "grad_norm"}
        assert 0 <= values["clamped"] <= 1
        assert first[layer]["grad_norm"] is None
        assert values["grad_norm"] > 0
    # partial denominators near zero at odd depth: the paper's literal start has ladders in the clamp
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


def test_out_of_memory_says_what_to_change(run, monkeypatch):
    def allocate(self, step):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(trainer.Trainer, "backward", allocate)
    with pytest.raises(SystemExit, match=r"rank 0 is out of memory .*Take a smaller batch_size"):
        run("a")
