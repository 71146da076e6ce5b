"""Streams of the hub: which form serves, what a bad connection costs, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corpus import DataError, binary, encoding, hub, preparing, splits
from tests.data.prepare_scripts import write_parquet

pytest.importorskip("datasets")
ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"page {i} " + "of the web " * (i % 5) for i in range(100)]


def forms(name="owner/name", whole=False):
    where = (name, None, "train")
    return [hub.plain(*where), hub.parquet(*where, whole=whole)]


def stream(state=None, document=lambda row, where: row["text"], which=None):
    return hub.Stream(which or forms(), document, "the data set", "what to do", state)


@pytest.fixture
def waits(monkeypatch):
    slept = []
    monkeypatch.setattr(hub.time, "sleep", slept.append)
    return slept


@pytest.fixture(name="served")
def _served(request):
    served = request.getfixturevalue("hub")
    served["owner/name"] = {"text": TEXTS}
    return served


@pytest.fixture
def breaks(served, monkeypatch):
    """Reading fails after breaks[0] row groups of 7 rows, after breaks[1] more, and so on."""
    from datasets.packaged_modules.parquet.parquet import Parquet

    generate, left = Parquet._generate_tables, []

    def generate_tables(self, *args, **keys):
        for table in generate(self, *args, **keys):
            if left:
                left[0] -= 1
                if left[0] < 0:
                    left.pop(0)
                    raise TimeoutError("the line\nwent dead")
            yield table

    monkeypatch.setattr(Parquet, "_generate_tables", generate_tables)
    return left


def test_a_stream_goes_on_where_it_broke_off(breaks, waits, capsys):
    breaks[:] = [3, 0, 2, 0, 5, 7]  # each attempt reads a file again from its beginning
    assert list(stream()) == TEXTS
    assert waits == [5, 10, 20, 40, 5, 5]
    said = capsys.readouterr().err
    assert "after 21 rows (TimeoutError: the line went dead); attempt 1 of 5" in said
    assert "after 35 rows" in said
    assert "after 49 rows" in said


def test_a_stream_gives_up_at_last(breaks, waits):
    breaks[:] = [7] + [0] * 10
    with pytest.raises(DataError, match=r"49 rows.*the line went dead\nwhat to do"):
        list(stream())
    assert waits == list(hub.WAITS)


def test_before_the_first_row_nothing_is_tried_again(breaks, waits):
    breaks[:] = [0]
    with pytest.raises(DataError, match="failed after 0 rows"):
        next(stream())
    assert waits == []


@pytest.mark.parametrize("n", [0, 1, 49, 50, 51, 99, 100])
def test_a_state_goes_on_behind_its_document(served, n):
    first = stream()
    assert [next(first) for _ in range(n)] == TEXTS[:n]
    state = json.loads(json.dumps(first.state()))
    assert list(stream(state)) == TEXTS[n:]
    again = stream(state)
    assert again.state() == state
    assert list(again) == TEXTS[n:]
    assert again.state()["rows"] == 100


def test_a_broken_row_is_named(served):
    def document(row, where):
        raise DataError(f"{where}: bad")

    with pytest.raises(DataError, match="the data set, row 1: bad"):
        next(stream(document=document))


def test_forms_in_turn(hub, capsys):
    refused = RuntimeError("Dataset scripts are no longer supported, but found name.py")
    served = request_forms(hub, refused, {"text": TEXTS})
    assert list(served) == TEXTS
    assert served.about() == {"read_as": "the hub's own conversion to Parquet"}
    said = capsys.readouterr().err
    assert "it is a loading script" in said
    assert "it may hold the first part only" in said
    with pytest.raises(DataError) as caught:
        next(request_forms(hub, refused, FileNotFoundError("no such revision")))
    for part in ("the data set cannot be had", "loading script", "no such revision", "what to do"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match=r" 0 rows.*something else\nwhat to do"):
        next(request_forms(hub, RuntimeError("something else"), {"text": TEXTS}))
    hub["asked"].clear()
    with pytest.raises(DataError, match="ConnectionError: no route"):
        next(request_forms(hub, ConnectionError("no route"), {"text": TEXTS}))
    assert len(hub["asked"]) == 1


def request_forms(served, plain, converted):
    served["owner/name"], served["owner/name", "refs/convert/parquet"] = plain, converted
    return stream()


def test_the_form_of_a_state_is_kept(hub):
    served = request_forms(hub, RuntimeError("scripts are no longer supported"), {"text": TEXTS})
    assert [next(served) for _ in range(3)] == TEXTS[:3]
    hub["owner/name"] = {"text": ["now it can be had otherwise"]}
    assert list(stream(served.state())) == TEXTS[3:]


def test_a_first_part_is_refused_where_the_whole_is_wanted(hub, monkeypatch):
    import corpus.hub

    request_forms(hub, RuntimeError("scripts are no longer supported"), {"text": TEXTS})
    listed = ["plain_text/train/0000.parquet"]
    monkeypatch.setattr(corpus.hub, "files", lambda name, revision: listed)
    assert len(list(stream(which=forms(whole=True)))) == 100
    listed[0] = "plain_text/partial-train/0000.parquet"
    with pytest.raises(DataError, match="it holds the first part only"):
        next(stream(which=forms(whole=True)))


def test_without_network():
    """The real library, kept offline by its own switch: an error that says so, at once."""
    code = "from tests.data.test_hub import stream; next(stream())"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert time.monotonic() - start < 30
    assert "DataError: the data set failed after 0 rows" in done.stderr
    assert done.stderr.strip().endswith("what to do")


# A source that is slow where the tokens are written, and batches of a few documents: progress at each of
# them, and time to be killed.
KILLED = """
import sys, time
from pathlib import Path
from corpus import binary, encoding, hub

encoding.BATCH_CHARACTERS = 300
binary.PROGRESS_SECONDS = 0

def open_parquet():
    return hub.library().load_dataset(
        "parquet", data_files={"train": sys.argv[2].split(",")}, split="train", streaming=True
    )

def documents(state=None):
    def document(row, where):
        if sys.argv[3] == "slow" and (Path(sys.argv[1] + ".partial") / "train.bin").exists():
            time.sleep(0.004)
        return None if row["id"] % 3 == 1 else row["text"]

    return hub.Stream([hub.Form("here", open_parquet)], document, "the data set", "", state)

if __name__ == "__main__":
    keys = {"max_tokens": int(sys.argv[5])} if sys.argv[5] != "0" else {}
    binary.prepare(documents, {"a": 1}, sys.argv[6], Path(sys.argv[1]), 0.2, int(sys.argv[4]), **keys)
"""


@pytest.mark.parametrize(
    ("kills", "workers", "max_tokens", "tokenizer"), [(2, 2, 14_000, "bytes"), (1, 1, 0, "bpe:300")]
)
def test_killed_in_the_middle(tmp_path, kills, workers, max_tokens, tokenizer):
    """SIGKILL in the middle of the stream: the folder is in the end that of one undisturbed run."""
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    texts = [f"{i} went on and on, {i} times" * (i % 4) for i in range(500)]
    rows = {"id": list(range(500)), "text": texts}
    paths = ",".join(write_parquet(tmp_path, rows))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(out, pace, number):
        command = [sys.executable, script, out, paths, pace, str(number), str(max_tokens), tokenizer]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    out, progress = tmp_path / "killed", tmp_path / "killed.partial" / "progress.json"
    read = 0
    for _ in range(kills):
        with start(out, "slow", workers) as process:
            while process.poll() is None and not (progress.exists() and read_of(progress) > read + 40):
                time.sleep(0.005)
            assert process.poll() is None, process.stderr.read()
            process.send_signal(signal.SIGKILL)
        read = read_of(progress)
    with start(out, "quick", 3 - workers) as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert f"going on behind the first {read:,} documents" in said

    kept = [None if i % 3 == 1 else text for i, text in enumerate(texts)]
    whole = tmp_path / "whole"
    binary.prepare(lambda: iter(kept), {"a": 1}, tokenizer, whole, 0.2, 1, max_tokens or None)
    meta = json.loads((out / "meta.json").read_text())
    assert meta.pop("read_as") == "here"
    assert meta == json.loads((whole / "meta.json").read_text())
    assert sorted(os.listdir(out)) == sorted(os.listdir(whole))
    for path in whole.iterdir():
        if path.name != "meta.json":
            assert (out / path.name).read_bytes() == path.read_bytes(), path.name


def read_of(progress):
    return json.loads(progress.read_text())["progress"]["read"]


def test_an_interruption_keeps_what_was_written(breaks, tmp_path, monkeypatch, waits, capsys):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 50)
    monkeypatch.setattr(binary, "PROGRESS_SECONDS", 0)
    breaks[:] = [9] + [0] * 5
    keys = ({"a": 1}, "bytes", tmp_path / "set", 0.2, 1)
    with pytest.raises(DataError, match="failed after 57 rows"):
        binary.prepare(stream, *keys)
    assert "set.partial is kept" in capsys.readouterr().err
    meta = binary.prepare(stream, *keys)
    assert "going on behind the first" in capsys.readouterr().err
    assert (meta["documents_read"], meta["skipped_empty"], meta["left_out"]) == (100, 0, 0)
    assert "progress.json" not in os.listdir(tmp_path / "set")


@pytest.mark.parametrize("damage", ["nonsense", "short"])
def test_progress_of_no_use_is_swept_away(breaks, tmp_path, monkeypatch, waits, capsys, damage):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 50)
    monkeypatch.setattr(binary, "PROGRESS_SECONDS", 0)
    breaks[:] = [9] + [0] * 5
    with pytest.raises(DataError):
        binary.prepare(stream, {"a": 1}, "bytes", tmp_path / "set", 0.2, 1)
    partial = tmp_path / "set.partial"
    before = sorted(path.read_bytes() for path in partial.iterdir())
    with pytest.raises(DataError, match="what another command has prepared"):
        binary.prepare(stream, {"a": 2}, "bytes", tmp_path / "set", 0.2, 1)
    assert sorted(path.read_bytes() for path in partial.iterdir()) == before
    if damage == "nonsense":
        (partial / "progress.json").write_text("{")
    else:
        (partial / "train.bin").write_bytes(b"")
    source = {"a": 1}
    binary.prepare(stream, source, "bytes", tmp_path / "set", 0.2, 1)
    assert "starting over" in capsys.readouterr().err
    binary.prepare(lambda: iter(TEXTS), source, "bytes", tmp_path / "other", 0.2, 1)
    for split in ("train", "val"):
        assert (tmp_path / "set" / f"{split}.bin").read_bytes() == (
            tmp_path / "other" / f"{split}.bin"
        ).read_bytes()


def test_no_progress_where_going_on_leads_nowhere(served, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 50)
    monkeypatch.setattr(binary, "PROGRESS_SECONDS", 0)
    with pytest.raises(DataError, match="fell into the val split"):
        binary.prepare(stream, {}, "bytes", tmp_path / "set", 1e-9, 1)
    assert "set.partial" not in os.listdir(tmp_path)


def test_the_token_budget(tmp_path, monkeypatch):
    """Whole documents up to the one that reaches it, and the same ones however they are cut and shared."""
    documents = [None if i % 7 == 3 else "" if i % 11 == 5 else text for i, text in enumerate(TEXTS)]
    total = read = 0
    while total < 700:
        text = documents[read]
        read += 1
        if text and not splits.in_validation(text, 0.2):
            total += len(text) + 1
    contents = set()
    for batch in (1, 50, 1000, 10**6):
        for workers in (1, 2):
            monkeypatch.setattr(encoding, "BATCH_CHARACTERS", batch)
            out = tmp_path / f"{batch}_{workers}"
            meta = binary.prepare(lambda: iter(documents), {"a": 1}, "bytes", out, 0.2, workers, 700)
            contents.add(tuple(path.read_bytes() for path in sorted(out.iterdir())))
    assert len(contents) == 1
    assert meta["splits"]["train"]["tokens"] == total
    assert meta["documents_read"] == read < 100
    assert meta["left_out"] == sum(text is None for text in documents[:read]) > 0
    assert meta["skipped_empty"] == sum(text == "" for text in documents[:read]) > 0
    assert sum(count["documents"] for count in meta["splits"].values()) == (
        read - meta["left_out"] - meta["skipped_empty"]
    )
    assert meta["source"]["max_tokens"] == 700
    assert "kept " in preparing.describe(out, meta)
    with pytest.raises(DataError, match=r"max_tokens: 700 .*None"):
        binary.prepare(lambda: iter(documents), {"a": 1}, "bytes", out, 0.2, 1)


def test_the_token_budget_is_checked(tmp_path):
    for keys, message in (
        ({"max_tokens": 0, "tokenizer": "bytes"}, r"--max_tokens.*\b0"),
        ({"max_tokens": 9, "tokenizer": "bpe:300"}, "--max_tokens.*bpe:300"),
    ):
        with pytest.raises(DataError, match=message):
            binary.prepare(
                lambda: iter(TEXTS), {}, out=tmp_path / "set", val_fraction=0.2, workers=1, **keys
            )
    meta = binary.prepare(lambda: iter(TEXTS), {}, "bytes", tmp_path / "set", 0.2, 1, 10**6, 7)
    assert meta["documents_read"] == 100  # fewer tokens than that: everything


def test_lost_documents_are_noticed(tmp_path, monkeypatch):
    encode = binary.encode_documents
    monkeypatch.setattr(binary, "encode_documents", lambda *args: list(encode(*args))[:-1])
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 50)
    with pytest.raises(DataError, match="documents were lost: of 100"):
        binary.prepare(lambda: iter(TEXTS), {}, "bytes", tmp_path / "set", 0.2, 1)
    assert os.listdir(tmp_path) == []
