"""What a run writes into its log."""

import re
from types import SimpleNamespace

import pytest
import torch

from models import compilation
from training import hardware, reporting


def test_mfu_is_of_all_ranks(tiny):
    """Four ranks at the rate at which one gets a share of the peak get a quarter of it each."""
    shares = []
    for world in (1, 4):
        run = SimpleNamespace(config=tiny(), device=torch.device("cpu"), ranks=SimpleNamespace(world=world))
        run.config.dtype = "bfloat16"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reporting, "peak_flops", lambda name, dtype: 1e9)
            shares.append(reporting.Report.mfu(run, 100.0)["mfu"])
    assert shares[0] == pytest.approx(4 * shares[1])


def test_the_speed_is_that_of_recent_steps():
    speed = reporting.Speed(5, 500, 10.0)
    assert speed.in_words(7) == ""
    assert speed.rate(5, 500, 10.0) is None
    speed.restart(6, 600, 500.0)
    assert speed.rate(6, 600, 500.0) is None
    assert speed.rate(8, 800, 504.0) == 50
    assert speed.in_words(90) == ", 50 tokens/s, 03:00 left"
    assert speed.rate(9, 900, 505.0) == 100
    speed.restart(10, 1000, 900.0)
    assert speed.in_words(36) == ", 100 tokens/s, 00:36 left"


@pytest.mark.parametrize("interval", [1, 2])
def test_a_compilation_is_in_no_speed(run, monkeypatch, capsys, interval):
    """Each step takes a second and the first one an hour more: it is in no record and on no line."""
    now = [0.0]
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: now[0])

    def compiled(model, shapes):
        loss = model.loss

        def call(*inputs):
            if model.training:
                now[0] += 0.5 if now[0] else 3600.5  # of two micro-batches
            return loss(*inputs)

        model.loss = call

    monkeypatch.setattr(compilation, "missing_for_compile", list)
    monkeypatch.setattr(compilation, "compile_parts", compiled)
    _, records = run("a", "--max_iters=6", f"--log_interval={interval}", "--compile=True")
    training = [record for record in records if "loss" in record]
    assert training[-1]["seconds"] == pytest.approx(3606)
    rates = [record["tokens_per_second"] for record in training if "tokens_per_second" in record]
    assert len(rates) == len(training) - (interval == 1)
    assert rates == pytest.approx([256.0] * len(rates))
    said = capsys.readouterr().out
    assert re.search(r"step +6: loss [\d.]+, lr [\d.e-]+, 256 tokens/s\n", said)


def test_in_eager_mode_no_step_is_left_out(run):
    _, records = run("a", "--max_iters=2", "--log_interval=1")
    assert all("tokens_per_second" in record for record in records if "loss" in record)


def test_peak_memory_is_that_of_the_fullest_rank(run, monkeypatch, capsys):
    """In every training record and on the last line. Both kinds of peak, each of the rank that has most."""
    ranks = [
        {"peak_memory": 3 * 2**30, "peak_memory_reserved": 5 * 2**30},
        {"peak_memory": 4 * 2**30, "peak_memory_reserved": 2**29},
    ]
    monkeypatch.setattr(reporting, "peak_memory", lambda device: ranks[0])
    monkeypatch.setattr(
        reporting.Ranks, "gather", lambda ranks_, value: ranks if value == ranks[0] else [value]
    )
    _, records = run("a", "--max_iters=3", "--log_interval=2")
    training = [record for record in records if "loss" in record]
    assert [(r["peak_memory"], r["peak_memory_reserved"]) for r in training] == [(2**32, 5 * 2**30)] * 2
    assert "; peak memory 4.00 GiB of tensors, 5.00 GiB reserved; curve: " in capsys.readouterr().out


def test_peak_memory_on_a_cpu_is_in_the_log(run, capsys):
    _, records = run("a", "--max_iters=2", "--log_interval=2")
    (training,) = (record for record in records if "loss" in record)
    assert "peak_memory_reserved" not in training
    words = f"; peak memory {training['peak_memory'] / 2**30:,.2f} GiB; curve: "
    assert words in capsys.readouterr().out
    run("a", "--max_iters=2", "--resume=True")  # without a step, nothing is known
    assert "done: 2 steps, 512 tokens; curve: " in capsys.readouterr().out
