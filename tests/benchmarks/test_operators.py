"""Kernels that are timed compute the right numbers."""

import pytest
import torch

from benchmarks import forms, operators

CPU = torch.device("cpu")
SMALL = operators.Sizes(2, 40, 24, 3, vocabulary=64, columns=60)


def test_kernels():
    for dtype in ("float32", "bfloat16"):
        for name in operators.cases(CPU, SMALL):
            made = forms.sections(name, SMALL, dtype, False, CPU)
            case = operators.describe(name, SMALL, CPU)
            assert list(made) == forms.names(name, SMALL, False, CPU)
            assert len(made) == len(case.implementations) + len(case.others)
            assert case.bytes
            assert case.flops
            assert case.amount() in (case.bytes, case.flops)
            for function in made.values():
                function()


def test_wrong_kernels_are_not_timed(monkeypatch):
    case = ("continued fraction, d=3, positive", SMALL, "float32", False, CPU)
    right = operators.continued_fraction
    monkeypatch.setattr(operators, "continued_fraction", lambda a, **keys: 1.001 * right(a, **keys))
    with pytest.raises(ValueError, match=r"continuants.*output"):
        forms.sections(*case)
    monkeypatch.setattr(
        operators,
        "continued_fraction",
        lambda a, **keys: right(a, **keys) + 0.01 * (a.sum() - a.sum().detach()),
    )
    with pytest.raises(ValueError, match=r"continuants.*gradient of input 1"):
        forms.sections(*case)
