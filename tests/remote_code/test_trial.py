"""What export.py loads before it says that it is done."""

import json
import subprocess
import sys

import pytest

import export
from remote_code import trial
from remote_code.trial import TrialError, load, main
from training import pretrained


@pytest.fixture
def exported(build, tmp_path):
    """exported(**keys) -> (folder, our model)"""

    def written(name="out", **keys):
        model = build(**keys).eval()
        source = pretrained.Source(tmp_path / "run", model.config, model.state_dict)
        pretrained.export(source, tmp_path / name)
        return tmp_path / name, model

    return written


@pytest.fixture
def _here(monkeypatch, capsys):
    """The other process is this one, which has imported transformers."""

    def run(command, **_):
        main(command[-2], int(command[-1]))
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out, "")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("_here")
def test_another_loss_is_an_error(exported):
    folder, model = exported()
    load(folder, model, 100, 17)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "activation_function": "relu"}))
    with pytest.raises(TrialError, match=r"^transformers \d\.\S+ .*loss \d\.\d+ .*\d"):
        load(folder, model, 100, 17)
    (folder / "config.json").write_text(json.dumps({**content, "n_embd": 25}))
    with pytest.raises(TrialError, match=r"^transformers \d\.\S+ .*\(ValueError: `embed_dim`"):
        load(folder, model, 100, 17)


@pytest.mark.usefixtures("_here")
def test_a_model_that_needs_a_gpu_is_loaded_only(exported, monkeypatch):
    folder, model = exported()

    def on_a_gpu(*_):
        raise RuntimeError("no CPU")

    monkeypatch.setattr(model, "forward", on_a_gpu)
    load(folder, model, 100, 17)


def test_a_process_that_dies(exported, monkeypatch):
    folder, model = exported()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(TrialError, match=r"process .*status 1"):
        load(folder, model, 100, 17)


def test_nothing_is_left_of_an_export_that_fails(run, tmp_path, monkeypatch, capsys):
    folder, _ = run("run", "--max_iters=2")

    def refuse(folder, **_):
        assert (folder / "model.safetensors").is_file()
        raise TrialError("transformers 9 cannot load it (KeyError: 'x')")

    monkeypatch.setattr(trial, "load", refuse)
    with pytest.raises(SystemExit, match=r"out was not written: transformers 9 .*KeyError: 'x"):
        export.main([str(folder), str(tmp_path / "out")])
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    capsys.readouterr()
    monkeypatch.setattr(trial, "is_possible", lambda: False)
    export.main([str(folder), str(tmp_path / "out")])
    assert "not checked with transformers" in capsys.readouterr().out


@pytest.mark.slow  # a process that imports transformers
def test_export_loads_what_it_writes(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trial, "load", load)
    folder, _ = run("run", "--max_iters=2", "--ffn=swiglu")
    export.main([str(folder), str(tmp_path / "out")])
    assert "for transformers (CoFrGeNetForCausalLM)" in capsys.readouterr().out
