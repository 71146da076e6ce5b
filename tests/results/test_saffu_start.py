"""The page of warm against cold starts says what its CSV says."""

from pathlib import Path

import pytest

from results.saffu import start

ROWS = start.read_rows()


def test_the_page_has_the_tables_of_the_csv():
    page = (start.HERE / "start.md").read_text()
    for part in start.tables(ROWS).split("\n\n"):
        assert part in page


def test_the_best_rates_are_inside_the_rates_tried():
    for model, rate in start.best_rates(ROWS).items():
        rates = start.MODELS[model][1]
        assert rates[0] != rate != rates[-1], model


def test_a_run_that_did_not_come_so_far_is_left_out():
    keys = {"part": "epochs", "model": "explicit", "learning_rate": 1.0, "seconds": 0.0}
    rows = [
        {"part": "rates", "step": 2, "model": "explicit", "learning_rate": 1.0, "seed": 1},
        *(keys | {"seed": 1, "step": step, "validation_loss": 5.0 - step} for step in (0, 2, 4, 6)),
        *(keys | {"seed": 2, "step": step, "validation_loss": 4.0 - step} for step in (0, 2)),
    ]
    for epochs, losses in ((1, [3.0, 2.0]), (3, [-1.0])):
        runs = start.arm(rows, "explicit", 1.0, epochs).runs
        assert [run.evaluations[run.last_step]["val_loss"] for run in runs] == losses


def test_mistakes_are_told_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "ROOT", Path(tmp_path))
    (told, *rest) = start.StudyConfig("rates", out="", seeds=0).check()
    assert "out is empty" in told
    assert "seeds must be above 0" in rest[0]
    assert "start.py data" in rest[1]


@pytest.mark.parametrize("part", start.PARTS)
def test_an_epoch_ends_with_an_evaluation(part, monkeypatch):
    monkeypatch.setattr(start, "open_dataset", lambda *_: type("Data", (), {"n_windows": 2151}))
    steps = start.steps_of_epoch()
    assert steps == 270
    assert steps % start.PARTS[part] == 0
