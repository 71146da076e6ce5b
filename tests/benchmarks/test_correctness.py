"""The gate before any speed: it passes the kernels as they are, and stops one that is wrong anywhere."""

import pytest
import torch

from benchmarks import correctness, operators

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_are_right(dtype):
    seen = set()
    for kernel in correctness.awkward(CPU, True):
        for name, compare in correctness.gate(kernel, dtype, True, CPU).items():
            found = compare()
            assert found["wrong"] == {}, name
            assert found["distances"]
            seen |= set(found["distances"])
    assert {"continuants, torch, eager", "shared_attention, torch, eager", "SDPA, in parts, eager"} <= seen
    assert {"wide_attention, eager", "causal_linear, eager", "unpack_lower, eager"} <= seen
    assert {"linear_cross_entropy, eager", "embedding, eager"} <= seen


@pytest.mark.parametrize(
    ("kernel", "where", "form"),
    [
        ("continued_fraction", (correctness, "continued_fraction"), "continuants, torch, eager"),
        ("shared_attention", (operators, "shared_attention"), "shared_attention, torch, eager"),
        ("wide_attention", (operators, "wide_attention"), "wide_attention, eager"),
        ("causal_linear", (operators, "causal_linear"), "causal_linear, eager"),
        ("unpack_lower", (correctness, "unpack_lower"), "unpack_lower, eager"),
        ("linear_cross_entropy", (operators, "linear_cross_entropy"), "linear_cross_entropy, eager"),
        ("embedding", (correctness, "embedding"), "embedding, eager"),
    ],
)
def test_a_wrong_kernel_is_found(kernel, where, form, monkeypatch):
    right = getattr(*where)

    def last_is_wrong(*given, **keys):
        """Of a single value, as where a mask forgets the end of a tile."""
        out = right(*given, **keys)
        flat = out.flatten()
        return torch.cat((flat[:-1], 3 * flat[-1:] + 1)).view_as(out) if out.dtype != torch.float64 else out

    monkeypatch.setattr(*where, last_is_wrong)
    made = correctness.gate(kernel, "float32", True, CPU)
    assert any("away from the oracle" in compare()["wrong"].get(form, "") for compare in made.values())

    def fails(*given, **keys):
        if given[0].dtype == torch.float64:
            return right(*given, **keys)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(*where, fails)
    found = [compare()["wrong"] for compare in correctness.gate(kernel, "float32", True, CPU).values()]
    assert any("RuntimeError: no such instruction" in one.get(form, "") for one in found)
