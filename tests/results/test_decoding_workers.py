"""Decoders that are measured side by side compute the same logits, and measured rows are kept."""

import pytest
import torch

from model import GPT
from results.speed import decoding_others, sample_in_turns, spin_count
from results.speed.decoding_worker import DECODERS
from results.speed.turns import Rows, Worker, started


@pytest.mark.parametrize("decoder", ["ours", "gpt2_static", "gpt2_dynamic"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@torch.no_grad()
def test_a_step_after_a_rewind_has_the_logits_of_a_forward_pass(tiny, decoder, dtype, tolerance):
    model = GPT(tiny()).init_weights().eval()
    for weight in model.parameters():
        weight.mul_(3)
    tokens = torch.randint(100, (3, 9))
    whole = model(tokens)
    forward, rewind = DECODERS[decoder](model.to(dtype), 3, False)
    forward(tokens[:, :7])
    for end in (7, 8, 7, 7, 8):
        rewind(7) if end == 7 else None
        found = forward(tokens[:, end : end + 1])
        assert found.dtype == dtype
        scale = whole.abs().max().item()
        torch.testing.assert_close(found.float(), whole[:, end], rtol=0, atol=tolerance * scale)


def test_workers_answer_and_end(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys\nfor line in sys.stdin: print(float(sys.argv[1]) * int(line), flush=True)"
    )
    with started({factor: Worker(script, factor) for factor in (2, 3)}, 1) as workers:
        for worker in workers.values():
            worker.ask(10)
        assert [worker.answer() for worker in workers.values()] == [20, 30]
        workers[2].ask("no number")
        with pytest.raises(RuntimeError, match="ended without an answer"):
            workers[2].answer()
    assert all(worker.process.returncode for worker in workers.values())


def test_measured_rows_are_kept(tmp_path):
    path, fields = tmp_path / "rows.csv", ["model", "spins"]
    rows = Rows(path, fields, "ms")
    rows.add(("dense", "0"), 1.23456)
    rows.add(("dense", "1000"), 2.0)
    assert Rows(path, fields, "ms").values == rows.values == {("dense", "0"): 1.235, ("dense", "1000"): 2}
    assert rows.of("dense") == [1.235, 2]
    with pytest.raises(ValueError, match="has the columns"):
        Rows(path, ["model"], "ms")


def test_the_tables(tmp_path):
    rows = Rows(tmp_path / "spins.csv", ["model", "threads", "machine", "spins", "repetition"], "ms")
    for spins in spin_count.SPINS:
        for number, value in enumerate((30.0, 10.0, 21.0)):
            rows.add(("full", "2", "busy", spins, str(number)), value)
    assert (
        spin_count.tables(rows).splitlines()[2].startswith("| full  |       2 |    busy | 21 (10 to 30) |")
    )
    rows = Rows(tmp_path / "others.csv", ["decoder", "dtype", "sequences", "threads", "repetition"], "ms")
    rows.add(("Decoder", "bfloat16", "1", "2", "1"), 7.0)
    header, _, line = decoding_others.tables(rows).splitlines()
    assert header.endswith("bfloat16, 1 sequence |")
    assert line.endswith(" 7 (7 to 7) |")
    fields = ["model", "prompt", "tree", "round", "until"]
    rows = Rows(tmp_path / "samples.csv", fields, "seconds")
    for number, old in (("1", 8.0), ("2", 6.0), ("3", 2.0)):
        for until, factor in (("first token", 1), ("end", 2)):
            rows.add(("full", "500", "old", number, until), factor * old)
            rows.add(("full", "500", "new", number, until), 4.0)
    rows.add(("full", "500", "old", "4", "end"), 9.0)  # without the other commit's
    line = sample_in_turns.tables(rows).splitlines()[2]
    assert "500 tokens | 6.0, 4.0 (1.50; 0.50 to 2.00)" in " ".join(line.split())
    assert "12.0, 4.0 (3.00; 1.00 to 4.00)" in line
