"""Runs on rows of MQAR: what they say, resume and learn, and which scripts refuse them."""

import json

import pytest

import evaluate
import export
import sample
import scale
from corpus.mqar import MqarDataset
from tests.corpus.test_mqar import prepared
from train import main

KEYS = ["--block_size=32", "--batch_size=5", "--eval_tokens=960"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("mqar") / "set")


def stopped(capsys, script, *arguments):
    with pytest.raises(SystemExit) as stop:
        script([*map(str, arguments)])
    return f"{stop.value.code}{capsys.readouterr().err}"


def test_a_run_says_rows_and_resumes_to_the_bit(run, rows, capsys):
    keys = [*KEYS, f"--dataset={rows}", "--checkpoint_interval=4", "--keep_checkpoints=9", "--max_iters=10"]
    folder, whole = run("a", *keys)
    said = capsys.readouterr().out
    assert f"data: {rows}, 300 training rows of 32 tokens, vocabulary 40" in said
    assert "run: 10 steps of 10 rows, 100 in all (0.33 epochs), on cpu" in said
    assert f"accuracy: python evaluate.py {folder} --task=mqar" in said
    data = MqarDataset(rows, "train", 32)
    tokens = [record["tokens"] for record in whole if "loss" in record]
    assert tokens == [data.targets(0, 10 * step, 1337) for step in range(1, 11)]
    assert "mfu" not in whole[-1]
    for path in (folder / "ckpt").iterdir():
        if path.name != "step_00000004.pt":
            path.unlink()
    main([f"--out_dir={folder}", "--resume=True"])
    again = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for key in ("loss", "val_loss", "tokens"):
        assert [r[key] for r in again if key in r] == [r[key] for r in whole if key in r]


def test_two_pairs_are_learned(run, tmp_path, capsys):
    """With token_shift, without which it takes far longer."""
    rows = prepared(tmp_path / "set", pairs=[1, 2], vocab_size=12, length=12, train_rows=4000, val_rows=200)
    keys = ["--block_size=12", "--n_head=1", "--batch_size=32", "--learning_rate=1e-2", "--log_interval=50"]
    keys += [
        "--gradient_accumulation_steps=1",
        "--max_iters=150",
        "--warmup_iters=20",
        "--eval_tokens=1200",
    ]
    keys += ["--eval_interval=150", "--checkpoint_interval=150", f"--dataset={rows}"]
    folder, _ = run("a", *keys, "--position=rope", "--token_shift=True")
    out = tmp_path / "found.json"
    evaluate.main([str(folder), "--task=mqar", f"--json={out}"])
    found = json.loads(out.read_text())
    accuracy = [part["accuracy"] for part in found["models"][0]["results"]["by_pairs"]]
    assert accuracy[0] > 0.95
    assert accuracy[1] > 0.9
    assert found["data"]["recipe"]["pairs"] == [1, 2]
    capsys.readouterr()
    sample.main([str(folder), "--start=k1v8k2v9k2", "--max_new_tokens=1", "--temperature=0"])
    assert "k1v8k2v9k2v" in capsys.readouterr().out


def test_what_does_not_read_rows_says_so(run, rows, dataset, paired, tmp_path, arguments, capsys):
    folder, _ = run("a", *KEYS, f"--dataset={rows}", "--max_iters=2")
    text, _ = run("text", "--max_iters=2")
    capsys.readouterr()

    def evaluated(*keys):
        return stopped(capsys, evaluate.main, *keys)

    assert f"{rows} holds rows of MQAR" in evaluated(folder)
    assert "give --task=mqar" in evaluated(folder, "--ngrams=True")
    assert "k1 to k19 and v20 to v39" in evaluated(folder, f"--texts={dataset}/val.bin")
    mqar = "--task=mqar"
    assert f"{dataset} holds texts, not rows of MQAR" in evaluated(text, mqar)
    assert "the models were trained on different data sets (a: " in evaluated(folder, text, mqar)
    assert "text has another vocabulary (bytes, 257 tokens)" in evaluated(
        folder, text, mqar, f"--data={rows}"
    )
    long = prepared(tmp_path / "long", length=64)
    assert "has 64 tokens and is never cut, but block_size=32" in evaluated(folder, mqar, f"--data={long}")
    assert "is a mixture" in evaluated(folder, mqar, f"--data={rows}:1,{long}:1")
    assert "data acts with task=mqar only" in evaluated(folder, f"--data={rows}")
    assert "compare acts with" in evaluated(folder, mqar, "--compare=True")
    assert "no text that transformers could encode" in stopped(capsys, export.main, folder, tmp_path / "hf")
    assert "without spaces" in stopped(capsys, sample.main, folder, "--start=Fellow citizens")

    def trained(*keys):
        return stopped(capsys, main, *arguments, *KEYS, f"--out_dir={tmp_path / 'b'}", *keys)

    of_rows = f"--dataset={rows}"
    assert "has no pairs: an encoder reads" in trained(of_rows, "--encoder_layers=1")
    of_saffu = [
        "--model=saffu",
        of_rows,
        "--block_size=32",
        "--max_iters=2",
        "--warmup_iters=1",
        "--batch_size=5",
    ]
    of_saffu += ["--gradient_accumulation_steps=1", f"--out_dir={tmp_path / 'b'}"]
    assert "holds rows, whose targets stand behind one" in stopped(capsys, main, *of_saffu)
    assert "score_source=True, but" in trained(of_rows, "--score_source=True")
    for planned in ([], ["--dry_run=True"]):
        assert "No tokenizer of texts can" in trained(of_rows, f"--init_from={text}", *planned)
    sizes = [
        "config/demo_dense.py",
        "config/demo_cofrgenet.py",
        "--sizes=4K",
        f"--out_dir={tmp_path / 's'}",
    ]
    assert f"dataset: {rows} holds rows" in stopped(capsys, scale.main, *sizes, of_rows, "--dry_run=True")


def test_a_dry_run_of_rows(rows, arguments, capsys, monkeypatch):
    monkeypatch.setattr("training.dry_run.activations", lambda *keys, **more: 0)
    main([*arguments, *KEYS, f"--dataset={rows}", "--dry_run=True"])
    assert f"vocabulary 40 (of {rows})" in capsys.readouterr().out
