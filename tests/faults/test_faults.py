"""The scripts of this folder with small counts, in one process; results/faults has the long runs.

Nothing may be lost, and every run must end with the numbers of the uninterrupted one, to the bit.
"""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import damage, kept, kill, runs, watched
from train import main
from training import checkpoint
from training.log import read_log

ROOT = Path(__file__).resolve().parents[2]
SHORT = """
import sys
from tests.faults import damage, fill_disk, kill, terminate
out = sys.argv[1]
kill.main([f"--csv={out}/kill.csv", "--count=8", "--seed=27", "--models=ladders"])
two = ["--kinds=warm2", "--models=ladders", "--timeout=4"]
kill.main([f"--csv={out}/kill2.csv", "--count=2", "--seed=40", *two])
fill_disk.main([f"--csv={out}/fill_disk.csv", "--count=4", "--seed=3", "--models=dense"])
terminate.main([f"--csv={out}/terminate.csv", "--count=5", "--seed=4", "--models=ladders"])
damage.main([f"--csv={out}/damage.csv", "--count=24", "--seed=5"])
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{script: rows of its CSV}"""
    out = tmp_path_factory.mktemp("faults")
    command = [sys.executable, "-c", SHORT, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)  # shown when a test fails
    return {path.stem: list(csv.DictReader(path.open())) for path in out.glob("*.csv")}


def test_killed_runs_lose_nothing(found):
    rows = found["kill"] + found["kill2"]
    assert len(rows) >= 10
    assert {row["moment"] for row in rows} <= {*kill.MOMENTS}  # which ones depends on the machine's speed
    for row in rows:
        assert (row["lost"], row["tracebacks"]) == ("", "0"), row
        assert (row["equal"], row["run_ended"]) == ("yes", "yes"), row
    survivors = [row for row in found["kill2"] if row["signal"] == "kill"]
    assert all(
        "did not arrive" in row["messages"] or "did not meet" in row["messages"] for row in survivors
    )


def test_a_full_disk_is_told_and_nothing_is_lost(found):
    rows = found["fill_disk"]
    assert sum(row["status"] == "1" for row in rows) > len(rows) // 2
    for row in rows:
        assert (row["lost"], row["tracebacks"], row["equal"]) == ("", "0", "yes"), row
        assert (row["status"] == "0") == (row["message"] == ""), row


def test_a_signal_within_an_evaluation_or_a_save_stops_with_a_checkpoint(found):
    rows = found["terminate"]
    assert sum(row["status"] == "143" for row in rows) > len(rows) // 2
    for row in rows:
        assert (row["wrong"], row["tracebacks"], row["equal"]) == ("", "0", "yes"), row


def test_damaged_files_are_harmless_or_refused(found):
    rows = found["damage"]
    assert {row["of"] for row in rows} == {of for of, _ in damage.READERS}
    assert sum(row["outcome"] == "refused" for row in rows) > len(rows) // 3
    for row in rows:
        assert row["outcome"] in ("same", "told", "log", "refused"), row


def test_what_counts_as_lost(tmp_path):
    """The ledger itself: a checkpoint that is gone or cut, a best one that is gone, a shorter log."""

    def lost():
        return " ".join(ledger.lost(slots))

    folder = tmp_path / "run"
    main(runs.command_line(runs.make_dataset(tmp_path / "data"), "dense", folder))
    slots = watched.new_slots(tmp_path / "watch", 1)
    slots["saved"], slots["synced"] = 24, (folder / "log.jsonl").stat().st_size
    states = [kept.state_of(checkpoint.find(folder, which)) for which in ("last", "best")]
    reference = kept.Reference(kept.without_times(read_log(folder)), *states, slots, 1.0)
    ledger = kept.Ledger(folder, reference)
    assert lost() == ""
    assert ledger.at_the_end() == []
    log = folder / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole.replace('"loss": ', '"loss": 1', 1))
    assert "log.jsonl before step 24: record 2 (step 1): loss" in lost()
    log.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert "were synced" in lost()
    assert ledger.at_the_end() == ["log.jsonl: 28 records in place of 29"]
    log.write_text(whole)
    newest, best = folder / "ckpt" / "step_00000024.pt", folder / "ckpt" / "best.pt"
    best.unlink()
    assert lost() == "the best checkpoint is gone"
    content = newest.read_bytes()
    newest.unlink()
    assert "the checkpoint of step 24 was saved and is gone" in lost()
    assert "1 checkpoints, there were 2" in lost()
    newest.write_bytes(content[:-500])
    assert "step_00000024.pt does not load" in lost()


def test_torchruns_own_traceback_does_not_count():
    of_torchrun = (
        "Traceback (most recent call last):\n"
        '  File "run.py", line 9, in <module>\n    main()\n    ~~~~^^\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n"
    )
    ours = "Traceback (most recent call last):\n  File \"train.py\", line 1\nKeyError: 'a'\n"
    said = "train.py: rank 1 is dead. Go on\n"
    assert runs.messages(of_torchrun + said) == ([said.strip()], 0)
    assert runs.messages(said + ours + of_torchrun) == ([said.strip()], 1)
