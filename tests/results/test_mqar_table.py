"""results/mqar/table.py: which runs it measures, and what it makes of its rows."""

import sys

import pytest

import ablate
from results.mqar import table
from results.mqar.table import ALL, Row
from tests.corpus.test_mqar import prepared

# {(mixer, width, learning rate, seed): {pairs: accuracy}}
RUNS = {
    ("softmax", 32, 1e-3, 1): {ALL: 0.5, "2": 0.75, "10": 0.25},
    ("softmax", 32, 1e-3, 2): {ALL: 0.7, "2": 0.95, "10": 0.45},
    ("softmax", 32, 4e-3, 1): {ALL: 0.9, "2": 0.9, "10": 0.9},
    ("softmax", 32, 4e-3, 2): {ALL: 0.1, "2": 0.1, "10": 0.1},
    ("softmax", 64, 4e-3, 1): {ALL: 1.0, "2": 1.0, "10": 1.0},
    ("rope", 32, 1e-3, 1): {ALL: 0.25, "2": 0.25, "10": 0.25},
}
ROWS = [Row(*run, pairs, of[pairs], 1.0, 1000 * run[1]) for run, of in RUNS.items() for pairs in of]


def test_the_best_rate_has_the_highest_mean_over_seeds():
    assert table.best_rates(ROWS) == {("softmax", 32): 1e-3, ("softmax", 64): 4e-3, ("rope", 32): 1e-3}
    found = table.accuracies(ROWS, "10")
    assert found == {("softmax", 32): [0.25, 0.45], ("softmax", 64): [1.0], ("rope", 32): [0.25]}


def test_the_page():
    by_width, by_pairs = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line[:1] == "|"]
        for part in table.page(ROWS).split("The same runs")
    )
    assert by_width[0] == ["mixer", "width 32", "width 64"]
    assert by_width[2:] == [
        ["softmax", "60.0 ± 14.1 (0.001, edge)", "100.0 (0.004, edge)"],
        ["rope", "25.0 (0.001, edge)", ""],
    ]
    assert by_pairs[0] == ["mixer", "width", "parameters", "all", "2 pairs", "10 pairs"]
    assert by_pairs[2:4] == [
        ["softmax", "64", "64,000", "100.0", "100.0", "100.0"],
        ["rope", "32", "32,000", "25.0", "25.0", "25.0"],
    ]
    assert [row[0] for row in by_pairs[4:]] == list(table.CHANCES)


def test_guessing():
    """One pair: always right. Two: the first is right if they are alike, or by half; then one is left."""
    first = 1 / table.VALUES + (1 - 1 / table.VALUES) / 2
    assert table.chance(1, True) == table.chance(1, False) == 1
    assert table.chance(2, True, 40_000) == pytest.approx(first + 1, abs=0.01)
    assert table.chance(2, False, 40_000) == pytest.approx(2 * first, abs=0.01)


@pytest.mark.parametrize(
    ("arm", "found"),
    [
        ("recall-softmax_n_embd=64_learning_rate=4e-3", "softmax"),
        ("recall-softmax+study-cattn_m+study-strict_n_embd=64", "cattn_m+strict"),
        ("recall-softmax+recall-cattn_content_n_embd=64_learning_rate=4e-3", "cattn_content"),
    ],
)
def test_a_mixer_is_called_by_its_files(arm, found):
    assert table.mixer(arm, ["n_embd", "learning_rate"]) == found


def test_an_ablation_is_measured_once(here, arguments, tmp_path, monkeypatch, capsys):
    rows = prepared(tmp_path / "set")
    keys = [one for one in arguments if not one.startswith(("--dataset", "--n_embd", "--learning_rate"))]
    keys += [f"--dataset={rows}", f"--out_dir={tmp_path / 'study'}", "--max_iters=2", "--n_head=1"]
    models = ["config/recall/softmax.py", "config/recall/softmax.py+config/study/rope.py"]
    with pytest.raises(SystemExit) as stop:
        ablate.main([*models, *keys, "--vary=n_embd=8,16", "--seeds=5"])
    assert stop.value.code == 0
    monkeypatch.setattr(sys, "argv", ["table.py", f"--study={tmp_path / 'study'}", f"--folder={tmp_path}"])
    table.main()
    found = (tmp_path / "mqar.csv").read_text()
    measured = table.read(tmp_path)
    assert len(measured) == 2 * 2 * 4
    assert {(row.mixer, row.width, row.seed) for row in measured} == {
        (mixer, width, 5) for mixer in ("softmax", "rope") for width in (8, 16)
    }
    assert {row.pairs for row in measured} == {ALL, "1", "3", "8"}
    monkeypatch.setattr(table.mqar, "mqar", None)  # nothing is measured again
    table.main()
    assert (tmp_path / "mqar.csv").read_text() == found
    assert (tmp_path / "mqar.png").is_file()
    monkeypatch.setattr(sys, "argv", ["table.py", f"--study={tmp_path / 'none'}", f"--folder={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        table.main()
    assert "holds no ablation" in str(stop.value.code)
