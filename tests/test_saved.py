"""Runs, checkpoints and exports of earlier versions give what they gave, or are refused by name.

tests/saved holds what commit 16d9952 wrote in the middle of a run of 8 steps on the data set of
conftest.py, and in expected.json the losses of its later steps and evaluations. Three keys came after it
that would otherwise make other models of the same files: cffn_gate=self was y = U x + V z(h),
cf_init=nanogpt had no intercepts, and position=sinusoidal did not scale the embedding.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import train
from architecture import ModelConfig
from comparison.runs import RunFolderError, read_run
from data.loader import Dataset
from training import checkpoint, pretrained
from training.checkpoint import CheckpointError

SAVED = Path(__file__).parent / "saved"
KINDS = {"nanogpt": {"cf_intercept": "none", "cf_init": "nanogpt", "cattn_scores": "rank"}}
REFUSED = {
    "sinusoidal": "position=sinusoidal did not multiply the embedding by sqrt",
    "cffn_gated": r"cffn_gate=self was y = U x \+ V z\(h\) when .* commit 16d9952 is the last",
}
kinds = pytest.mark.parametrize("kind", KINDS)


def expected(kind):
    return json.loads((SAVED / kind / "expected.json").read_text())


def validation_loss(model, dataset):
    """Of the tokens that a run evaluates, in nats."""
    windows = Dataset(str(dataset), "val", 16).validation_windows(320 // 16)
    tokens = torch.from_numpy(windows.astype("int64"))
    with torch.no_grad():
        return model.eval()(tokens[:, :-1], tokens[:, 1:]).item()


@kinds
@pytest.mark.parametrize("name", ["", "ckpt/step_00000004.pt"])
def test_its_weights_are_read_as_what_they_were(kind, name, dataset):
    path = SAVED / kind / name
    source = pretrained.open_source(str(path))
    model = pretrained.build(source)
    for key, value in KINDS[kind].items():
        assert getattr(source.config, key) == value
    assert validation_loss(model, dataset) == pytest.approx(expected(kind)["val_loss"][1], rel=1e-5)


@kinds
def test_a_run_goes_on_as_it_would_have(kind, dataset, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(SAVED / kind, folder)
    train.main([f"--out_dir={folder}", "--resume=True", f"--dataset={dataset}"])
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record and record["step"] > 4]
    assert losses == pytest.approx(expected(kind)["losses"], rel=1e-4)
    assert records[-1]["val_loss"] == pytest.approx(expected(kind)["val_loss"][2], rel=1e-4)
    assert json.loads((folder / "config.json").read_text())["cf_intercept"] == KINDS[kind]["cf_intercept"]
    assert read_run(folder).config["cf_init"] == KINDS[kind]["cf_init"]


@kinds
def test_a_finished_comparison_reads_its_log(kind):
    assert read_run(SAVED / kind).config["cf_intercept"] == KINDS[kind]["cf_intercept"]


@pytest.mark.parametrize("kind", REFUSED)
def test_another_function_of_the_same_tensors_is_refused(kind, dataset, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(SAVED / kind, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    saved = next(folder.glob("ckpt/*.pt"))
    for path in (folder, saved, *folder.glob("exported")):
        with pytest.raises(CheckpointError, match=REFUSED[kind]):
            pretrained.open_source(str(path))
    with pytest.raises(RunFolderError, match=REFUSED[kind]):
        read_run(folder)
    for keys in (
        [],
        [f"--{key}={checkpoint.load(saved)['config'][key]}" for key in ("position", "cffn_gate")],
    ):
        with pytest.raises(SystemExit) as stop:
            train.main([f"--out_dir={folder}", "--resume=True", f"--dataset={dataset}", *keys])
        assert re.search(REFUSED[kind], f"{stop.value}{capsys.readouterr().err}")
    assert {path: path.read_bytes() for path in before} == before


def test_a_form_that_is_gone_is_refused_by_its_name():
    saved = vars(ModelConfig(ffn="cffn_gated")) | {"cffn_gate": "self_skip"}
    with pytest.raises(ValueError, match=r"cffn_gate=self_skip was y = U x .* commit 66884a0 is the last"):
        ModelConfig.of_today(saved)
    without_it = {**saved, "ffn": "mlp", "cffn_gate": "self"}
    assert ModelConfig.of_today(without_it) == without_it
