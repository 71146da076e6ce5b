"""results/trainability.py: what it makes of runs; and results/trainability.md says what its CSVs say."""

import csv
import importlib.util
import json
import re
from pathlib import Path

import pytest

from comparison.pooled import FIELDS, pooled

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "results/trainability.md").read_text()
STEPS = {"baselines": 1500, "claim": 1500, "claim_3000": 3000, "longer": 1500, "units": 1500}
STEPS |= {"depths": 300, "modules": 600, "paper": 600, "poles": 600, "rescues": 600}


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("trainability", ROOT / "results/trainability.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(markdown, losses="validation loss"):
    """{arm: {column: cell}} of every table of arms in a text."""
    found, head = {}, []
    for line in markdown.splitlines():
        row = [cell.strip() for cell in line.split("|")[1:-1]]
        if not row:
            head = []
        elif row[0] == "arm" and losses in row:
            head = row
        elif head and not set(row[0]) <= set("-: "):
            found[row[0]] = dict(zip(head, row, strict=True))
    return found


def section(name):
    (text,) = (part for part in re.split(r"\n##+ ", PAGE) if f"`trainability_{name}.csv`" in part)
    return text


@pytest.mark.parametrize("name", STEPS)
def test_the_page_says_what_the_runs_say(study, name):
    rows = study.joined(ROOT / f"results/trainability_{name}.csv", STEPS[name])
    names = list(dict.fromkeys(row["arm"] for row in rows))
    arms = [study.Arm(arm, study.runs_of(arm, rows)) for arm in names]
    told, here = cells(section(name)), cells(study.table_of(arms))
    assert here.keys() == told.keys()
    columns = [column for column in study.COLUMNS if not column.startswith(("gradient", "95", "largest"))]
    for arm, row in here.items():
        for column in columns:
            if column not in ("spikes", "clamped"):
                assert row.get(column, "") == told[arm].get(column, ""), (arm, column)


def test_the_readme_says_what_the_runs_say(study):
    """Its table has other names for the arms: they are told apart by their parameters."""
    rows = study.joined(ROOT / "results/trainability_claim.csv", STEPS["claim"])
    names = list(dict.fromkeys(row["arm"] for row in rows))
    arms = cells(study.table_of([study.Arm(arm, study.runs_of(arm, rows)) for arm in names]))
    (text,) = re.findall(
        r"## Do continued fractions pay\?(.*?)\n## ", (ROOT / "README.md").read_text(), re.S
    )
    columns = ("without embeddings", "seeds", "validation loss", "difference", "p")
    told = [tuple(cell.strip() for cell in row.split("|")[2:-1]) for row in re.findall(r"\n(\|.*\|)", text)]
    assert told[0] == columns
    assert told[2:] == [tuple(arm.get(column, "") for column in columns) for arm in arms.values()]


def write(study, path, losses, steps=10):
    """losses: {(arm, seed): its last loss}"""
    rows = [",".join(FIELDS)]
    for (arm, seed), loss in losses.items():
        rows.append(f"{arm},{seed},1000,0,0,0.0,7.0,,,,,")
        rows.append(f"{arm},{seed},1000,{steps},40960,5.0,{loss},0.5,0.7,{0.9 + seed},0,")
    path.write_text("\n".join(rows) + "\n")
    return study.joined(path, steps)


def test_seeds_of_another_machine_join(study, tmp_path, capsys):
    """Each run counts once, and a table of joined runs is that of the runs in one place."""
    losses = {("dense", 1): 3.0, ("dense", 2): 3.25, ("dense", 3): 3.5}
    losses |= {("full", 1): 2.5, ("full", 2): 2.75, ("full", 3): 3.125, ("full+constant", 1): 2.625}
    study.show([], write(study, tmp_path / "all.csv", losses), tmp_path, "modules")
    whole = capsys.readouterr().out
    assert (tmp_path / "runs.csv").read_text() == (tmp_path / "all.csv").read_text()
    full = cells(whole)["full"]
    assert full["validation loss"].startswith("2.7917 ±")
    assert full["difference"] == "-0.4583 ± 0.0722"
    assert full["to constant"] == "-0.1250"
    assert full["largest / median"] == "7.8"
    assert full["seeds"] == "3"
    assert cells(whole)["dense"]["difference"] == ""
    assert (tmp_path / "tokens.png").stat().st_size > 1000
    rows = write(study, tmp_path / "all.csv", losses)
    first = {key: loss for key, loss in losses.items() if key[1] < 3} | {("full", 3): 9.0}
    here = [row for row in rows if row["seed"] == 3]
    both, names = pooled(here, write(study, tmp_path / "first.csv", first))
    assert both == rows
    assert names == ["dense", "full", "full+constant"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("", "no runs.csv of a study"),
        ("arm,seed\ndense,1\n", "no runs.csv of a study"),
        ("HEAD\ndense,1,1000\n", "line 2 has 3 cells in place of 12"),
        ("HEAD\ndense,1,1000,10,40960,5.0,3.0,,,,,\n", "has runs of 10 steps.*--max_iters=600"),
        ("HEAD\ndense,1,1000,ten,40960,5.0,3.0,,,,,\n", "line 2: step is 'ten', no number"),
    ],
)
def test_a_file_that_is_no_study_s(study, tmp_path, text, message):
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_text(text.replace("HEAD", ",".join(FIELDS)))
    with pytest.raises(SystemExit, match=message):
        study.joined(path, 600)


def bench(path, **seconds):
    models = {name.replace("__", "+"): {"seconds": {"whole": times}} for name, times in seconds.items()}
    named = {
        "+".join(f"config/study/{part}.py" for part in name.split("+")): m for name, m in models.items()
    }
    path.write_text(json.dumps({"models": named}))
    return str(path)


def test_hours_by_the_step_times_of_a_bench(study, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(study.figure, "draw", lambda arms, against, path: drawn.update({against: arms}))
    rows = write(study, tmp_path / "all.csv", {("cffn_glu_rope", 1): 2.5, ("dense+rope", 1): 3.0})
    times = {"dense__rope__rate_8e3": [2.0, 9.0, 3.0], "dense__cffn_glu_rope__rate_8e3": [1.0]}
    found = study.step_times(bench(tmp_path / "b.json", **times), "claim")
    study.show([], rows, tmp_path, "claim", found)
    assert [[at["seconds"] for at in arm.runs[0].evaluations.values()] for arm in drawn["hours"]] == [
        [0.0, 30.0],
        [0.0, 10.0],
    ]
    assert "5.0" in (tmp_path / "runs.csv").read_text()  # what the runs took stays in the CSV
    other = study.step_times(bench(tmp_path / "c.json", dense__rope__rate_8e3=[2.0]), "claim")
    with pytest.raises(SystemExit, match=r"--step_times has no cffn_glu_rope; it has dense\+rope"):
        study.show([], rows, tmp_path, "claim", other)
    (tmp_path / "d.json").write_text('{"models": {"a": {"seconds": {"step": [1.0]}}}}')
    for name in ("d.json", "none.json", "all.csv"):
        with pytest.raises(SystemExit, match=rf"{re.escape(name)}: no JSON of bench.py --mode=train"):
            study.step_times(str(tmp_path / name), "claim")


def test_some_arms_of_a_study(study):
    """By their names in the table, which do not depend on what else is trained."""
    (call,) = study.chosen("claim", ["dense+rope", "cattn_m_shared"])
    assert call == study.on_base("rope+rate_8e3", "cattn_m_shared+rate_8e3")
    rates = study.chosen("rates", ["dense"])
    assert [call[0] for call in rates] == [study.BASE]
    assert rates[0][1].startswith("--vary=learning_rate")
    assert study.chosen("longer", None) == study.STUDIES["longer"]
    with pytest.raises(
        SystemExit, match=r"--only: claim has no full; it has dense\+rope, mlp_narrow\+rope"
    ):
        study.chosen("claim", ["full"])
    name = "study-dense+study-rope"
    assert (
        study.shortly(f"{name}_learning_rate=2e-3_min_lr=2e-4", "rates")
        == "dense+rope_learning_rate=2e-3_min_lr=2e-4"
    )
    assert study.shortly(f"{name}+study-rate_8e3", "longer") == "dense+rope+rate_8e3"
    assert study.shortly(f"{name}+study-rate_8e3", "claim") == "dense+rope"
    assert study.in_order(["x", "cffn_gated", "dense", "cffn_gated_clamp"], "modules") == [
        *("dense", "cffn_gated", "cffn_gated_clamp", "x")
    ]


@pytest.mark.parametrize("name", [*STEPS, "rates", "claim_rates"])
def test_csvs_name_their_arms_as_the_study_does(study, name):
    with (ROOT / f"results/trainability_{name}.csv").open() as file:
        arms = dict.fromkeys(row["arm"] for row in csv.DictReader(file))
    known = list(study.short_names(name).values())
    assert all(study.longest(known, arm.split("=")[0]) for arm in arms)
