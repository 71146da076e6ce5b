"""launch/measure_gpu.py from end to end, with tiny sizes on a CPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import correctness, operators, report
from benchmarks.lines import key_of
from launch import measure_gpu
from launch.measure_gpu import STAGES

ROOT = Path(__file__).resolve().parents[2]
TRIAL = ["--device=cpu", "--sizes=tiny", "--minutes=60"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One or two of everything."""
    cases = operators.cases

    def two(*given):
        made = cases(*given)
        return {name: made[name] for name in (next(iter(made)), "head and loss")}

    some = ("CoFrGeNet", "ours, both layers")
    monkeypatch.setattr(operators, "cases", two)
    monkeypatch.setattr(correctness, "FEW", 1)
    gpt = {name: measure_gpu.GPT[name] for name in some}
    monkeypatch.setattr(measure_gpu, "GPT", gpt)
    monkeypatch.setattr(measure_gpu, "TRAINED", {"CoFrGeNet": []})
    models = {"small": gpt, "xl": gpt, "profile": {"CoFrGeNet": gpt["CoFrGeNet"]}}
    models["llama"] = {"CoFrGeNet-F": measure_gpu.LLAMA["CoFrGeNet-F"]}
    models["decode"] = {"CoFrGeNet_B": measure_gpu.DECODED["CoFrGeNet_B"]}
    monkeypatch.setattr(measure_gpu, "MODELS", models)


def results(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_everything_is_measured_and_reported(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    assert measure_gpu.main([*TRIAL, f"--json={path}"]) == 0
    found = results(path)
    assert {line["stage"] for line in found} == set(STAGES)
    assert all({"device", "torch", "commit", "settings", "sizes"} <= line.keys() for line in found)
    assert not [line for line in found if "error" in line or line.get("wrong")]
    assert all(line["equal_to_the_bit"] for line in found if line["stage"] == "train")
    assert [line["item"] for line in found if line["stage"] == "train"] == ["CoFrGeNet"]
    text = path.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert all(f"## {report.TITLES[stage]}" in text for stage in STAGES)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    # again: nothing is measured, and the report needs the lines alone
    for arguments in ([*TRIAL, f"--json={path}"], ["--report", f"--json={path}"]):
        path.with_suffix(".md").unlink()
        assert measure_gpu.main(arguments) == 0
        assert path.with_suffix(".md").read_text() == text
    assert results(path) == found


def test_killed_in_the_middle_it_goes_on(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    arguments = [*TRIAL, f"--json={path}", "--stages=ceilings,correct,kernels"]
    command = [sys.executable, str(ROOT / "launch" / "measure_gpu.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not path.is_file() or path.read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    before = path.read_text()
    assert "kernels" not in before
    assert measure_gpu.main(arguments) == 0
    assert path.read_text().startswith(before)
    assert f"{before.count(chr(10))} there already" in capsys.readouterr().out
    keys = [key_of(line) for line in results(path)]
    assert len(set(keys)) == len(keys)
    assert {stage for stage, *_ in keys} == {"ceilings", "correct", "kernels"}


def test_what_it_refuses(tmp_path, capsys, monkeypatch):
    for arguments, message in [
        (["--stages=kernel"], "there is no kernel;"),
        (["--stages="], "stages: a name is missing in ''"),
        (["--stages=xl,,small"], "stages: a name is missing in 'xl,,small'"),
        (["--minutes=0"], "minutes=0.0 is too short"),
        (["--device=cpu"], "device=cpu would take days with sizes=full"),
        (["--report"], "report needs the file of results"),
        (["--json=a.txt"], "json=a.txt must end in .jsonl"),
        (["--dataset=nowhere"], "no prepared data set"),
        (["config/gpt2.py"], "takes no config files"),
    ]:
        with pytest.raises(SystemExit) as stop:
            measure_gpu.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "notes.md").write_text("mine")
    for arguments, message in [
        ([*TRIAL, f"--json={tmp_path / 'notes.jsonl'}"], "notes.md is no report of this script"),
        ([f"--json={tmp_path / 'a.jsonl'}"], "PyTorch sees no GPU here; for a trial"),
        (["--report", f"--json={tmp_path / 'no.jsonl'}"], "cannot be read: No such file"),
        (
            [*TRIAL, f"--json={tmp_path / 'a.jsonl'}", "--stages=small"],
            "needs to know which kernels are right: --stages=correct,small",
        ),
    ]:
        with pytest.raises(SystemExit) as stop:
            measure_gpu.main(arguments)
        assert message in str(stop.value.code)
