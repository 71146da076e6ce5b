"""Metrics against their definitions, and the tables against numpy."""

import numpy as np
import pytest

from finetuning.metrics import accuracy, f1, majority, matthews
from finetuning.report import report, summary


@pytest.mark.parametrize("seed", range(20))
def test_against_naive_definitions(seed):
    random = np.random.Generator(np.random.PCG64(seed))
    size = int(random.integers(2, 40))
    true = random.integers(0, 2, size)
    predicted = np.where(random.random(size) < 0.7, true, random.integers(0, 2, size))
    true[:2], predicted[:2] = (0, 1), (0, 1)  # no vector is constant, and one class 1 is found
    assert accuracy(predicted, true) == pytest.approx(sum(map(int, predicted == true)) / size)
    precision = np.mean([t for p, t in zip(predicted, true, strict=True) if p == 1])
    recall = np.mean([p for p, t in zip(predicted, true, strict=True) if t == 1])
    assert f1(predicted, true) == pytest.approx(2 * precision * recall / (precision + recall))
    assert matthews(predicted, true) == pytest.approx(np.corrcoef(predicted, true)[0, 1])
    assert majority(true) == pytest.approx(max(true.mean(), 1 - true.mean()))


def test_where_the_formulas_divide_by_zero():
    zeros, mixed = np.zeros(4, dtype=int), np.array([0, 1, 0, 1])
    assert f1(zeros, mixed) == f1(mixed, zeros) == f1(zeros, zeros) == 0
    assert matthews(zeros, mixed) == matthews(mixed, zeros) == 0
    assert f1(1 - zeros, 1 - zeros) == 1
    assert matthews(mixed, mixed) == 1
    assert matthews(1 - mixed, mixed) == -1


def test_three_classes():
    assert accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0])) == 0.75
    assert majority(np.array([2, 0, 2, 1])) == 0.5


def record(model, task, rate, seed, accuracy, **others):
    sets = {"matched": accuracy, "mismatched": accuracy - 0.01} if task == "mnli" else {"dev": accuracy}
    scored = {name: {"loss": 1.0, "accuracy": value, **others} for name, value in sets.items()}
    return {
        "model": model,
        "task": task,
        "settings": {"learning_rate": rate, "epochs": 3, "seed": seed},
        "data": {"validation": dict.fromkeys(sets, 100), "majority": dict.fromkeys(sets, 0.55)},
        "best": {"epoch": 2, **scored},
        "final": {"epoch": 3, **{name: {**one, "accuracy": 0.5} for name, one in scored.items()}},
        "skipped_steps": 1,
    }


def cells(text, row):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} ")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_the_table_is_of_the_best_rate_and_all_seeds():
    low, high = [0.60, 0.62, 0.61], [0.7, 0.8, 0.6]
    records = [record("a", "cola", 1e-5, s, v, matthews=v - 0.5) for s, v in enumerate(low)]
    records += [record("a", "cola", 3e-5, s, v, matthews=v - 0.5) for s, v in enumerate(high)]
    records += [record("b", "cola", 1e-5, s, v, matthews=0.1) for s, v in enumerate(low)]
    records += [record("b", "mnli", 1e-5, 0, 0.8)]
    text = summary(records)
    deviation = 100 * np.std(high, ddof=1)
    assert cells(text, "model") == ["model", "MNLI m / mm", "CoLA"]
    assert cells(text, "a") == ["a", "-", f"**70.00 ± {deviation:.2f}**"]
    assert cells(text, "b") == ["b", "80.00 / 79.00", "61.00 ± 1.00"]  # one seed has no deviation
    assert cells(text, "majority class")[1:] == ["55.00 / 55.00", "55.00"]
    assert cells(text, "paper: GPT2-xl 1.5B, OpenWebText")[1:] == ["86.89 ± 0.15", "81.78 ± 0.38"]
    lines = [line for line in report(records).splitlines() if line.startswith("| a ")][1:]
    assert len(lines) == 2
    assert "1e-05 |" in lines[0]
    assert "3e-05 * |" in lines[1]
    assert f"matthews 20.00 ± {deviation:.2f}" in lines[1]
    assert "50.00 ± 0.00" in lines[1]  # after the last epoch
    assert "2.0 of 3" in lines[1]
    assert [line for line in report(records).splitlines() if "MNLI mismatched" in line]
