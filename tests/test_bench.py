"""bench.py: what it says, and that wrong numbers are never timed. Nothing here depends on a speed."""

import json
import os
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

import bench
from benchmarks import training_step
from benchmarks.timing import quartiles
from training import cuda_graph
from training.config import TrainConfig

CPU = torch.device("cpu")
MODELS = ["config/gpt2.py+config/size/tiny.py", "config/cofrgenet.py+config/size/tiny.py"]
SMALL = [
    "--vocab_size=100", "--block_size=16", "--n_layer=3", "--cf_ladders=2", "--compile=False",
    "--repetitions=2", "--seconds=0.001", "--device=cpu", "--batch_size=2",
]  # fmt: skip


def run(capsys, *arguments):
    bench.main([*MODELS, *SMALL, *arguments])
    return capsys.readouterr().out.splitlines()


def test_training(capsys, tmp_path):
    files = (f"--json={tmp_path / 'all.json'}", f"--profile={tmp_path / 'p'}")
    lines = run(capsys, "--dtype=bfloat16", "--cf_depth=2", *files)
    assert lines[0].startswith("device ")
    assert f"torch {torch.__version__}, commit " in lines[0]
    assert lines[1] == f"with {' '.join(SMALL)} --dtype=bfloat16 --cf_depth=2"
    assert lines[2] == f"without effect in {MODELS[0]}: cf_ladders=2, cf_depth=2"
    assert lines[3] == "training step: 2 x 16 tokens, bfloat16, eager"
    assert all(sum(name in line for line in lines) >= 3 for name in MODELS)
    assert len(list((tmp_path / "p").iterdir())) == 2
    numbers = json.loads((tmp_path / "all.json").read_text())
    assert {"device", "torch", "commit", "batch_size", "dtype", "models"} <= numbers.keys()
    assert f"device {numbers['device']}, " in lines[0]
    dense, full = numbers["models"].values()
    assert (full["config"]["attention"], full["config"]["cf_depth"]) == ("cattn_m", 2)
    assert [set(m["seconds"]) for m in (dense, full)] == [set(training_step.SECTIONS)] * 2
    assert {len(s) for m in (dense, full) for s in m["seconds"].values()} == {2}
    assert dense["speed_up"] == dense["flop_ratio"] == dense["blocks_speed_up"] == 1
    assert full["flop_ratio"] == dense["flops_per_token"] / full["flops_per_token"] > 1
    medians = [quartiles(m["seconds"]["blocks"])[1] for m in (dense, full)]
    assert full["blocks_speed_up"] == pytest.approx(medians[0] / medians[1])


def test_decoding(capsys, tmp_path):
    lines = run(capsys, "--mode=infer", "--dtype=float32", f"--json={tmp_path / 'all.json'}")
    assert lines[3].startswith("decoding: 2 sequences, a cache of 16 tokens, half full for a step")
    models = json.loads((tmp_path / "all.json").read_text())["models"]
    assert [m["cache_bytes_per_token"] for m in models.values()] == [2 * 3 * 2 * 64, 2 * 3 * 64]


def test_a_model_beside_itself():
    assert list(bench.parsed(["config/gpt2.py"] * 3)[1]) == [
        "config/gpt2.py", "config/gpt2.py (2)", "config/gpt2.py (3)"
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["json", "profile"])
def test_a_disk_that_fills_up_costs_no_table(capsys, tmp_path, monkeypatch, option):
    def full(*given, **keys):
        raise OSError(28, "No space left on device")

    def measured(workers, sections, config):
        return {MODELS[0]: {"whole": [0.5]}}, {MODELS[0]: None}

    if option == "json":
        monkeypatch.setattr(bench, "open", full, raising=False)
    else:
        monkeypatch.setattr("pathlib.Path.mkdir", full)
    monkeypatch.setattr(bench, "Worker", lambda *given: MagicMock())
    monkeypatch.setattr(bench, "measure", measured)
    with pytest.raises(SystemExit, match="No space left on device"):
        bench.main([MODELS[0], *SMALL, "--parts=False", f"--{option}={tmp_path / 'new'}"])
    assert "tokens/s" in capsys.readouterr().out


def test_what_it_refuses(capsys, tmp_path, monkeypatch):
    (tmp_path / "there.json").touch()
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "train_a.json").touch()
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    for arguments, message in [
        ([], "name the models, such as config/gpt2.py"),
        (["config/gpt2.py", "--mode=ops"], "mode=ops takes no models"),
        (["config/gpt2.py", "--repetitions=0"], "repetitions must be above 0"),
        (["config/gpt2.py", "--seconds=inf"], "seconds must be finite"),
        (["config/gpt2.py", f"--json={tmp_path / 'there.json'}"], "exists already"),
        (["config/gpt2.py", f"--json={tmp_path / 'there.json' / 'a.json'}"], "there is no folder"),
        (["config/gpt2.py", f"--json={tmp_path / 'locked' / 'a.json'}"], "no right to write"),
        (["config/gpt2.py", f"--profile={tmp_path / 'locked' / 'a'}"], "no right to write"),
        (["config/gpt2.py", f"--profile={tmp_path / 'there.json'}"], "exists already"),
        (["config/gpt2.py", f"--profile={tmp_path / 'there.json' / 'a'}"], "there is no folder"),
        (["config/gpt2.py", "--mode=infer", "--parts=False"], "parts acts with mode=train only"),
        (["--mode=ops", "--activation_checkpointing=True"], "activation_checkpointing acts with"),
        (["--mode=ops", "--cuda_graph=True"], "cuda_graph acts with mode=train only"),
        (["config/gpt2.py", "--gradient_accumulation_steps=0"], "steps must be above 0"),
        (["config/gpt2.py", "--mode=infer", "--block_size=3"], "no room for a prompt and two steps"),
        (["config/gpt2.py", "--profile=x", "--mode=ops"], "profile acts with"),
        (["config/gpt2.py", f"--profile={tmp_path / 'traces'}"], "is a folder that holds something"),
        (["config/gpt2.py", "--learning_rate=1"], "learning_rate is a key of train.py"),
        (["config/gpt3.py"], "no such config file"),
        (["config/gpt2.py", "config/llama_3b.py"], "models of different block_size"),
        (["config/gpt2.py", f"--json={tmp_path / 'x'}", f"--profile={tmp_path / 'x'}"], "are both"),
    ]:
        with pytest.raises(SystemExit) as stop:
            bench.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cuda_graph=True"], "cuda_graph needs a GPU"),
        (
            ["--cuda_graph=True", "--activation_checkpointing=True"],
            "cuda_graph does not work with activation_checkpointing",
        ),
    ],
)
def test_cuda_graphs_that_cannot_be(arguments, message):
    with pytest.raises(SystemExit, match=message):
        bench.main([*MODELS, *SMALL, *arguments])


@pytest.mark.parametrize(
    ("arguments", "device", "captured"),
    [
        ([], "cuda", True),
        ([], "cpu", False),
        (["--compile=False"], "cuda", False),
        (["--activation_checkpointing=True"], "cuda", False),
        (["--mode=infer"], "cuda", False),
        (["--cuda_graph=False"], "cuda", False),
        (["--cuda_graph=True", "--compile=False"], "cuda", True),
    ],
)
def test_steps_are_captured_where_train_captures_them(arguments, device, captured):
    config, models = bench.parsed([MODELS[0], *arguments])
    assert bench.captures(config, models, torch.device(device)) == captured
    if "--cuda_graph=True" not in arguments and config.mode == "train":
        keys = {"compile": config.compile, "activation_checkpointing": config.activation_checkpointing}
        data = SimpleNamespace(of_pairs=False)
        run = TrainConfig(**keys, cuda_graph="--cuda_graph=False" not in arguments)
        assert cuda_graph.fits(run, torch.device(device), 1, data) == captured


def test_several_batches_in_a_step(capsys):
    lines = run(capsys, "--gradient_accumulation_steps=3", "--dtype=bfloat16", "--parts=False")
    assert "training step: 3 x 2 x 16 tokens, bfloat16, eager" in lines
