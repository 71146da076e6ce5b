"""The model card of an export."""

import dataclasses
import json
import shlex

import configurator
from training import pretrained
from training.config import TrainConfig


def rows(card):
    lines = [line.strip("|").split(" | ", 1) for line in card.splitlines() if line.startswith("| ")]
    return {what.strip(): value.strip() for what, value in lines}


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
    assert found["lowest validation loss"] == f"{best['val_loss']:.4f} nats per token"
    assert found["trained for"] == f"{best['step']:,} steps, {best['tokens']:,} tokens"
    model, _ = pretrained.load(folder)
    assert found["parameters"].startswith(f"{model.parameter_count():,}, ")
    command = card.split("    python train.py ")[1].split("\n\n")[0].replace("\\\n", " ")
    given = configurator.parse(TrainConfig, shlex.split(command))
    kept = TrainConfig(**json.loads((folder / "config.json").read_text()))
    assert dataclasses.replace(given, out_dir=kept.out_dir) == kept
    assert str(tmp_path / "run") not in card
    assert card.count("from_pretrained(folder, trust_remote_code=True)") == 2


def test_of_another_folder_s_weights_the_training_is_not_known(run, tmp_path):
    folder, _ = run("run", "--max_iters=4")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "a")
    pretrained.export(pretrained.open_source(str(tmp_path / "a")), tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    assert "Not known: the weights come from another folder." in card
    assert "trust_remote_code" not in card  # GPT-2's class is transformers' own
    assert "trained for" not in rows(card)
