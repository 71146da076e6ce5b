"""Pairs: how they are written, who shares a split, which lines are refused."""

import gzip
import json

import numpy as np
import pytest

from corpus import DataError, encoding
from corpus.binary import prepare
from corpus.files import lines
from corpus.loader import Dataset
from corpus.splits import Choice, Pair, check_splits, in_validation
from tests.data.prepare_scripts import load_script

script = load_script("pairs")


def run(out, text, **keys):
    keys = {"tokenizer": "bytes", "workers": 1, "val_fraction": 0.2, **keys}
    script.main(script.PrepareConfig(out=str(out), input=str(text), **keys))
    return json.loads((out / "meta.json").read_text())


def written(folder, split):
    """The pairs of a split, as they lie in its file."""
    data = Dataset(folder, split, 1)
    pieces = np.split(data.tokens, np.flatnonzero(data.tokens == data.meta["end_of_text"]) + 1)[:-1]
    texts = [data.tokenizer().decode_bytes(piece.tolist()).decode() for piece in pieces]
    return list(zip(texts[::2], texts[1::2], strict=True))


PAIRS = [Pair(f"sentence {i}, naïve", f"phrase n° {i}", f"page {i % 17}") for i in range(200)]


@pytest.fixture
def tsv(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
    return path


def test_a_tsv_file(tmp_path, tsv):
    meta = run(tmp_path / "set", tsv)
    assert meta["pairs"] == 200
    groups = {}
    for split in ("train", "val"):
        found = written(tmp_path / "set", split)
        held = [pair for pair in PAIRS if in_validation(pair.group, 0.2) == (split == "val")]
        assert found == [(pair.source, pair.target) for pair in held]
        groups[split] = {pair.group for pair in held}
        count = meta["splits"][split]
        assert count["documents"] == 2 * len(held)
        assert count["bytes"] == sum(len(text.encode()) for pair in held for text in pair[:2])
        assert count["tokens"] == count["bytes"] + 2 * len(held)
    assert groups["train"]
    assert groups["val"]
    packed = tmp_path / "pairs.tsv.gz"
    packed.write_bytes(gzip.compress(tsv.read_bytes()))
    other = run(tmp_path / "packed", packed)
    assert other["files"] == meta["files"]


def test_several_workers_and_a_tokenizer_of_both_sides(tmp_path, tsv, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 500)
    one = run(tmp_path / "one", tsv, tokenizer="bpe:300")
    two = run(tmp_path / "two", tsv, tokenizer="bpe:300", workers=2)
    assert one["files"] == two["files"]
    assert one["vocab_size"] == 300
    assert written(tmp_path / "one", "train") == [
        (pair.source, pair.target) for pair in PAIRS if not in_validation(pair.group, 0.2)
    ]
    tokens = [
        token.decode(errors="replace")
        for token in Dataset(tmp_path / "one", "val", 1).tokenizer().token_bytes()
    ]
    assert any("sent" in token for token in tokens)
    assert any("phr" in token for token in tokens)


def test_two_files(tmp_path, tsv):
    for number, name in enumerate(("a.en", "a.fr")):
        text = "".join(f"{pair[number]}\r\n" for pair in PAIRS)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    run(tmp_path / "set", f"{tmp_path}/a.en,{tmp_path}/a.fr")
    found = [pair for split in ("train", "val") for pair in written(tmp_path / "set", split)]
    assert sorted(found) == sorted((pair.source, pair.target) for pair in PAIRS)
    # without groups, a source is a group
    assert all(in_validation(source, 0.2) for source, _ in written(tmp_path / "set", "val"))


def test_a_line_loses_its_end_alone(tmp_path):
    """A carriage return before the line end, and other line ends of Unicode, are text."""
    path = tmp_path / "pairs.tsv"
    sides = ("a\x0bb\u2028\x85", "target\r")
    path.write_bytes("".join(f"{i} {sides[0]}\t{sides[1]}\r\n" for i in range(20)).encode())
    run(tmp_path / "set", path)
    for pair in written(tmp_path / "set", "train"):
        assert (pair[0].split(" ", 1)[1], pair[1]) == sides
    assert list(lines(path))[7] == "\t".join((f"7 {sides[0]}", sides[1]))


def test_lines_that_are_no_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n \tb\na\t\na b\na\tb\tc\td\na\tb\t \n\n")
    with pytest.raises(DataError) as found:
        run(tmp_path / "set", path)
    first, *lines = str(found.value).split("\n")
    assert first.startswith(f"{path}: 6 lines of 7")
    wrong = ["the source", "the target", "1 column,", "4 columns,", "the group", "1 column,"]
    for number, (line, what) in enumerate(zip(lines, wrong, strict=True), 2):
        assert line.startswith(f"  line {number}: {what} ")
    path.write_text("a\n" * 30)
    with pytest.raises(DataError, match=r"line 10: .*\n  and 20 more"):
        run(tmp_path / "set", path)
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.fr").write_text("un\ndeux\n")
    for names, which in ((("a.en", "a.fr"), "first"), (("a.fr", "a.en"), "second")):
        with pytest.raises(DataError, match=f"line 3: only the {which} file"):
            run(tmp_path / "set", ",".join(f"{tmp_path}/{name}" for name in names))
    (tmp_path / "a.fr").write_text("un\n\ntrois\n")
    with pytest.raises(DataError, match=r"1 line of 3 .*\n  line 2: the target"):
        run(tmp_path / "set", f"{tmp_path}/a.en,{tmp_path}/a.fr")
    path.write_bytes(b"a\tb\n\xff\tb\n")
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        run(tmp_path / "set", path)
    path.write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        run(tmp_path / "set", path)
    with pytest.raises(DataError, match="No such file"):
        run(tmp_path / "set", tmp_path / "gone.tsv")
    assert not (tmp_path / "set").exists()
    assert script.PrepareConfig(input="a,b,c", out="x").check()
    assert script.PrepareConfig(input=" ,", out="x").check()


def test_pairs_with_an_empty_side_are_skipped_and_counted(tmp_path):
    pairs = [*PAIRS, Pair("source", " \n"), Pair("", "target")]
    meta = prepare(lambda: iter(pairs), {"made": "up"}, "bytes", tmp_path / "set", 0.2, 1, pairs=True)
    assert (meta["pairs"], meta["skipped_empty"], meta["documents_read"]) == (200, 2, 202)


def test_a_split_without_pairs():
    choice = Choice(0.2, pairs=True)
    alike = [Pair(f"a {i}", "b", "one page") for i in range(5)]
    with pytest.raises(DataError, match=r"none of the 5 pairs .*split"):
        check_splits(iter(alike), choice)
    check_splits(iter(PAIRS), choice)
