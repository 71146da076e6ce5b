"""The tables of the study of translation, from rows that are made up."""

import pytest

from results.translation import study


def row(part, model, seed, loss, **more):
    keys = {"part": part, "model": model, "seed": seed, "learning_rate": 2e-3, "steps": 12.0}
    keys |= {"parameters": 1e6, "validation_loss": loss, "decoding": "", "source": ""}
    return keys | more


def test_differences_are_paired_by_seed_and_scored_runs_count_once():
    scores = {"bleu": 20.0, "chrf": 40.0, "copy_bleu": 5.0, "copy_chrf": 30.0}
    rows = [row("rates", "dense", 1, 3.0), row("rates", "full", 1, 2.5, learning_rate=4e-3)]
    for seed, dense, full in ((1, 2.0, 1.8), (2, 2.2, 1.9)):
        for source in study.SCRIPTS:
            rows.append(row("runs", "dense", seed, dense, decoding="greedy", source=source, **scores))
        rows.append(row("runs", "full", seed, full))
    rows.append(row("runs", "full 3M", 1, 1.5))
    swept, losses, scored = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if "|" in line]
        for part in study.tables(rows).replace("6 epochs", "@").replace("BLEU /", "@").split("@")
    )
    assert swept[0] == ["model", "0.002", "0.004"]
    assert swept[2:] == [["dense", "3.0000", ""], ["full", "", "2.5000"]]
    assert losses[2] == ["dense", "1.00M", "0.002", "2", "2.1000 ± 0.1414", "", ""]
    assert losses[3][4:6] == ["1.8500 ± 0.0707", "-0.2500 ± 0.0707"]
    assert float(losses[3][6]) == pytest.approx(0.126, abs=0.005)
    assert losses[4][5] == ""  # nothing of its size to compare with
    assert scored[2] == ["dense", *["20.0 ± 0.0 / 40.0 ± 0.0"] * 3]
    assert scored[3] == ["the source, copied", *["5.0 / 30.0"] * 3]


def test_models_have_names_that_only_takes_and_sizes_as_planned():
    assert not any("," in name for name in study.MODELS)
    assert study.SMALL.keys() | study.SEEDS.keys() <= study.MODELS.keys()
