"""Prepared folders: what is in them, that they appear whole or not at all, and every refusal."""

from host.disk import lock

import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from corpus import DataError, binary, encoding, preparing, splits
from corpus.file_tokenizer import BpeTokenizer
from corpus.loader import Dataset
from corpus.partial import partial_folder
from corpus.tokenizer import BytesTokenizer, Tokenizer, valid_unicode

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    f"Document {i}: " + "once more the fraction went on <|endoftext|> " * (i % 7) for i in range(200)
]
ODD = ["", "  \n\t", "lone \ud800 surrogate", "naïve 数😀", DOCUMENTS[5]]


def prepare(out, documents=DOCUMENTS, tokenizer="bytes", source=None, val_fraction=0.1, workers=1):
    return binary.prepare(
        lambda: iter(documents), source or {"test": 1}, tokenizer, out, val_fraction, workers
    )


def read_back(folder, split):
    """The documents of a split, decoded, in order."""
    dataset = Dataset(folder, split, 1)
    ends = np.flatnonzero(dataset.tokens == dataset.meta["end_of_text"])
    assert ends[-1] == len(dataset.tokens) - 1
    decode = dataset.tokenizer().decode_bytes
    pieces = np.split(dataset.tokens, ends + 1)[:-1]
    return [decode(piece.tolist()).decode() for piece in pieces]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_round_trip_and_counts(tmp_path, tokenizer):
    out = tmp_path / "sets" / "one"
    meta = prepare(out, DOCUMENTS + ODD, tokenizer)
    assert meta == json.loads((out / "meta.json").read_text())
    assert os.listdir(out.parent) == ["one"]
    kept = [valid_unicode(text) for text in DOCUMENTS + ODD if text.strip()]
    for split in ("train", "val"):
        expected = [text for text in kept if splits.in_validation(text, 0.1) == (split == "val")]
        assert read_back(out, split) == expected
        count = meta["splits"][split]
        dataset = Dataset(out, split, 1, vocab_size=meta["vocab_size"])
        assert count["documents"] == len(expected)
        assert count["bytes"] == sum(len(text.encode()) for text in expected)
        assert count["tokens"] == len(dataset.tokens)
        assert dataset.tokens.dtype == np.dtype("<u2")
        assert dataset.token_bytes.dtype == np.int32
        assert dataset.token_bytes[dataset.tokens].sum() == count["bytes"]
        assert 5 <= len(expected) < 200
    assert meta["skipped_empty"] == 2
    assert meta["source"] == {"test": 1}
    assert "tokens" in preparing.describe(out, meta)


def test_split_follows_the_text_alone(tmp_path):
    prepare(tmp_path / "one", DOCUMENTS)
    prepare(tmp_path / "two", DOCUMENTS[::-1] + DOCUMENTS)
    for split in ("train", "val"):
        assert set(read_back(tmp_path / "one", split)) == set(read_back(tmp_path / "two", split))
    in_both = [[text for text in DOCUMENTS if splits.in_validation(text, f)] for f in (0.05, 0.2)]
    assert set(in_both[0]) < set(in_both[1])


def test_a_test_split_takes_from_training_alone(tmp_path):
    keys = ({"a": 1}, "bytes")
    for name, fraction in (("two", 0.0), ("three", 0.2)):
        out = tmp_path / name
        meta = binary.prepare(lambda: iter(DOCUMENTS), *keys, out, 0.1, 1, test_fraction=fraction)
    assert list(meta["splits"]) == ["train", "val", "test"]
    assert meta["source"] == {"a": 1, "test_fraction": 0.2}
    two, three = (
        {split: read_back(tmp_path / name, split) for split in ("train", "val")}
        for name in ("two", "three")
    )
    test = read_back(tmp_path / "three", "test")
    assert two["val"] == three["val"]
    assert [text for text in DOCUMENTS if text in set(three["train"] + test)] == two["train"]
    assert 20 < len(test) < 60
    assert not (tmp_path / "two" / "test.bin").exists()
    for fraction in (-0.1, 0.9):
        with pytest.raises(DataError, match=rf"--test_fraction .*{fraction}"):
            binary.prepare(lambda: iter(DOCUMENTS), *keys, tmp_path / "x", 0.1, 1, test_fraction=fraction)
    with pytest.raises(DataError, match=r"test split.*--test_fraction"):
        binary.prepare(lambda: iter(DOCUMENTS), *keys, tmp_path / "x", 0.1, 1, test_fraction=1e-9)
    with pytest.raises(DataError, match=r"test_fraction: 0\.2.*None"):
        binary.prepare(lambda: iter(DOCUMENTS), *keys, tmp_path / "three", 0.1, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_short_documents_are_left_out(tmp_path, monkeypatch, workers):
    """By their tokens: 16 letters e with an accent are 16 characters and 32 bytes."""
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 500)
    documents = [*DOCUMENTS, "é" * 16, "é" * 15, "", None]
    out = tmp_path / "set"
    meta = binary.prepare(lambda: iter(documents), {}, "bytes", out, 0.1, workers, min_tokens=32)
    kept = [text for text in documents if text and len(text.encode()) >= 32]
    assert sorted(read_back(out, "train") + read_back(out, "val")) == sorted(kept)
    assert "é" * 16 in kept
    assert meta["skipped_empty"] == 1
    assert meta["left_out"] == len(documents) - 1 - len(kept)
    for minimum, tokenizer, message in [
        (-1, "bytes", "--min_tokens.*-1"),
        (5, "bpe:300", "--min_tokens.*bpe:300"),
        (10**6, "bytes", "204 documents.*203 .*1 empty"),
    ]:
        with pytest.raises(DataError, match=message):
            binary.prepare(
                lambda: iter(documents), {}, tokenizer, tmp_path / "x", 0.1, 1, min_tokens=minimum
            )


def test_tokens_are_counted_with_the_tokenizer(tmp_path):
    """A BPE needs fewer tokens than bytes, so it leaves out more."""
    prepare(tmp_path / "bpe", tokenizer="bpe:300")
    tokenizer = str(tmp_path / "bpe" / "tokenizer.json")
    encode = Dataset(tmp_path / "bpe", "train", 1).tokenizer().encode
    long = [text for text in DOCUMENTS if len(encode(text)) >= 32]
    out = tmp_path / "set"
    binary.prepare(lambda: iter(DOCUMENTS), {}, tokenizer, out, 0.1, 1, min_tokens=32)
    assert sorted(read_back(out, "train") + read_back(out, "val")) == sorted(long)
    assert 0 < len(long) < sum(len(text) >= 32 for text in DOCUMENTS)


def test_bpe_learns_from_the_training_split_only(tmp_path):
    prepare(tmp_path / "set", DOCUMENTS, "bpe:300")
    training = [text for text in DOCUMENTS if not splits.in_validation(text, 0.1)]
    expected = BpeTokenizer.train(training, 300)
    assert Dataset(tmp_path / "set", "val", 1).tokenizer().hash == expected.hash
    assert expected.hash != BpeTokenizer.train(DOCUMENTS[:50], 300).hash


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_any_number_of_workers_writes_the_same(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1000)
    for workers in (1, 2):
        prepare(tmp_path / str(workers), DOCUMENTS + ODD, tokenizer, workers=workers)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")


def test_tiny_inputs_start_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("a pool was started"))
    prepare(tmp_path / "set", workers=8)


def test_batches_in_flight_are_bounded(monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1000)
    taken = 0

    def counted():
        nonlocal taken
        for i in range(400):
            taken += 1
            yield f"{i}" * 1000

    encoded = encoding.encode_documents(counted(), BytesTokenizer(), splits.Choice(0.1), 2)
    for i in range(20):
        next(encoded)
        assert taken <= i + 1 + 2 * 2 + 1
    encoded.close()


def test_a_dead_worker_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 1000)

    def documents():
        for i in range(100_000):
            if i == 200:
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
            yield f"{i} " * 300

    with pytest.raises(DataError, match=r"worker .*died.*--workers=2"):
        binary.prepare(documents, {}, "bytes", tmp_path / "set", 0.1, 2)
    assert os.listdir(tmp_path) == []


class WideTokenizer(Tokenizer):
    """Bytes spread over a vocabulary that needs 32 bits."""

    kind, hash, vocab_size, end_of_text = "bytes", "", 70_000, 69_999

    def encode(self, text):
        return [byte + 69_000 for byte in text.encode()]

    @property
    def _token_bytes(self):
        return [b"x"] * (self.vocab_size - 1) + [b""]


def test_wide_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "build_tokenizer", lambda *_: WideTokenizer())
    meta = prepare(tmp_path / "set")
    assert meta["dtype"] == "uint32"
    dataset = Dataset(tmp_path / "set", "train", 4)
    assert dataset.tokens.dtype == np.dtype("<u4")
    assert set(dataset.tokens[:9] - 69_000) <= set(b"Document ")
    assert encoding.token_dtype(1 << 16) == np.dtype("<u2")


def test_a_tokenizer_that_loses_bytes_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(WideTokenizer, "token_bytes", lambda self: [b"xx"] * 69_999 + [b""])
    monkeypatch.setattr(binary, "build_tokenizer", lambda *_: WideTokenizer())
    with pytest.raises(DataError, match="hold what was written"):
        prepare(tmp_path / "set")
    assert os.listdir(tmp_path) == []


def test_finished_folders_are_kept(tmp_path, capsys, monkeypatch):
    out = tmp_path / "set"
    meta = prepare(out, val_fraction=0.1)
    before = files_of(out)
    assert prepare(out, val_fraction=0.1) == meta
    assert "already prepared" in capsys.readouterr().out
    (out / "val.bin").rename(tmp_path / "val.bin")
    with pytest.raises(DataError, match=r"val.bin is not whole any more: .*delete it"):
        prepare(out, val_fraction=0.1)
    (tmp_path / "val.bin").rename(out / "val.bin")
    with pytest.raises(DataError) as caught:
        prepare(out, val_fraction=0.2, source={"test": 2, "more": None})
    for part in ("val_fraction: 0.1 there, 0.2 asked for", "test: 1 there, 2 asked for", "another --out"):
        assert part in str(caught.value)
    assert "tokenizer" not in str(caught.value)
    assert files_of(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(DataError, match="mine exists"):
        prepare(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="--out is the folder"):
        prepare(Path())
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(DataError, match=r"link .*symbolic link to nothing"):
        prepare(tmp_path / "link")
    (tmp_path / "empty").mkdir()
    prepare(tmp_path / "empty")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": ["one document"]}, "one document only"),
        ({"documents": ["a", "b"], "val_fraction": 1e-9}, "val split.*raise"),
        ({"documents": ["a", "b"], "val_fraction": 0.999999}, "train split.*lower"),
        ({"documents": []}, "no document with any text"),
        ({"documents": [" ", ""]}, "no document .*2 .*empty"),
        ({"val_fraction": 0.0}, r"--val_fraction.* 0\.0"),
        ({"val_fraction": 1.0}, r"--val_fraction.* 1\.0"),
        ({"workers": 0}, r"--workers.*\b0"),
        ({"tokenizer": "bpe:12"}, "at least 257"),
    ],
)
def test_refusals_leave_nothing(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "set", **change)
    assert os.listdir(tmp_path) == []


def test_an_error_of_reading_is_not_one_of_writing(tmp_path):
    def documents():
        yield from DOCUMENTS
        raise OSError("the cable is out")

    with pytest.raises(DataError, match=r"read .*the cable is out"):
        binary.prepare(documents, {}, "bytes", tmp_path / "set", 0.1, 1)
    assert os.listdir(tmp_path) == []


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"write .*Not a directory"):
        prepare(tmp_path / "file" / "set")


def test_full_disk(tmp_path):
    """A limit on the size of files stands in for a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(DataError, match=r"write .*train\.bin.*File too large"):
            prepare(tmp_path / "set")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_two_at_once(tmp_path):
    (tmp_path / "set.partial").mkdir()
    with lock(tmp_path / "set.partial.lock", keep=False):
        with pytest.raises(DataError, match="another process is preparing"):
            prepare(tmp_path / "set")
        assert sorted(os.listdir(tmp_path)) == ["set.partial", "set.partial.lock"]
    prepare(tmp_path / "set")
    assert os.listdir(tmp_path) == ["set"]


def test_another_process_was_quicker(tmp_path):
    """It finished between this one's first look and its lock."""
    prepare(tmp_path / "set")
    with pytest.raises(DataError, match=r"another process .*finished"), partial_folder(tmp_path / "set"):
        pytest.fail("it would be written twice")
    assert os.listdir(tmp_path) == ["set"]


def test_a_partial_folder_of_someone_else(tmp_path):
    (tmp_path / "set.partial" / "folder").mkdir(parents=True)
    with pytest.raises(DataError, match=r"set.partial .* holds folder, which"):
        prepare(tmp_path / "set")


def test_unreadable_tokenizer_file(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").touch()

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"tokenizer\.json.*Permission denied"):
        prepare(tmp_path / "set", tokenizer=str(tmp_path / "tokenizer.json"))


KILLED = """
import sys, time
from pathlib import Path
from corpus import binary, encoding

def documents():
    for i in range(10**9):
        yield f"{i} " * 100
        if i == 200:
            print("writing", flush=True)
        if i > 200:
            time.sleep(0.01)

if __name__ == "__main__":
    encoding.BATCH_CHARACTERS = 1000
    binary.prepare(documents, {}, "bytes", Path(sys.argv[1]), 0.1, 2)
"""


def test_killed_while_writing(tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "sets" / "one"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(out)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = children.read_text().split() if children.exists() else []
        process.kill()
    assert sorted(os.listdir(out.parent)) == ["one.partial", "one.partial.lock"]
    with pytest.raises(DataError, match="not a prepared data set"):
        Dataset(out, "train", 1)
    with pytest.raises(DataError, match="not a prepared data set"):
        Dataset(out.with_name("one.partial"), "train", 1)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlived the process that started them"
        time.sleep(0.05)
    prepare(out)
    assert os.listdir(out.parent) == ["one"]
    assert set(files_of(out)) == {"train.bin", "val.bin", "token_bytes.npy", "meta.json"}


def test_a_vocabulary_that_the_text_does_not_give(tmp_path):
    """Refused, with the size that it does give, which is then reached."""
    with pytest.raises(DataError, match=r"bpe:700.* \d+ tokens only") as caught:
        prepare(tmp_path / "bpe700", tokenizer="bpe:700")
    assert os.listdir(tmp_path) == []
    reached = re.search(r"--tokenizer=(bpe:(\d+))", str(caught.value))
    assert prepare(tmp_path / "set", tokenizer=reached[1])["vocab_size"] == int(reached[2]) < 700
