"""results/scaling/precision.py: runs are paired with the same runs, and the page has its figures."""

from dataclasses import replace

import pytest

from results.scaling import precision
from scaling.points import read
from tests.scaling.synthetic import points


def test_runs_are_paired_with_the_same_runs():
    exact = points(sizes=("0.125M",), seeds=(1, 2))
    shifts = {("dense", 1): 0.01, ("dense", 2): 0.03, ("ours", 1): -0.02}
    here = [
        replace(p, loss=p.loss + shifts[p.family, p.seed]) for p in exact if (p.family, p.seed) in shifts
    ]
    found = precision.differences(here[::-1], exact)
    assert found == {"dense": pytest.approx([0.01, 0.03]), "ours": pytest.approx([-0.02])}
    first, second = precision.rows(found, {"dense": "GPT", "ours": "ours"})
    assert [*first.values()] == ["GPT", "2", "+0.0200", "0.0100"]
    assert [*second.values()] == ["ours", "1", "-0.0200", ""]
    other_rate = [replace(p, learning_rate=2 * p.learning_rate) for p in here]
    assert precision.differences(other_rate, exact) == {}


def test_the_page_has_its_figures():
    here, exact = (read([str(precision.HERE / name)]) for name in ("points.csv", "points_float32.csv"))
    names = dict(zip(dict.fromkeys(p.family for p in here), precision.LABELS, strict=True))
    page = (precision.HERE / "rope.md").read_text()
    rows = precision.rows(precision.differences(here, exact), names)
    assert [row["runs"] for row in rows] == ["3"] * 5
    told = " | ".join(f"{row['bfloat16 less float32']} ± {row['standard error']}" for row in rows)
    assert f"| {told} |" in page
