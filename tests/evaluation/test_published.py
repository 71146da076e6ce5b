"""The papers' figures: cells read a second time, and where they are shown."""

import pytest

from evaluation import published, report
from finetuning.tasks import PUBLISHED, TASKS
from reports.markdown_table import table as markdown_table


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        (published.TABLE_3, "GPT2-xl (1.5B), OWT", 0, 30.12),
        (published.TABLE_3, "CoFrGeNet-F (985M), OWT", 5, 16.14),
        (published.TABLE_3, "Synthesizer-D (1.2B), GW", 3, 46.81),
        (published.TABLE_3, "Sparse Attn (1.21B), GW", 4, 52.83),
        (published.TABLE_4, "GPT2-xl, OWT", 1, 643.93),
        (published.TABLE_4, "CoFrGeNet_B, OWT", 1, 5898.72),
        (published.TABLE_4, "CoFrGeNet_B, OWT", 0, 203),
        (published.TABLE_4, "CoFrGeNet, GW", 2, 1.49),
        (published.TABLE_5, "CoFrGeNet-F (985M), OWT, without the schedule", 1, 26.71),
        (published.TABLE_5, "CoFrGeNet-A (1.21B), OWT, without the schedule", 0, 38.24),
        (published.TABLE_5, "CoFrGeNet (798M), GW, without the schedule", 5, 21.67),
        (published.TABLE_6, "CoFrGeNet-A (2.5B)", 0, 0.304),
        (published.TABLE_6, "Llama (3.2B)", 7, 0.941),
        (published.TABLE_7, "CoFrGeNet-F (2.1B)", 0, 303),
        (published.TABLE_7, "CoFrGeNet (1.8B)", 1, 6.4),
        (published.EXPE, "ExPE Medium (table 1)", 5, 0.78),
        (published.EXPE, "ExQPE Small (table 1)", 2, 3.35),
        (published.EXPE, "ExPE 35M, learned (table 2)", 2, 7.61),
        (published.EXPE, "ExPE 35M, learned initialized (table 2)", 5, 1.6),
        (published.EXPE, "ExPE 35M, l = 1 (table 2)", 1, 4.83),
        (published.EXPE, "sinusoidal 35M (table 3)", 1, 4.75),
        (published.EXPE, "ExPE 35M (table 3)", 2, 3.88),
        (published.EXPE, "ExQPE Medium scaled by 0.5 (table 4)", 4, 4.98),
        (published.EXPE_5, "Llama Medium, RoPE (ExPE, table 5)", 2, 0.26),
        (published.EXPE_5, "ExQPE Medium (table 5)", 3, 0.31),
        (PUBLISHED, "GPT2-xl 1.5B, OpenWebText", 1, (88.93, 0.67)),
        (PUBLISHED, "CoFrGeNet-A 1.21B, OpenWebText", 6, (60.91, 0.92)),
        (PUBLISHED, "Sparse Attn 1.21B, OpenWebText", 0, (85.27, 0.63)),
        (PUBLISHED, "Sparse Attn 1.21B, OpenWebText", 7, (58.27, 0.25)),
        (PUBLISHED, "GPT2-xl 1.5B, GneissWeb", 6, (60.19, 0.01)),
        (PUBLISHED, "CoFrGeNet-F 985M, GneissWeb", 2, (82.73, 0.53)),
        (PUBLISHED, "Synthesizer-D 1.2B, GneissWeb", 7, (58.24, 0.97)),
        (PUBLISHED, "Sparse Attn 1.21B, GneissWeb", 3, (91.16, 0.16)),
    ],
)
def test_a_cell(table, row, column, value):
    assert table[row][column] == value


def test_tables_are_complete():
    assert [len(t) for t in (published.TABLE_3, published.TABLE_4, published.TABLE_5)] == [12, 10, 6]
    assert [len(t) for t in (published.TABLE_6, published.TABLE_7, PUBLISHED)] == [4, 4, 12]
    assert all(len(results) == len(TASKS) for results in PUBLISHED.values())
    numbers = [row.rpartition("(table ")[2][0] for row in published.EXPE]
    assert [numbers.count(n) for n in "1234"] == [6, 6, 3, 4]
    assert len(published.EXPE_5) == 8


def test_they_stand_below_ours_and_are_never_the_best():
    lengths = [{"factor": k, "loss": 9.0, "last": 9.0, "last_at_train_length": 9.0} for k in (1, 2)]
    found = {"lengths": lengths, "refused": {}, "train_length": 4, "tokens": 8, "documents": 1}
    said = report.extrapolation({"a": found, "b": found}, papers=True)
    assert "training time" in said
    assert "| published: ExPE Medium (table 1)" in said
    assert "**9.000**" in said
    assert "**2.59" not in said
    assert "training time" not in report.extrapolation({"a": found, "b": found}, papers=False)


def test_times():
    assert "5898.72 ± 3.91" in markdown_table(published.times("infer"))
    said = markdown_table(published.times("train"))
    assert "CoFrGeNet_B, GW" in said
    assert "303B" in said
    assert "158" in said  # 6.6 days
