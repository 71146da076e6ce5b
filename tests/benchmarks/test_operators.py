"""Kernels that are timed compute the right numbers."""

import pytest
import torch

from benchmarks import operators

CPU = torch.device("cpu")


def test_kernels(capsys, monkeypatch):
    for name, value in {"WIDTH": 24, "LENGTH": 40, "VOCABULARY": 64, "COLUMNS": 60, "HEADS": 3}.items():
        monkeypatch.setattr(operators, name, value)
    for dtype in ("float32", "bfloat16"):
        for name in operators.cases(CPU, 2):
            made = operators.sections(name, 2, dtype, False, CPU)
            case = operators.describe(name, 2)
            assert len(made) == len(case.implementations) + len(case.others)
            assert case.bytes or case.flops
            for function in made.values():
                function()


def test_wrong_kernels_are_not_timed(monkeypatch):
    monkeypatch.setattr(operators, "LENGTH", 8)
    right = operators.continued_fraction
    monkeypatch.setattr(operators, "continued_fraction", lambda a, **keys: 1.001 * right(a, **keys))
    with pytest.raises(ValueError, match="continuants, eager: wrong output"):
        operators.sections("continued fraction, d=3, positive", 1, "float32", False, CPU)
    monkeypatch.setattr(
        operators,
        "continued_fraction",
        lambda a, **keys: right(a, **keys) + 0.01 * (a.sum() - a.sum().detach()),
    )
    with pytest.raises(ValueError, match="continuants, eager: wrong gradient of input 1"):
        operators.sections("continued fraction, d=3, positive", 1, "float32", False, CPU)
