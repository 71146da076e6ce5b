"""Runs, checkpoints and exports of earlier versions give what they gave, or are refused by name.

tests/saved holds what earlier commits wrote in the middle of a run of 8 steps on the data set of
conftest.py, and in expected.json the losses of its later steps and evaluations.

nanogpt, sinusoidal and cffn_gated are of commit 16d9952. Three keys came after it that would otherwise make
other models of the same files: cffn_gate=self was y = U x + V z(h), cf_init=nanogpt had no intercepts, and
position=sinusoidal did not scale the embedding. relative, constant and cattn_c are of commit 466f118, where
columns by distance were a key of cattn_m, token_shift was key_shift, and cf_control was two keys.
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
from training.config import TrainConfig

SAVED = Path(__file__).parent / "saved"
KINDS = {
    "nanogpt": {"cf_intercept": "none", "cf_init": "nanogpt", "cattn_scores": "rank"},
    "relative": {"attention": "cattn_relative", "cattn_content": True, "token_shift": True},
    "constant": {"cf_control": "constant", "attention": "cattn_u", "cf_intercept": "one"},
}
REFUSED = {
    "sinusoidal": "position=sinusoidal did not multiply the embedding by sqrt",
    "cffn_gated": r"cffn_gate=self was y = U x \+ V z\(h\) when .* commit 16d9952 is the last",
    "cattn_c": "attention=cattn_c has left: commit 466f118 is the last that computes that model",
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
@pytest.mark.parametrize("name", ["", "ckpt/step_00000004.pt", "exported"])
def test_its_weights_are_read_as_what_they_were(kind, name, dataset):
    path = SAVED / kind / name
    if not path.exists():
        pytest.skip("no export of this kind is kept")
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
    written, read = json.loads((folder / "config.json").read_text()), read_run(folder).config
    for key, value in KINDS[kind].items():
        assert written[key] == read[key] == value


@kinds
def test_a_finished_comparison_reads_its_log(kind):
    config = read_run(SAVED / kind).config
    assert {key: config[key] for key in KINDS[kind]} == KINDS[kind]


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


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"cf_pole_grad": "exact"}, "cf_pole_grad=exact has left: commit 466f118 is the last"),
        ({"cf_ladder": "elementwise"}, "cf_ladder=elementwise has left: commit 466f118 is the last"),
        ({"cf_pole": "smooth"}, "cf_pole=smooth has left"),
        ({"ffn": "cffn_gated", "cffn_gate": "glu"}, "cffn_gate=glu has left"),
        ({"cffn_proj": True}, "cffn_proj=True has left"),
        ({"ladder_grad_clip": 0.5}, "ladder_grad_clip=0.5 has left"),
        ({"attention": "cattn_m", "cattn_content": True}, "cattn_content=True without cattn_relative=True"),
        ({"attention": "cattn_m", "cattn_relative": True, "cattn_strict": True}, "with cattn_strict=True"),
        ({"cf_later": 3}, "this version does not know cf_later=3"),
    ],
)
def test_a_key_that_has_left_loads_at_its_default_alone(keys, message):
    """What it was before, and what is unknown, is refused by name; nothing is dropped in silence."""
    saved = vars(TrainConfig()) | {"cf_pole_grad": "formula", "dyadic_rewarmup": 0, "cattn_relative": False}
    assert TrainConfig.of_today(saved) == vars(TrainConfig())
    with pytest.raises(ValueError, match=message):
        TrainConfig.of_today(saved | keys)


def test_learned_constants_that_were_numbers_go_on(run):
    """S and theta of ExPE, and their moments, once had no dimension."""
    keys = ("--attention=softmax", "--position=expe", "--expe_learned=standard", "--n_layer=1")
    keys += ("--max_iters=4", "--checkpoint_interval=2", "--keep_checkpoints=9")
    folder, whole = run("old", *keys)
    for path in (folder / "ckpt").glob("*.pt"):
        if path.name != "step_00000002.pt":
            path.unlink()
    path = folder / "ckpt" / "step_00000002.pt"
    content = torch.load(path)
    for name in ("position.learned.0", "position.learned.1"):
        content["model"][name] = content["model"][name].reshape(())
    states = [state for state in content["optimizer"]["state"].values() if len(state["exp_avg"]) == 1]
    assert len(states) == 2
    for state in states:
        state |= {key: state[key].reshape(()) for key in ("exp_avg", "exp_avg_sq")}
    torch.save(content, path)
    _, again = run("old", "--resume=True", *keys)
    losses = [[r["loss"] for r in records if "loss" in r] for records in (whole, again)]
    assert losses[0] == losses[1]
