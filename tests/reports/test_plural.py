"""Singular and plural, and that messages use them."""

import torch

from corpus.preparing import describe
from reports.plural import counted
from training.environment import environment
from training.schedule import Dyadic


def test_counted():
    assert [counted(n, "run") for n in (0, 1, 2, 1200)] == ["0 runs", "1 run", "2 runs", "1,200 runs"]


def test_one_document_of_a_split(tmp_path):
    counts = {"documents": 1, "tokens": 5, "bytes": 9}
    meta = {
        "tokenizer": {"name": "bytes"},
        "vocab_size": 257,
        "splits": {"val": counts},
        "skipped_empty": 1,
    }
    said = describe(tmp_path, meta)
    assert "1 document, 5 tokens" in said
    assert "skipped 1 empty document\n" in said


def test_one_update(build):
    model = build(ffn="cffn_gated", cf_depth=2)
    for iterations, told in ((3, "get         1 update\n"), (4, "get         2 updates\n")):
        assert told in Dyadic(model, iterations).table(iterations) + "\n"


def test_one_thread():
    """Tests have one."""
    assert environment(torch.device("cpu"))["device"].endswith(", 1 thread")


def test_one_step_and_one_run(run, capsys):
    run("one", "--max_iters=1", "--warmup_iters=0", "--eval_interval=1")
    said = capsys.readouterr().out
    assert "run: 1 step of 256 tokens" in said
    assert "done: 1 step, " in said
