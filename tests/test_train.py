"""train.py: what a run leaves behind, how it goes on, what it refuses."""

import dataclasses
import itertools
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.loader import Dataset
from layers.ladder import Fraction
from model import GPT, model_config
from train import TrainConfig, main
from training import checkpoint, hardware, stopping, trainer
from training.distributed import Ranks
from training.evaluation import evaluate
from training.log import RunFolderError, draw_losses, open_run, read_log

ROOT = Path(__file__).resolve().parents[1]


def losses(records):
    return [(r["step"], r.get("loss"), r.get("val_loss")) for r in records]


def refused(capsys, arguments, *overrides):
    """What train.py says before it exits with an error."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *overrides])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def test_a_run_learns_and_leaves_a_complete_folder(run, dataset):
    folder, records = run("a", "--max_iters=60")
    assert sorted(p.name for p in folder.iterdir()) == [
        ".lock",
        "ckpt",
        "config.json",
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
        "step", "tokens", "seconds", "loss", "learning_rate", "grad_norm", "tokens_per_second"
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


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["--dropout=0.2", "--attention=cattn_m", "--ffn=cffn_added", "--dtype=bfloat16"],
        ["--dropout=0.2", "--attention=cattn_u", "--dtype=float16", "--activation_checkpointing=True"],
        [
            "--ffn=cffn_product",
            "--dyadic=True",
            "--dyadic_rewarmup=2",
            "--max_iters=16",
            "--cf_eval_clip=True",
        ],
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
    assert "cannot go on with this configuration: n_embd was 32, now 16 (" in said
    assert "; seed was 1337, now 2 (" in said
    assert before == ((folder / "config.json").read_bytes(), (folder / "log.jsonl").read_bytes())


def test_resume_on_other_data_is_refused(run, arguments, capsys, tmp_path):
    from data.binary import prepare

    folder, _ = run("a", "--max_iters=5")
    texts = [f"text number {n} " * 40 for n in range(100)]
    prepare(lambda: iter(texts), {}, "bytes", tmp_path / "other", 0.2, workers=1)
    said = refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=5",
                   f"--dataset={tmp_path / 'other'}")  # fmt: skip
    assert "holds other data than the run was trained on" in said


def test_an_existing_run_folder_is_refused(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=2")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    said = refused(capsys, arguments, f"--out_dir={folder}")
    assert "is not empty, and a run is never overwritten: continue it with --resume=True" in said
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_a_second_process_in_the_same_folder_is_refused(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=2")
    with open_run(folder, resume=True):
        said = refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=2")
    assert "another process is training in" in said


def test_an_output_folder_that_cannot_be_written_is_refused(arguments, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for out_dir in ("/proc/no/run", tmp_path / "file" / "run"):
        assert "cannot be written" in refused(capsys, arguments, f"--out_dir={out_dir}")


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
    assert "it was cut short or belongs to another data set" in said
    (cut / "train.bin").write_bytes(np.full(len(whole) // 2, 60000, dtype=np.uint16).tobytes())
    said = refused(capsys, arguments, f"--out_dir={out}", f"--dataset={cut}")
    assert "holds token 60000" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--n_embed=3", "unknown key 'n_embed'; did you mean n_embd"),
        ("--max_iters=ten", "max_iters must be of type int, not 'ten'"),
        ("--batch_size=0", "batch_size must be above 0, not 0"),
        ("--learning_rate=nan", "learning_rate must be above 0, not nan"),
        ("--min_lr=1.0", "min_lr=1.0 is above learning_rate=0.003"),
        ("--warmup_iters=20", "warmup_iters=20 leaves nothing of max_iters=20"),
        ("--beta2=1.0", "beta2 must be in [0, 1), not 1.0"),
        ("--dtype=float8", "dtype must be one of 'auto', 'float32', 'bfloat16', 'float16', not 'float8'"),
        ("--attention=linear", "attention must be one of softmax, cattn_m, cattn_u, not 'linear'"),
    ],
)
def test_unsound_keys_are_refused(arguments, capsys, tmp_path, override, message):
    assert message in refused(capsys, arguments, f"--out_dir={tmp_path / 'out'}", override)
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_named(run, arguments, capsys):
    folder, _ = run("a", "--max_iters=5")
    path = checkpoint.find(folder)
    path.write_bytes(path.read_bytes()[:1000])
    said = refused(capsys, arguments, f"--out_dir={folder}", "--resume=True", "--max_iters=5")
    assert f"{path} is damaged" in said


def test_a_loss_that_is_not_finite_ends_the_run_before_a_checkpoint(run, tmp_path):
    """Also where no step is logged in between: what is saved is from before."""
    with pytest.raises(SystemExit, match=r"loss \S+ and gradient norm \S+ at step 1, which was not made"):
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
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
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
    draw_losses({"a": records, "b": [{"tokens": 1, "val_loss": float("nan")}]}, tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


def test_compiled_training_equals_eager_training(run):
    """The real compiler, float32: losses agree to rounding."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    keys = ("--max_iters=4", "--n_layer=1", "--attention=cattn_m", "--ffn=cffn_added")
    _, eager = run("eager", *keys)
    _, compiled = run("compiled", *keys, "--compile=True")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for a, b in zip(losses(eager), losses(compiled), strict=True):
        assert np.allclose(*(np.array(v, dtype=float) for v in (a, b)), rtol=1e-4, equal_nan=True)


def test_wandb_offline(run, monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder, _ = run("a", "--max_iters=3", "--wandb_log=True", "--wandb_run_name=name")
    (offline,) = (folder / "wandb").glob("offline-run-*")
    assert list(offline.glob("*.wandb"))
    assert checkpoint.load(checkpoint.find(folder))["wandb_id"] in offline.name


def test_the_script_itself(arguments, tmp_path):
    """As a user calls it: mistakes go to stderr with status 2, nothing else happens."""
    found = subprocess.run(
        [sys.executable, ROOT / "train.py", *arguments, "--nonsense=1"], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "unknown key 'nonsense'" in found.stderr
    assert "Traceback" not in found.stderr


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
    assert "damaged; mend the line, or move the file away" in refused(capsys, arguments, *keys)
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


def test_a_start_that_failed_early_does_not_block_its_folder(run, monkeypatch, tmp_path):
    def fail(*arguments):
        raise RunFolderError("wandb did not start")

    monkeypatch.setattr(trainer, "start_wandb", fail)
    with pytest.raises(SystemExit, match="wandb did not start"):
        run("a", "--wandb_log=True")
    run("a", "--max_iters=2")


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
    values = [r["loss"] for r in records if "loss" in r]
    assert values[0] > values[-1] + 0.3
    content = checkpoint.load(checkpoint.find(folder))
    assert all(tensor.isfinite().all() for tensor in content["model"].values())


def test_float16_whose_gradients_never_fit_ends(run, monkeypatch):
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: real(*a, **k, init_scale=2.0))
    monkeypatch.setattr(trainer.Trainer, "backward", overflowing(trainer.Trainer.backward))
    with pytest.raises(SystemExit, match=r"gradient norm inf, loss scale 0.5 at step 2"):
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
    run("a", "--max_iters=2", "--ffn=cffn_gated", "--dyadic=True", "--dyadic_iters=600000")
    said = capsys.readouterr().out
    assert "depth 1:          198 parameters wake at step   300,000 and get   300,000 updates" in said


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
