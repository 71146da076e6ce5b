"""bench.py: what it says, and that wrong numbers are never timed. Nothing here depends on a speed."""

import itertools
import json
import os
from types import SimpleNamespace

import pytest
import torch

import bench
from benchmarks import command, decoding, operators, session, training_step
from benchmarks.measurements import CUDA_GRAPH
from benchmarks.plan import Plan
from models.kinds import parameter_counts
from training import cuda_graph
from training.config import TrainConfig

CPU = torch.device("cpu")
KERNEL = "triangular product of CAttnU"
MODELS = ["config/gpt2.py+config/size/tiny.py", "config/cofrgenet.py+config/size/tiny.py"]
SMALL = [
    "--vocab_size=100", "--block_size=16", "--n_layer=3", "--cf_ladders=2", "--compile=False",
    "--repetitions=2", "--seconds=0.001", "--device=cpu", "--batch_size=2",
]  # fmt: skip


def run(capsys, *arguments, status=0):
    assert bench.main([*MODELS, *SMALL, *arguments]) == status
    return capsys.readouterr().out.splitlines()


def results(path):
    """{(model, item): line of what was timed}"""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(line["task"], line["item"]): line for line in lines if line["stage"] != "profile"}


def cells(lines, model):
    """{column: text} of a model in each table that has it."""
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:2] == "| "]
    head, found = None, []
    for row in split:
        head = row if row[0] == "model" else head
        found += [dict(zip(head, row, strict=False))] if row[0] == model else []
    return found


def test_training(capsys, tmp_path):
    path = tmp_path / "all.jsonl"
    files = (f"--json={path}", f"--profile={tmp_path / 'p'}")
    lines = run(capsys, "--dtype=bfloat16", "--cf_depth=2", *files)
    assert lines[0].startswith("device ")
    assert f"torch {torch.__version__}, commit " in lines[0]
    assert lines[1] == f"with {' '.join(SMALL)} --dtype=bfloat16 --cf_depth=2"
    assert lines[2] == f"without effect in {MODELS[0]}: cf_ladders=2, cf_depth=2"
    keys = "--vocab_size=100 --block_size=16 --n_layer=3 --cf_ladders=2 --cf_depth=2"
    assert f"2 x 16 tokens, bfloat16, eager, keys {keys}" in lines
    assert all(sum(name in line for line in lines) >= 3 for name in MODELS)
    assert len(list((tmp_path / "p").iterdir())) == 2
    assert path.read_text().count('"stage": "profile"') == 2
    found = results(path)
    assert {"device", "torch", "commit", "settings", "stage"} <= found[MODELS[0], "step"].keys()
    assert f"device {found[MODELS[0], 'step']['device']}, " in lines[0]
    settings = found[MODELS[1], "step"]["settings"]
    assert (settings["model"]["attention"], settings["model"]["cf_depth"]) == ("cattn_m", 2)
    assert (settings["batch_size"], settings["dtype"]) == (2, "bfloat16")
    items = ("step", *training_step.SECTIONS[1:])
    assert list(found) == [(model, item) for item in items for model in MODELS]  # in turns
    assert {len(line["all_seconds"]) for line in found.values()} == {2}
    (dense, its_parts), (full, parts) = (cells(lines, model) for model in MODELS)
    assert [dense[key] for key in ("speed-up", "by FLOPs", "of that")] == 3 * ["1.00"]
    assert [its_parts[key] for key in ("speed-up", "by FLOPs", "of that")] == 3 * ["1.00"]
    for table, item, flops in (
        (full, "step", "flops_per_token"),
        (parts, "blocks", "flops_per_token_blocks"),
    ):
        promised = found[MODELS[0], "step"][flops] / found[MODELS[1], "step"][flops]
        assert table["by FLOPs"] == f"{promised:.2f}" > "1"
        faster = found[MODELS[0], item]["seconds"] / found[MODELS[1], item]["seconds"]
        assert table["speed-up"] == f"{faster:.2f}"


def test_decoding(capsys, tmp_path):
    path = tmp_path / "all.jsonl"
    lines = run(capsys, "--mode=infer", "--dtype=float32", f"--json={path}")
    assert any(line.startswith("2 x 16 tokens, float32, eager") for line in lines)
    found = results(path)
    assert [found[model, "step"]["cache_bytes_per_token"] for model in MODELS] == [
        2 * 3 * 2 * 64, 2 * 3 * 64
    ]  # fmt: skip
    assert {item for _, item in found} == {"step", "prefill", "copy"}
    step, copied = found[MODELS[0], "step"], found["device", "copy"]["bytes_per_second"]
    read = step["parameters"] - 16 * 64 + 2 * 8 * 3 * 2 * 64  # positions; two sequences with half a block
    assert step["bytes"] == 4 * read
    (row,) = (line for line in lines if line.startswith(f"| {MODELS[0]}"))
    assert f" {100 * step['bytes'] / step['seconds'] / copied:.1f} % |" in row


def test_what_a_step_reads(tiny):
    """Of value embeddings two rows, of windows all, of growing caches half a block, a state once."""
    options, head = decoding.DecodeOptions(2, "float32", False), 128 * 24

    def read(**keys):
        config = tiny(**keys)
        counts = parameter_counts(config)
        body = counts["attention"] + counts["ffn"] + counts["norm"]
        return decoding.step_bytes(config, options) // 4 - body - head

    grows = 2 * 2 * 2 * 8 * 24  # layers, keys and values, sequences, half a block
    assert read() == read(tie_embeddings=False) == grows
    assert read(value_embeddings=True, position="rope") == grows
    assert read(attention="sliding_window") == 2 * 2 * 2 * 5 * 24
    assert read(attention="gated_deltanet", position="none") == 2 * 2 * 3 * (6 * 12 + 72)


def test_what_the_file_has_is_not_measured_again(capsys, tmp_path):
    path = tmp_path / "a.jsonl"
    alone = [MODELS[0], *SMALL, "--parts=False", f"--json={path}"]
    assert bench.main(alone) == 0
    first = path.read_text()
    shown = capsys.readouterr().out.split("\n\n", 1)[1]
    assert bench.main(alone) == 0
    assert path.read_text() == first
    assert capsys.readouterr().out.split("\n\n", 1)[1] == shown
    lines = run(capsys, "--parts=False", f"--json={path}")
    assert path.read_text().startswith(first)
    assert list(results(path)) == [(model, "step") for model in MODELS]
    assert all(sum(name in line for line in lines) >= 1 for name in MODELS)
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"step .*batch_size=2.*batch_size=3"):
        bench.main([*alone, "--batch_size=3"])
    assert "tokens/s" not in capsys.readouterr().out
    path.write_text(first.replace('"torch": "', '"torch": "other'))
    with pytest.raises(SystemExit, match=r"was measured with torch=other"):
        bench.main(alone)


def test_a_model_that_fails_costs_its_own_results_alone(capsys):
    lines = run(capsys, "--parts=False", "--batch_size=1000000000000", status=1)
    assert sum("FAILED" in line for line in lines) == 2
    assert "## Failed" in lines


def test_the_time_is_kept(capsys, monkeypatch):
    """Nothing starts once it is over; what needed all of it is not tried again."""
    over = "the time is over; the same command goes on"
    assert over in run(capsys, "--minutes=1e-9")
    # time for one look at a process that starts
    clock = itertools.chain([0.0, 1e-6, 1e-5, 1e-4], itertools.repeat(1.0))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines = run(capsys, "--minutes=0.001", status=1)
    assert over in lines
    assert any("no result in 0.0 minutes: give more --minutes" in line for line in lines)


def test_a_model_beside_itself():
    assert list(command.parsed(["config/gpt2.py"] * 3)[1]) == [
        "config/gpt2.py", "config/gpt2.py (2)", "config/gpt2.py (3)"
    ]  # fmt: skip


def test_a_disk_that_fills_up_costs_no_table(capsys, tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("benchmarks.lines.os.fsync", full)
    with pytest.raises(SystemExit, match="No space left on device"):
        bench.main([MODELS[0], *SMALL, "--parts=False", f"--json={tmp_path / 'new'}"])
    assert "tokens/s" in capsys.readouterr().out


def test_a_trace_that_cannot_be_written_costs_no_table(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(command, "unwritable", lambda *given, **keys: None)
    lines = run(capsys, "--parts=False", f"--profile={tmp_path / 'file' / 'p'}", status=1)
    assert any("tokens/s" in line for line in lines)
    assert sum("FAILED" in line and "NotADirectoryError" in line for line in lines) == 2


def test_what_it_refuses(capsys, tmp_path, monkeypatch):
    (tmp_path / "there.json").write_text("a\nb\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "train_a.json").touch()
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    for arguments, message in [
        ([], "name the models, such as config/gpt2.py"),
        (["config/gpt2.py", "--mode=ops"], "mode=ops takes no models"),
        (["config/gpt2.py", "--repetitions=0"], "repetitions must be at least 1"),
        (["config/gpt2.py", "--seconds=inf"], "seconds must be finite"),
        (["config/gpt2.py", "--minutes=0"], "minutes must be above 0"),
        (["config/gpt2.py", "--stage=decode"], "mode=train has no stage=decode"),
        (["--mode=ops", "--turns=True"], "turns acts with mode=train"),
        (["config/gpt2.py", f"--profile={tmp_path / 'locked' / 'a'}"], "no right to write"),
        (["config/gpt2.py", f"--profile={tmp_path / 'there.json'}"], "exists already"),
        (["config/gpt2.py", f"--profile={tmp_path / 'there.json' / 'a'}"], "there is no folder"),
        (["config/gpt2.py", "--mode=infer", "--parts=False"], "parts acts with mode=train only"),
        (["--mode=ops", "--activation_checkpointing=True"], "activation_checkpointing acts with"),
        (["--mode=ops", "--cuda_graph=True"], "cuda_graph acts with mode=train only"),
        (["config/gpt2.py", "--gradient_accumulation_steps=0"], "steps must be at least 1"),
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
            "cuda_graph .*activation_checkpointing",
        ),
    ],
)
def test_cuda_graphs_that_cannot_be(arguments, message):
    with pytest.raises(SystemExit, match=message):
        bench.main([*MODELS, *SMALL, *arguments])


@pytest.mark.parametrize("file", ["there.json", "there.json/a.json"])
def test_a_file_that_is_no_file_of_results(tmp_path, file):
    (tmp_path / "there.json").write_text("a\nb\n")
    with pytest.raises(SystemExit, match=r"no result of this|cannot be written"):
        bench.main([*MODELS, *SMALL, f"--json={tmp_path / file}"])
    assert (tmp_path / "there.json").read_text() == "a\nb\n"


@pytest.mark.parametrize(
    ("arguments", "device", "captured"),
    [
        ([], "cuda", True),
        ([], "cpu", False),
        (["--compile=False"], "cuda", False),
        (["--activation_checkpointing=True"], "cuda", False),
        (["--cuda_graph=False"], "cuda", False),
        (["--cuda_graph=True", "--compile=False"], "cuda", True),
    ],
)
def test_steps_are_captured_where_train_captures_them(arguments, device, captured):
    config, models = command.parsed([MODELS[0], *arguments])
    plan = Plan(config, models, [], torch.device(device))
    assert (CUDA_GRAPH in plan.steps(models[MODELS[0]])) == captured
    if "--cuda_graph=True" not in arguments:
        keys = {"compile": config.compile, "activation_checkpointing": config.activation_checkpointing}
        data = SimpleNamespace(unit="tokens")
        run = TrainConfig(**keys, cuda_graph="--cuda_graph=False" not in arguments)
        assert cuda_graph.fits(run, torch.device(device), 1, data) == captured


def test_several_batches_in_a_step(capsys):
    lines = run(capsys, "--gradient_accumulation_steps=3", "--dtype=bfloat16", "--parts=False")
    assert any(line.startswith("3 x 2 x 16 tokens, bfloat16, eager") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "phases"),
    [
        ([], [(2, 4), (2, 0)]),
        (["--turns=False"], [(2, 4), (2, 1)]),
        (["--compile=False"], [(2, 0)]),
        (["--mode=infer"], [(1, 1), (2, 4), (2, 0)]),
        (["--mode=infer", "--stage=decode"], [(2, 4), (2, 0)]),
        (["--profile=traces"], [(2, 4), (2, 0), (2, 1)]),
    ],
)
def test_models_are_compiled_together_and_then_take_turns(arguments, phases, monkeypatch):
    """(tasks, how many at a time: 0 in turns)"""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    config, models = command.parsed([*MODELS, *arguments])
    plan = Plan(config, models, [], CPU)
    assert [(len(tasks), slots) for tasks, slots in plan.phases()] == phases
    assert plan.phases()[-1][0][0].stage == ("profile" if "--profile=traces" in arguments else plan.stage)


def test_kernels(capsys, monkeypatch):
    """The upper limits first, which say how fast a kernel could be."""
    cases = operators.cases
    monkeypatch.setattr(operators, "cases", lambda *given: {KERNEL: cases(*given)[KERNEL]})
    keys = [key for key in SMALL if key.startswith(("--compile", "--rep", "--sec", "--dev", "--batch"))]
    assert bench.main(["--mode=ops", "--sizes=tiny", "--dtype=float32", *keys]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[:3] == "## "] == ["## Upper limits", "## Kernels"]
    (head,) = (line for line in lines if line.startswith(f"| {KERNEL}"))
    assert {"quartiles", "of the limit", "peak MB", "speed-up"} <= {
        cell.strip() for cell in head.split("|")
    }
    assert sum("causal_linear, eager" in line for line in lines) == 2
