"""results/scaling/recall.py: what it makes of its rows, and that the page is of the CSV."""

import itertools
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from results.scaling import recall
from results.scaling.recall import Row
from tests.scaling.synthetic import points

NAMES = {"a": "dense", "b": "ours"}
# {(family, seed): {repeat: (tokens, loss)}}
RUNS = {
    ("a", 1): {0: (60, 4.0), 1: (20, 3.0), 2: (15, 2.0), 3: (5, 1.0), 4: (0, 0.0)},
    ("a", 2): {0: (60, 4.5), 1: (20, 3.5), 2: (15, 2.5), 3: (5, 1.5), 4: (0, 0.0)},
    ("b", 1): {0: (60, 3.75), 1: (20, 3.0), 2: (15, 3.0), 3: (5, 2.0), 4: (0, 0.0)},
}
ROWS = [
    Row(family, "1M", 1e-3, seed, 1000, repeat, tokens, loss)
    for (family, seed), of in RUNS.items()
    for repeat, (tokens, loss) in of.items()
]


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_losses_are_means_over_tokens_for_each_seed():
    found = recall.losses(ROWS, (2, 3, 4))
    assert found["a", "1M"] == pytest.approx([(15 * 2 + 5) / 20, (15 * 2.5 + 7.5) / 20])
    assert found["b", "1M"] == pytest.approx([(15 * 3 + 10) / 20])
    assert list(recall.losses(ROWS, (0,))) == [("a", "1M"), ("b", "1M")]


def test_the_parts_of_a_difference_add_up_to_it():
    *_, row = [line for line in recall.page(ROWS, NAMES, "").splitlines() if line.startswith("|")]
    size, family, seeds, whole, *parts = cells(row)
    assert (size, family, seeds) == ("1M", "ours", "1")
    # new: 0.6 x (3.75 - 4.25); known: 0.2 x (3 - 3.25); copies: 0.2 x (2.75 - 2.0)
    assert parts == ["-0.300", "-0.050", "+0.150"]
    assert float(whole) == pytest.approx(sum(map(float, parts)), abs=0.002)


@pytest.mark.parametrize("folder", ["results/scaling", "results/scaling/h200", "results/hybrids"])
def test_the_page_is_that_of_the_csv(folder, monkeypatch):
    monkeypatch.chdir(recall.HERE.parents[1])
    page = (Path(folder) / "recall.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("    python "))
    monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
    written = []
    monkeypatch.setattr(recall, "write_whole", lambda _, text: written.append(text))
    monkeypatch.setattr(recall.picture, "write", lambda *_, **__: None)
    recall.main()
    assert written == [page]


def test_rows_of_other_learning_rates_leave():
    runs = [replace(p, size="1M", learning_rate=1e-3) for p in points(families=("dense",), sizes=("1M",))]
    rows = [replace(row, family="dense") for row in ROWS if row.family == "a"]
    swept_again = [replace(row, learning_rate=2e-3) for row in rows]
    assert recall.of_the_rule(swept_again + rows, runs) == rows


def test_pieces_are_from_all_over_the_tokens():
    streams = [np.arange(3_000), np.arange(3_000, 200_000)]
    found = recall.pieces(streams)
    assert [len(piece) for piece in found] == [1024] * 100
    assert found[0][0] == 0
    assert found[-1][-1] == 199_999
    assert all((np.diff(piece) == 1).all() for piece in found)
    assert {int(second[0]) - int(first[0]) for first, second in itertools.pairwise(found)} <= {2009, 2010}
