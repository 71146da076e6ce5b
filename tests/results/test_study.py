"""results/trainability/run.py: which runs it plans, and what it makes of finished ones."""

import os
import re
import signal
from pathlib import Path

import pytest

from ablation import execution
from ablation.plan import PlanError
from benchmarks.lines import Lines
from comparison.pooled import FIELDS, pooled
from results.trainability import run as study
from results.trainability import studies

ROOT = Path(__file__).resolve().parents[2]
FULL = "full_relative"


def cells(markdown):
    """{arm: {column: cell}} of a table of arms."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines()]
    head, _, *rows = [row for row in rows if row]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def write(path, losses, steps=10):
    """losses: {(arm, seed): its last loss}"""
    rows = [",".join(FIELDS)]
    for (arm, seed), loss in losses.items():
        rows.append(f"{arm},{seed},1000,0,0,0.0,7.0,,,,,")
        rows.append(f"{arm},{seed},1000,{steps},40960,5.0,{loss},0.5,0.7,{0.9 + seed},0,")
    path.write_text("\n".join(rows) + "\n")
    return study.joined(path, steps)


def test_seeds_of_another_machine_join(tmp_path, capsys):
    """Each run counts once, and a table of joined runs is that of the runs in one place."""
    losses = {("dense", 1): 3.0, ("dense", 2): 3.25, ("dense", 3): 3.5}
    losses |= {(FULL, 1): 2.5, (FULL, 2): 2.75, (FULL, 3): 3.125, (f"{FULL}+constant", 1): 2.625}
    study.show([], write(tmp_path / "all.csv", losses), tmp_path, "modules")
    whole = capsys.readouterr().out
    assert (tmp_path / "runs.csv").read_text() == (tmp_path / "all.csv").read_text()
    full = cells(whole)[FULL]
    assert full["validation loss"].startswith("2.7917 ±")
    assert full["difference"] == "-0.4583 ± 0.0722"
    assert full["to constant"] == "-0.1250"
    assert full["largest / median"] == "7.8"
    assert full["seeds"] == "3"
    assert cells(whole)["dense"]["difference"] == ""
    assert (tmp_path / "tokens.png").stat().st_size > 1000
    rows = write(tmp_path / "all.csv", losses)
    first = {key: loss for key, loss in losses.items() if key[1] < 3} | {(FULL, 3): 9.0}
    here = [row for row in rows if row["seed"] == 3]
    both, names = pooled(here, write(tmp_path / "first.csv", first))
    assert both == rows
    assert names == ["dense", FULL, f"{FULL}+constant"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("", "no runs.csv of a study"),
        ("arm,seed\ndense,1\n", "no runs.csv of a study"),
        ("HEAD\ndense,1,1000\n", "line 2 has 3 cells"),
        ("HEAD\ndense,1,1000,10,40960,5.0,3.0,,,,,\n", "10 steps.* 600"),
        ("HEAD\ndense,1,1000,ten,40960,5.0,3.0,,,,,\n", "line 2: step is 'ten'"),
        ("HEAD\ndense,1,1000,600,40960,5.0,nan,,,,,\n", "line 2: validation_loss is 'nan'"),
        ("HEAD\ndense,-1,1000,600,40960,5.0,3.0,,,,,\n", "line 2: seed is '-1'"),
        (
            "HEAD\n" + 2 * "dense,1,1000,600,9,5.0,3.0,,,,,\n",
            "line 3: step 600 of seed 1 of dense .* twice",
        ),
    ],
)
def test_a_file_that_is_no_study_s(tmp_path, text, message):
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_text(text.replace("HEAD", ",".join(FIELDS)))
    with pytest.raises(PlanError, match=message):
        study.joined(path, 600)


@pytest.mark.parametrize(
    ("of", "name"), [("modules", "rates"), ("claim", "claim_1024"), ("claim_1024", "claim")]
)
def test_a_file_of_another_study(of, name):
    """Though the number of steps is the same, and some arms have the same names."""
    path = ROOT / f"results/trainability/{name}.csv"
    config = study.StudyConfig(of, joined=str(path))
    runs, _, _ = study.planned(config, studies.STEPS[of])
    with pytest.raises(PlanError, match=rf"{name}\.csv .*{of} has no "):
        study.refuse_others(study.joined(path, studies.STEPS[of]), runs, config)


def test_a_spreadsheet_s_mark_and_order(tmp_path):
    rows = write(tmp_path / "runs.csv", {("dense", 1): 3.0})
    head, *lines = (tmp_path / "runs.csv").read_text().splitlines()
    (tmp_path / "runs.csv").write_text("\ufeff" + "\n".join([head, *reversed(lines)]), encoding="utf-8")
    assert study.joined(tmp_path / "runs.csv", 10) == rows[::-1]


def bench(path, **seconds):
    with Lines(path, dict.fromkeys(("device", "python", "torch", "triton", "commit", "sizes"))) as lines:
        for name, times in seconds.items():
            named = "+".join(f"config/study/{part}.py" for part in name.split("__"))
            lines.add("training", named, "blocks", {"seconds": 77.0})
            for item, median in zip(("step", "step as a CUDA graph"), times, strict=False):
                lines.add("training", named, item, {"seconds": median, "tokens_per_second": 1.0})
    return str(path)


def test_hours_by_the_step_times_of_a_bench(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(study.figure, "draw", lambda arms, against: drawn.update({against: arms}))
    monkeypatch.setattr(study.picture, "write", lambda *_, **__: None)
    losses = {("cffn_glu_rope", 1): 2.5, ("dense+rope", 1): 3.0}
    rows = write(tmp_path / "all.csv", losses)
    times = {"dense__rope__rate_8e3": [9.0, 3.0], "dense__cffn_glu_rope__rate_8e3": [1.0]}
    found = study.step_times(bench(tmp_path / "b.json", **times), "claim")
    study.show([], rows, tmp_path, "claim", found)
    assert [[at["seconds"] for at in arm.runs[0].evaluations.values()] for arm in drawn["hours"]] == [
        [0.0, 30.0],
        [0.0, 10.0],
    ]
    assert "5.0" in (tmp_path / "runs.csv").read_text()  # what the runs took stays in the CSV
    study.refuse_missing(["dense+rope", "cffn_glu_rope"], found, "claim")
    del found["cffn_glu_rope"]
    measure = "measure config/study/dense.py+config/study/cffn_glu_rope.py+config/study/rate_8e3.py"
    with pytest.raises(PlanError, match=re.escape(f"--step_times has no cffn_glu_rope: {measure} with")):
        study.refuse_missing(["dense+rope", "cffn_glu_rope"], found, "claim")
    (tmp_path / "d.json").write_text('{"models": {"a": {"seconds": {"step": [1.0]}}}}')
    for name, why in (
        ("d.json", ": no training step of bench.py"),
        ("all.csv", ", line 2: no result of"),
        ("x.json", " cannot be read: No such file"),
    ):
        with pytest.raises(PlanError, match=rf"--step_times.*{re.escape(name)}{why}"):
            study.step_times(str(tmp_path / name), "claim")


def planned(name, **keys):
    config = study.StudyConfig(name, **keys)
    runs, _, _ = study.planned(config, studies.STEPS[name])
    return [study.key_of(run, name) for run in study.chosen(runs, config)]


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_can_be_planned(name):
    """Each arm has a name of its own."""
    runs = planned(name, seeds=[5])
    assert len(set(runs)) == len(runs) > 1
    assert {seed for _, seed in runs} == {5}


def test_some_arms_of_a_study():
    """By their names in the table, which do not depend on what else is trained."""
    only = ["dense+rope", "cattn_m_shared"]
    assert planned("claim", only=only) == [(name, 1) for name in only]
    depth = "full_relative_cf_depth=2_dyadic=True"
    assert planned("depths", only=[depth], seeds=[2]) == [(depth, 2)]
    assert len(planned("depths", only=["full_relative"])) == 16
    rates = planned("rates", only=["dense"])
    assert rates == [(f"dense_learning_rate={rate}_min_lr={low}", 1)
                     for rate, low in (("2e-3", "2e-4"), ("8e-3", "8e-4"))]  # fmt: skip
    with pytest.raises(PlanError, match=r"--only: claim has no full"):
        planned("claim", only=["full"])
    name = "study-dense+study-rope"
    assert (
        studies.shortly(f"{name}_learning_rate=2e-3_min_lr=2e-4", "rates")
        == "dense+rope_learning_rate=2e-3_min_lr=2e-4"
    )
    assert studies.shortly(f"{name}+study-rate_8e3", "longer") == "dense+rope+rate_8e3"
    assert studies.shortly(f"{name}+study-rate_8e3", "claim") == "dense+rope"
    assert studies.in_order(["x", "cffn_glu", "dense", "cffn_glu+control"], "modules") == [
        *("dense", "cffn_glu", "cffn_glu+control", "x")
    ]


def test_arms_whose_code_has_left():
    """They cannot be trained, and their published rows still join the study's table."""
    for name, gone in studies.GONE.items():
        rows = study.joined(ROOT / f"results/trainability/{name}.csv", studies.STEPS[name])
        arms = dict.fromkeys(row["arm"] for row in rows)
        assert {*gone} <= {*arms}
        config = study.StudyConfig(name)
        runs, _, _ = study.planned(config, studies.STEPS[name])
        assert not {*gone} & {study.key_of(run, name)[0] for run in runs}
        study.refuse_others(rows, runs, config)
        assert studies.in_order(arms, name)[-len(gone) :] == [arm for arm in arms if arm in gone]
        config.only = gone[:1]
        with pytest.raises(PlanError, match=rf"{re.escape(gone[0])} has left .* git checkout 466f118"):
            study.chosen(runs, config)


def test_a_renamed_config_keeps_its_name_in_tables(monkeypatch):
    monkeypatch.setitem(studies.RENAMED, "key_shift", "token_shift")
    stacks = studies.on_base("rope+rate_8e3", "rope+key_shift+rate_8e3")
    assert "config/study/token_shift.py" in stacks[1]
    monkeypatch.setitem(studies.STUDIES, "key_shift", [stacks])
    assert list(studies.short_names("key_shift").values()) == ["dense+rope", "dense+rope+key_shift"]


@pytest.fixture
def small(monkeypatch, arguments, tmp_path):
    """small(key=value) runs the study `units` with two tiny arms -> its exit status or message."""
    kept = ("--dataset", "--n_", "--block", "--batch", "--eval_tokens", "--learning", "--device", "--dtype")
    keys = [argument for argument in arguments if argument.startswith(kept)]
    arms = [*studies.on_base("rope", "cffn_added+rope"), *keys, "--vary=cf_depth=1,2"]
    monkeypatch.setitem(studies.STUDIES, "units", [arms])

    def run(**keys):
        config = study.StudyConfig("units", **{"out": str(tmp_path / "out"), "max_iters": 10} | keys)
        with pytest.raises(SystemExit) as stop:
            study.main(config)
        return stop.value.code

    return run


def test_a_study_from_end_to_end(small, here, capsys, tmp_path):
    folder, joined = tmp_path / "out/units", tmp_path / "first.csv"
    assert small(dry_run=True) == 0
    assert "to train: 3 runs" in (said := capsys.readouterr().out)
    assert "no run has finished yet" in said
    assert not (tmp_path / "out").exists()
    assert small() == 0
    assert len(here) == 3
    table = (folder / "table.md").read_text()
    assert list(cells(table)) == ["dense+rope", "cffn_added+rope_cf_depth=1", "cffn_added+rope_cf_depth=2"]
    (folder / "runs.csv").rename(joined)
    here.clear()
    capsys.readouterr()

    # in another folder the joined runs are not trained again, and what is missing is
    other = {"joined": str(joined), "seeds": [1, 2], "only": ["dense+rope"]}
    assert small(**other | {"out": str(tmp_path / "two"), "dry_run": True}) == 0
    assert not here
    assert "1 joined run in" in capsys.readouterr().out
    assert small(**other | {"out": str(tmp_path / "two")}) == 0
    assert len(here) == 1
    rows = cells(capsys.readouterr().out)
    assert rows["dense+rope"]["seeds"] == "2"
    assert rows["cffn_added+rope_cf_depth=1"] == cells(table)["cffn_added+rope_cf_depth=1"]

    # nor are they lost in the next call
    here.clear()
    alone = {"out": str(tmp_path / "two"), "only": ["dense+rope"], "seeds": [2]}
    assert "has 3 runs that were joined" in small(**alone)
    assert small(**alone, joined=str(tmp_path / "two/units/runs.csv")) == 0
    assert cells(capsys.readouterr().out)["dense+rope"]["seeds"] == "2"
    assert not here

    joined.write_text(re.sub(r"dense\+rope,1,\d+", "dense+rope,1,77", joined.read_text()))
    assert "dense+rope has 77 parameters" in small(joined=str(joined))
    times = bench(tmp_path / "b.json", dense__rope=[2.0])
    assert "--step_times has no cffn_added+rope_cf_depth=1" in small(step_times=times)
    assert not here


def test_a_study_that_is_stopped(small, monkeypatch, tmp_path, capsys):
    """What trains saves a checkpoint and ends, and nothing is started any more."""
    started = []

    class Process:
        signals, returncode = 0, 143

        def poll(self):
            return 143 if self.signals else None

        def send_signal(self, number):
            self.signals += 1

        terminate = wait = lambda self: None

    def start(run, slot, folder, defaults, gpus, parallel):
        started.append(run.name)
        os.kill(os.getpid(), signal.SIGTERM)
        return Process()

    monkeypatch.setattr(execution, "train", start)
    monkeypatch.setattr(execution, "SECONDS", 0)
    assert small() == 143
    assert len(started) == 1
    assert "stopped with 3 of 3 runs left" in capsys.readouterr().err
    assert not (tmp_path / "out/units/runs.csv").exists()


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"joined": ""}, "joined is empty"),
        ({"step_times": ""}, "step_times is empty"),
        ({"out": ""}, "out is empty"),
        ({"only": [""]}, "only has an empty name"),
        ({"seeds": [1, -1]}, "seeds: -1 is below 0"),
        ({"max_iters": 0}, "max_iters must be above 0, not 0"),
    ],
)
def test_what_cannot_be_meant(keys, complaint):
    (told,) = study.StudyConfig("claim", **keys).check()
    assert told.startswith(complaint)


def test_it_takes_no_config_files(capsys):
    """Their max_iters would change what a study trains."""
    for arguments, said in (
        (["claim", studies.BASE], "dense.py: this script takes no config files"),
        (["--help"], "[STUDY] [--key"),
    ):
        with pytest.raises(SystemExit):
            study.configurator.parse(study.StudyConfig, arguments, positional="study", files=False)
        assert said in "".join(capsys.readouterr())


def test_a_folder_below_a_file(small, tmp_path):
    (tmp_path / "out").touch()
    assert "out is a file, and a folder is needed" in small()
    assert "out is a file, and a folder is needed" in small(dry_run=True)


def test_a_folder_of_something_else(small, tmp_path):
    (tmp_path / "out/units").mkdir(parents=True)
    (tmp_path / "out/units/thesis.txt").touch()
    assert "holds files but no ablation.json" in small()
