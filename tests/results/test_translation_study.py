"""The tables of the study of translation, from rows that are made up."""

import pytest

from results.translation import study, tables


def row(part, model, seed, loss, **more):
    keys = {"part": part, "model": model, "seed": seed, "learning_rate": 2e-3, "steps": 12.0}
    keys |= {"parameters": 1e6, "validation_loss": loss, "decoding": "", "source": ""}
    return keys | more


def test_differences_are_paired_by_seed_and_scored_runs_count_once():
    scores = {"bleu": 20.0, "chrf": 40.0, "copy_bleu": 5.0, "copy_chrf": 30.0}
    rows = [row("rates", "dense", 1, 3.0), row("rates", "full", 1, 2.5, learning_rate=4e-3)]
    for seed, dense, full in ((1, 2.0, 1.8), (2, 2.2, 1.9)):
        for source in study.DOMAINS["technical"]:
            rows.append(row("runs", "dense", seed, dense, decoding="greedy", source=source, **scores))
        rows.append(row("runs", "full", seed, full))
    text = tables.tables(rows).replace(tables.TITLES["runs"], "@").replace("BLEU /", "@")
    swept, losses, scored = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if "|" in line]
        for part in text.split("@")
    )
    assert swept[0] == ["model", "0.002", "0.004"]
    assert swept[2:] == [["dense", "3.0000", ""], ["full", "", "2.5000"]]
    assert losses[2] == ["dense", "1.00M", "0.002", "2", "2.1000 ± 0.1414", "", "", ""]
    assert losses[3][4:7] == ["1.8500 ± 0.0707", "dense", "-0.2500 ± 0.0707"]
    assert float(losses[3][7]) == pytest.approx(0.126, abs=0.005)
    assert scored[2] == ["dense", *["20.0 ± 0.0 / 40.0 ± 0.0"] * 3]
    assert scored[3] == ["the source, copied", *["5.0 / 30.0"] * 3]


def test_the_baselines_other_rates_on_the_bible_stand_beside_its_own():
    rows = [row("bible_rates", "dense", 1, 3.0, learning_rate=1e-3), row("bible", "full", 1, 1.0)]
    rows += [row("bible", "dense", seed, loss) for seed, loss in ((1, 2.0), (2, 9.0))]
    cells = [line.split() for line in tables.tables(rows).split("The Bible, one epoch\n")[0].splitlines()]
    assert cells[0][:2] == ["The", "Bible,"]
    assert cells[2:] == [*cells[2:4], ["|", "dense", "|", "3.0000", "|", "2.0000", "|"], []]


def test_models_have_names_that_only_takes_and_all_are_trained():
    assert not any("," in name for name in study.MODELS)
    assert sorted(study.ORDER) == sorted(study.MODELS)


def asked(monkeypatch, losses, runs=True):
    """What `wanted` lists where the rates that ended have these losses, without the model."""
    by_name = {study.run_name("rates", "F", rate, 1): loss for rate, loss in losses.items()}
    monkeypatch.setattr(study, "loss_of", lambda plan, name: by_name.get(name))
    found = study.wanted(None, "F", "runs" if runs else None, {})
    return [(part, rate, seed) for part, _, rate, seed in found]


def test_rates_are_swept_until_the_best_is_no_edge_and_then_all_seeds_run(monkeypatch):
    four = dict.fromkeys(study.RATES, 3.0)
    first = [("rates", rate, 1) for rate in study.RATES]
    assert asked(monkeypatch, {}) == first
    assert asked(monkeypatch, four | {4e-3: 2.0, 8e-3: None}) == first  # one has not ended
    assert asked(monkeypatch, four | {2e-3: 2.0}) == [("rates", 1e-3, 1), *first]
    assert asked(monkeypatch, four | {1.6e-2: 2.0}) == [*first, ("rates", 3.2e-2, 1)]
    assert asked(monkeypatch, dict.fromkeys(four, float("inf"))) == first  # all failed
    seeds = [("runs", 4e-3, seed) for seed in range(1, study.SEEDS + 1)]
    best = four | {4e-3: 2.0, 1.6e-2: float("inf")}
    assert asked(monkeypatch, best) == first + seeds
    assert asked(monkeypatch, best, runs=False) == first


def test_a_page_without_real_runs_leaves_study_csv_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "write_rows", lambda rows: pytest.fail("study.csv was overwritten"))
    monkeypatch.chdir(tmp_path)  # main() changes it
    with pytest.raises(SystemExit, match="holds no finished run"):
        study.main(study.StudyConfig("page", out=str(tmp_path / "nowhere")))
    monkeypatch.setattr(study, "collected", lambda out: [row("runs", "dense", 1, 2.0)])
    with pytest.raises(SystemExit, match="short runs of a trial"):
        study.main(study.StudyConfig("page", out=str(tmp_path)))


def test_what_the_keys_refuse(tmp_path):
    wrong = study.StudyConfig("tables", epoch=0, limit=-1, parallel=0).check()
    assert [line.partition(" must")[0] for line in wrong[:3]] == ["parallel", "epoch", "limit"]
    assert wrong[3] == "limit acts with scores only: leave it out"


def test_rates_of_an_earlier_sweep_serve_other_domains_and_larger_models():
    rows = [row("rates", "dense", 1, loss, learning_rate=rate) for rate, loss in ((2e-3, 3.0), (4e-3, 2.0))]
    known = tables.best_rates([*rows, row("runs", "dense", 1, 1.0, learning_rate=8e-3)])
    assert known == {"dense": 4e-3}
    assert study.wanted(None, "dense", "bible", known) == [
        *(("bible", "dense", 4e-3, n) for n in (1, 2, 3)),
        *(("bible_rates", "dense", rate, 1) for rate in (2e-3, 8e-3)),
    ]
    assert study.wanted(None, "dense 3M", "runs", known) == [("size", "dense 3M", 0.0027, 1)]
    assert study.wanted(None, "dense 3M", None, known) == []
    assert "full 3M is for" in study.StudyConfig("page", domain="bible", only=["full 3M"]).check()[0]
    assert study.StudyConfig("rates", domain="bible").check()[-1].startswith("rates are swept on technical")


def test_rows_of_other_runs_are_kept():
    old = [row("runs", "dense", seed, 2.0) for seed in (1, 2)]
    new = [row("runs", "dense", 2, 1.5), row("bible", "full", 1, 3.0)]
    joined = study.in_order(tables.joined(new, old))
    assert [(r["part"], r["model"], r["seed"], r["validation_loss"]) for r in joined] == [
        ("runs", "dense", 1, 2.0), ("runs", "dense", 2, 1.5), ("bible", "full", 1, 3.0)
    ]  # fmt: skip
