"""Which split a text belongs to: --split=contiguous loses no byte, and empty splits are found first."""

import numpy as np
import pytest

from corpus import DataError, binary, encoding
from corpus.loader import Dataset
from corpus.splits import Choice, check_splits, cut
from tests.data.prepare_scripts import load_script

LINES = "".join(f"Line {i}, naïve 数😀 e\u0301\r{'.' * (i % 9)}\n" for i in range(400))
ONE_LINE = "".join(f"word{i} " for i in range(900))
NO_BLANK = "数é" * 700

text_script = load_script("text")


def run(out, path, **keys):
    keys = {"tokenizer": "bytes", "workers": 1, "split": "contiguous", "val_fraction": 0.1, **keys}
    text_script.main(text_script.PrepareConfig(out=str(out), input=str(path), **keys))


def written(out, split):
    """The bytes of each document of a split."""
    data = Dataset(out, split, 1)
    ends = np.flatnonzero(data.tokens == data.meta["end_of_text"])
    pieces = np.split(data.tokens, ends + 1)[:-1]
    return [data.tokenizer().decode_bytes(piece.tolist()) for piece in pieces]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_every_byte_of_a_file_is_in_one_split(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_bytes(LINES.encode())
    (tmp_path / "b.txt").write_bytes(NO_BLANK.encode())
    for out in ("one", "two"):
        run(tmp_path / out, tmp_path / "*.txt", tokenizer=tokenizer)
    train, val = (written(tmp_path / "one", split) for split in ("train", "val"))
    assert len(train) == len(val) == 2
    assert [head + tail for head, tail in zip(train, val, strict=True)] == [
        LINES.encode(),
        NO_BLANK.encode(),
    ]
    assert train[0].endswith(b"\n")
    for tail, text in zip(val, (LINES, NO_BLANK), strict=True):
        assert len(tail.decode()) == pytest.approx(0.1 * len(text), rel=0.5)  # whole characters
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("text", [LINES, ONE_LINE, NO_BLANK])
def test_where_a_text_is_cut(text, share):
    place = cut(text, share)
    smaller = min(share, 1 - share) * len(text)
    assert abs(place - (1 - share) * len(text)) <= smaller / 2 + 1
    if text is LINES:
        assert text[place - 1] == "\n"
    elif text is ONE_LINE:
        assert text[place] == " "
    else:
        assert place == len(text) - round(share * len(text))


@pytest.mark.parametrize("text", ["a", "ab", "word", "a\n", "   a", "a" + " " * 30, " " * 30 + "a"])
def test_a_text_that_is_too_short_stays_whole(text):
    for share in (0.01, 0.3, 0.9):
        parts = Choice(share, contiguous=True).parts(text)
        assert "".join(parts.values()) == text
        assert all(part.strip() for part in parts.values())
        assert "train" in parts


def test_documents_of_several_workers_and_batches(tmp_path, monkeypatch):
    """The counts are of all documents, those that are too short to cut and empty ones among them."""
    documents = ["", LINES, "x", *(f"{i} {ONE_LINE}" for i in range(20)), " \n"]
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 7000)
    contents = set()
    for workers in (1, 2):
        out = tmp_path / str(workers)
        source = {"test": 1}
        meta = binary.prepare(lambda: iter(documents), source, "bytes", out, 0.1, workers, contiguous=True)
        assert {split: count["documents"] for split, count in meta["splits"].items()} == {
            "train": 22,
            "val": 21,
        }
        assert (meta["documents_read"], meta["skipped_empty"], meta["left_out"]) == (24, 2, 0)
        assert meta["source"] == {"test": 1, "contiguous": True}
        contents.add((out / "train.bin").read_bytes() + (out / "val.bin").read_bytes())
    assert len(contents) == 1


def test_the_other_split_is_another_data_set(tmp_path):
    (tmp_path / "a.txt").write_text(LINES)
    run(tmp_path / "set", tmp_path / "a.txt")
    run(tmp_path / "set", tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"contiguous: True.*None"):
        run(tmp_path / "set", tmp_path / "a.txt", split="documents")


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_one_file_is_refused_before_anything_is_encoded(tmp_path, monkeypatch, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text(LINES)
    for name in ("build_tokenizer", "encode_documents"):
        monkeypatch.setattr(binary, name, lambda *_: pytest.fail("began to work"))
    with pytest.raises(DataError, match=r"one document only.* 0\.01"):
        run(tmp_path / "set", path, split="documents", val_fraction=0.01, tokenizer=tokenizer)
    path.write_text("short")
    with pytest.raises(DataError, match=r"no document .* 0\.01"):
        run(tmp_path / "set", path, val_fraction=0.01, tokenizer=tokenizer)


def test_no_more_is_read_than_needed():
    documents = iter([str(i) for i in range(10_000)])
    check_splits(documents, Choice(0.1))
    assert int(next(documents)) < 1000


def test_a_text_is_cut_at_the_nearest_end_of_a_line():
    early, late = "x" * 30 + "\n" + "x" * 69, "x" * 54 + "\n" + "x" * 45
    both = early[:54] + "\n" + early[55:]
    assert [cut(text, 0.5) for text in (early, late, both)] == [31, 55, 55]
    assert cut(both.replace("\n", " "), 0.5) == 54
