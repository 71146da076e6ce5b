"""finetune.py from end to end: it learns, goes on after a kill, refuses, and prints one table."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import finetune
from corpus.file_tokenizer import BpeTokenizer
from corpus.tokenizer import BytesTokenizer
from finetune import FinetuneConfig, main
from finetuning import loop
from finetuning.classifier import Classifier
from finetuning.glue import read_folder
from finetuning.inputs import encode
from finetuning.subjects import open_subjects
from finetuning.tasks import TASKS
from tests.conftest import documents
from tests.finetuning.glue_files import write_task

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("--device=cpu", "--dtype=float32", "--batch_size=8", "--epochs=1", "--max_length=32", "--seeds=2")


@pytest.fixture
def trained(run):
    return str(run("trained", "--max_iters=5")[0])


@pytest.fixture
def glue(tmp_path):
    for task in TASKS.values():
        write_task(tmp_path / "glue", task.title)
    return tmp_path / "glue"


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def results(out):
    """ "model/task_lr.._seed...json" -> record"""
    paths = sorted(out.glob("results/*/*.json"))
    return {str(path.relative_to(out / "results")): json.loads(path.read_text()) for path in paths}


def test_all_eight_tasks(trained, glue, tmp_path, capsys):
    out = tmp_path / "out"
    main([trained, f"--data_dir={glue}", f"--out_dir={out}", *QUICK, "--seeds=1"])
    said = capsys.readouterr().out
    assert "8 results, 0 of them already" in said
    table = (out / "table.md").read_text()
    assert table in said
    header = table.splitlines()[0]
    assert [cell.strip() for cell in header.strip("|").split("|")][1:] == [
        "MNLI m / mm", "QQP", "QNLI", "SST-2", "CoLA", "MRPC", "RTE", "WNLI",
    ]  # fmt: skip
    records = results(out)
    assert len(records) == 8
    assert records["trained/cola_lr2.5e-05_seed1.json"]["best"]["dev"].keys() == {
        "loss",
        "accuracy",
        "matthews",
    }
    assert records["trained/mrpc_lr2.5e-05_seed1.json"]["best"]["dev"].keys() == {"loss", "accuracy", "f1"}
    assert {"matched", "mismatched"} <= records["trained/mnli_lr2.5e-05_seed1.json"]["best"].keys()
    assert records["trained/mnli_lr2.5e-05_seed1.json"]["data"]["validation"] == {
        "matched": 12,
        "mismatched": 12,
    }
    assert all(record["torch"] == torch.__version__ for record in records.values())


@pytest.mark.parametrize("keys", [["--attention=softmax"], ["--attention=cattn_m", "--ffn=cffn_added"]])
def test_learns_what_can_be_learnt(run, tmp_path, keys):
    model, _ = run("model", "--max_iters=20", *keys)
    write_task(tmp_path / "glue", "SST-2", train=256, dev=100)
    out = tmp_path / "out"
    rates = ("--learning_rates=3e-3", "--seeds=1", "--epochs=3")
    main(
        [str(model), f"--data_dir={tmp_path / 'glue'}", "--tasks=sst2", f"--out_dir={out}", *QUICK, *rates]
    )
    (record,) = results(out).values()
    assert record["best"]["dev"]["accuracy"] > 0.95
    assert record["data"]["majority"] == {"dev": 0.5}
    losses = [evaluation["training_loss"] for evaluation in record["evaluations"]]
    assert losses[-1] < 0.2 < losses[0]
    assert record["skipped_steps"] == 0


def test_the_earliest_of_the_best_evaluations_counts(run, tmp_path, monkeypatch):
    model = run("model", "--max_iters=2")[0]
    accuracies = iter([0.5, 0.75, 0.75, 0.25])

    def evaluate(*keys):
        return {"dev": {"loss": 1.0, "accuracy": next(accuracies)}}

    monkeypatch.setattr(loop, "evaluate", evaluate)
    write_task(tmp_path / "glue", "SST-2")
    keys = ("--tasks=sst2", "--seeds=1", "--epochs=4", f"--out_dir={tmp_path / 'out'}")
    main([str(model), f"--data_dir={tmp_path / 'glue'}", *QUICK, *keys])
    (record,) = results(tmp_path / "out").values()
    assert (record["best"]["epoch"], record["best"]["dev"]["accuracy"]) == (2, 0.75)
    assert (record["final"]["epoch"], record["final"]["dev"]["accuracy"]) == (4, 0.25)
    assert len(record["evaluations"]) == 4


def test_killed_between_seeds(trained, glue, tmp_path, capsys):
    """Started again after SIGKILL, it runs what is missing and ends with the same table, to the bit."""
    keys = [trained, f"--data_dir={glue}", "--tasks=sst2,cola", *QUICK, "--learning_rates=1e-3,3e-3"]
    main([*keys, f"--out_dir={tmp_path / 'whole'}"])
    killed = tmp_path / "killed"
    program = (
        "import os, signal, sys\n"
        "from finetuning import records\n"
        "import finetune\n"
        "write, left = records.write, [3]\n"
        "def count(*keys):\n"
        "    write(*keys)\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "records.write = count\n"
        "finetune.main(sys.argv[1:])\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *keys, f"--out_dir={killed}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = results(killed)
    assert len(before) == 3
    assert not (killed / "table.md").exists()
    capsys.readouterr()
    main([*keys, f"--out_dir={killed}"])
    said = capsys.readouterr().out
    assert "8 results, 3 of them already" in said
    after, whole = results(killed), results(tmp_path / "whole")
    assert {name: after[name] for name in before} == before
    assert (killed / "table.md").read_text() == (tmp_path / "whole" / "table.md").read_text()
    assert after.keys() == whole.keys()
    for name, record in after.items():
        assert record["evaluations"] == whole[name]["evaluations"], name
    seeds = [whole[f"trained/sst2_lr0.001_seed{seed}.json"]["evaluations"] for seed in (1, 2)]
    assert seeds[0] != seeds[1]


def test_two_processes_share_the_work(trained, glue, tmp_path, monkeypatch, capsys):
    """What another process finishes after the start is taken, not run again."""
    keys = [trained, f"--data_dir={glue}", "--tasks=sst2", *QUICK]
    main([*keys, f"--out_dir={tmp_path / 'other'}"])
    (tmp_path / "out" / "results" / "trained").mkdir(parents=True)
    train, ran = finetune.train, []

    def late(*rest):
        name = "sst2_lr2.5e-05_seed2.json"
        shutil.copy(*(tmp_path / out / "results" / "trained" / name for out in ("other", "out")))
        train(*rest)

    monkeypatch.setattr(finetune, "train", late)
    monkeypatch.setattr(finetune, "finetune", lambda *rest: ran.append(rest[6]) or loop.finetune(*rest))
    main([*keys, f"--out_dir={tmp_path / 'out'}"])
    assert ran == [1]  # seeds
    tables = [(tmp_path / out / "table.md").read_text() for out in ("other", "out")]
    assert tables[0] == tables[1]


def test_results_of_other_settings_are_refused(trained, run, glue, tmp_path, capsys):
    keys = [f"--data_dir={glue}", "--tasks=sst2", *QUICK, f"--out_dir={tmp_path / 'out'}", "--seeds=1"]
    main([trained, *keys])
    before = results(tmp_path / "out")
    said = refused(capsys, trained, *keys, "--weight_decay=0.5")
    assert "(weight_decay was 0.01, is 0.5)" in said
    path = glue / "SST-2" / "dev.tsv"
    path.write_text(path.read_text().replace("\t1\n", "\t0\n", 1))
    assert "(data was " in refused(capsys, trained, *keys)
    assert results(tmp_path / "out") == before
    (one,) = (tmp_path / "out").glob("results/*/*.json")
    one.write_text("{")
    assert "is no result of finetune.py" in refused(capsys, trained, *keys)


def test_small_micro_batches_are_the_same_batch(trained, glue, tmp_path):
    outcomes = []
    for micro in (8, 3):
        (subject,) = open_subjects([trained], "best", None, 32, 0.0)
        data = read_folder(TASKS["sst2"], glue)
        train, dev = (encode(e, subject.tokenizer, 32, "") for e in (data.train, data.validation["dev"]))
        torch.manual_seed(0)
        classifier = Classifier(_build(subject), 2)
        config = FinetuneConfig([], batch_size=8, micro_batch_size=micro, epochs=2)
        keys = (256, 1e-3, 1, config, torch.device("cpu"), "float32", "")
        loop.finetune(classifier, data.task, train, {"dev": dev}, *keys)
        outcomes.append([p.detach().clone() for p in classifier.parameters()])
    assert outcomes[0]
    for whole, parts in zip(*outcomes, strict=True):
        torch.testing.assert_close(whole, parts, atol=2e-5, rtol=1e-3)


def _build(subject):
    from training import pretrained

    return pretrained.build(subject.source)


def test_a_step_without_a_finite_gradient_is_left_out(trained, glue):
    (subject,) = open_subjects([trained], "best", None, 32, 0.0)
    data = read_folder(TASKS["sst2"], glue)
    train = encode(data.train, subject.tokenizer, 32, "")
    classifier = Classifier(_build(subject), 2)
    forward, calls = Classifier.forward, []

    def broken(self, *inputs):
        calls.append(1)
        return forward(self, *inputs) * (float("nan") if len(calls) == 2 else 1.0)

    classifier.forward = broken.__get__(classifier)
    config = FinetuneConfig([], batch_size=8, epochs=1)
    keys = (256, 1e-3, 1, config, torch.device("cpu"), "float32", "")
    outcome = loop.finetune(classifier, data.task, train, {"dev": train}, *keys)
    assert outcome["skipped_steps"] == 1
    assert all(p.isfinite().all() for p in classifier.parameters())


def test_published_rates_and_dropout(trained, run):
    ours = str(run("ours", "--max_iters=2", "--ffn=cffn_gated", "--dropout=0.1")[0])
    subjects = open_subjects([trained, ours], "best", None, None, 0.0)
    assert [subject.learning_rates for subject in subjects] == [[2.5e-5], [1.25e-5]]
    assert [subject.max_length for subject in subjects] == [32, 32]
    assert [_build(subject).dropout.p for subject in subjects] == [0.0, 0.0]
    (subject,) = open_subjects([ours], "last", [1e-4, 2e-4, 1e-4], 16, 0.3)
    assert subject.learning_rates == [1e-4, 2e-4]
    assert subject.max_length == 16
    assert _build(subject).dropout.p == 0.3


def test_a_folder_of_hugging_face_beside_a_run(trained, glue, tmp_path, capsys):
    transformers_models = pytest.importorskip("tests.training.transformers_models")
    tokenizer = BpeTokenizer.train(documents(), 300)
    folder = tmp_path / "hf"
    config = transformers_models.gpt2(vocab_size=tokenizer.vocab_size)
    transformers_models.drawn(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.text)
    keys = [f"--data_dir={glue}", "--tasks=rte", *QUICK, f"--out_dir={tmp_path / 'out'}"]
    main([str(folder), trained, *keys])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("| hf ")]
    assert [line for line in lines if line.startswith("| trained ")]
    assert {record["settings"]["tokenizer"] for record in results(tmp_path / "out").values()} == {
        tokenizer.hash, BytesTokenizer.hash,
    }  # fmt: skip
    small = transformers_models.gpt2(vocab_size=tokenizer.vocab_size - 200)
    transformers_models.drawn(small).save_pretrained(tmp_path / "small")
    (tmp_path / "small" / "tokenizer.json").write_text(tokenizer.text)
    assert "its vocabulary has" in refused(capsys, tmp_path / "small", *keys)


def test_all_mistakes_before_any_training(trained, glue, tmp_path, capsys):
    out = tmp_path / "out"
    (glue / "RTE" / "train.tsv").write_text("")
    (glue / "CoLA" / "dev.tsv").write_text("gj04\t7\t\tfine\n")
    said = refused(capsys, trained, f"--data_dir={glue}", f"--out_dir={out}", *QUICK)
    assert "RTE/train.tsv: is empty" in said
    assert "CoLA/dev.tsv, line 1: label '7'" in said
    said = refused(capsys, trained, tmp_path / "none", tmp_path / "nor", f"--data_dir={glue}")
    assert "none does not exist" in said
    assert "nor does not exist" in said
    assert "named twice" in refused(capsys, trained, f"{trained}/", f"--data_dir={glue}")
    said = refused(
        capsys, trained, "--tasks=sst2,stsb", "--seeds=0", "--learning_rates=0,x", f"--out_dir={trained}",
        "--max_length=3", "--data_dir=nowhere", "--warmup_share=1", "--weight_decay=-1",
    )  # fmt: skip
    for mistake in (
        "tasks: 'stsb' is none of", "seeds must be at least 1", "max_length must be at least 8",
        "learning_rates must be of type list of float", "is a run folder of train.py",
        "nowhere is not a folder", "warmup_share must be at least 0 and below 1",
        "weight_decay must be at least 0",
    ):  # fmt: skip
        assert mistake in said, mistake
    assert not out.exists()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "table.md").write_text("# mine")
    said = refused(capsys, trained, f"--data_dir={glue}", f"--out_dir={tmp_path / 'notes'}")
    assert "notes/table.md is none of finetune.py's" in said


def test_models_of_one_name(run, glue, tmp_path, trained, capsys):
    other = Path(trained).parent / "again" / "trained"
    run("again/trained", "--max_iters=2")
    keys = (f"--data_dir={glue}", "--tasks=wnli", *QUICK, f"--out_dir={tmp_path / 'out'}", "--seeds=1")
    main([trained, str(other), *keys])
    names = {record["model"] for record in results(tmp_path / "out").values()}
    assert names == {trained.strip("/").replace("/", "_"), str(other).strip("/").replace("/", "_")}


def test_the_config_that_shows_it(trained, glue, tmp_path):
    from configurator import resolve

    config = resolve(FinetuneConfig, [trained, str(ROOT / "config/glue.py")], positional="models")
    assert (config.tasks, config.learning_rates) == (list(TASKS), [1.25e-5, 2.5e-5])
    assert dataclasses.replace(config, tasks=None, learning_rates=None) == FinetuneConfig([trained])
