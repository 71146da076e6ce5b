"""Where texts come from: the hub (a stand-in for it), local files, prepared data."""

import numpy as np
import pytest

from corpus import DataError, binary
from corpus.splits import Pair, in_validation
from corpus.tokenizer import BytesTokenizer
from evaluation import EvaluationError
from evaluation.texts import NAMED, Documents, open_text
from tests.data.prepare_scripts import write_parquet


@pytest.fixture
def served(monkeypatch, tmp_path):
    """served["owner/name", configuration, split, revision] = columns or an exception; the real library
    reads the columns from Parquet."""
    datasets = pytest.importorskip("datasets")
    real, found = datasets.load_dataset, {}

    def load_dataset(path, name=None, split=None, streaming=False, revision=None):
        if isinstance(rows := found[path, name, split, revision], Exception):
            raise rows
        folder = tmp_path / f"{path}_{revision}".replace("/", "_")
        folder.mkdir()
        files = {split: write_parquet(folder, rows)}
        return real("parquet", data_files=files, split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("corpus.hub.files", lambda name, revision=None: ["test/0000.parquet"])
    return found


def as_text(streams):
    return ["".join("|" if i == 256 else chr(i) for i in stream) for stream in streams]


ROWS = ["", " = A = \n", "b c\n"]
JOINED = {
    "ptb": "| = A = \n b c\n",
    "wikitext2": "|\n\n = A = \n\n\nb c\n",
    "wikitext103": "|\n\n = A = \n\n\nb c\n",
    "lambada": "|| = A = \n|b c\n",
    "ag_news": "|| = A = \n|b c\n",
    "lm1b": "|| = A = \n|b c\n",
}
STRIDES = {"ptb": 256, "wikitext2": 512, "wikitext103": 512, "lambada": 256, "ag_news": 256, "lm1b": 256}


def test_every_byte_of_a_file_is_scored(tmp_path):
    """But for a byte order mark."""
    path, text = tmp_path / "a.txt", b"a\r\nb\rc\n\r\n"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + text)
        (stream,) = open_text(str(path)).streams(BytesTokenizer())
        assert stream.tolist() == [256, *text]


@pytest.mark.parametrize("name", NAMED)
def test_published_sets(served, name):
    known = NAMED[name]
    rows = ROWS[1:] if name == "ptb" else ROWS
    served[known.path, known.config, "test", None] = {known.field: rows, "label": [0] * len(rows)}
    text = open_text(name)
    assert as_text(text.streams(BytesTokenizer())) == [JOINED[name]]
    assert text.stride == STRIDES[name]
    assert text.source["read_as"] == "the data set under its name"


def test_a_loading_script_gives_way_to_the_hubs_conversion(served):
    known = NAMED["ptb"]
    script = RuntimeError("Dataset scripts are no longer supported, but found ptb_text_only.py")
    served[known.path, known.config, "validation", None] = script
    served[known.path, known.config, "validation", "refs/convert/parquet"] = {"sentence": ["a b", "c"]}
    text = open_text("ptb", split="validation")
    assert as_text(text.streams(BytesTokenizer())) == ["|a b c"]
    assert text.source["read_as"] == "the hub's own conversion to Parquet"


def test_no_hub(served):
    known = NAMED["lambada"]
    served[known.path, known.config, "test", None] = ConnectionError("no route")
    with pytest.raises(DataError, match=r"no route\n.*lambada.*--stride=256.*end_of_text"):
        open_text("lambada")


def test_local_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.jsonl").write_text('{"body": "x"}\n{"body": " "}\n{"body": "y"}\n')
    assert as_text(open_text(str(tmp_path / "a.txt")).streams(BytesTokenizer())) == ["|one\n\ntwo"]
    text = open_text(str(tmp_path / "b.jsonl"), field="body")
    assert as_text(text.streams(BytesTokenizer())) == ["|x|y"]
    assert text.stride is None
    with pytest.raises(DataError, match=r"no field 'text'.*body"):
        open_text(str(tmp_path / "b.jsonl"))
    (tmp_path / "c.txt").write_text(" \n")
    with pytest.raises(DataError, match="holds no text"):
        open_text(str(tmp_path / "c.txt"))


@pytest.mark.parametrize("name", ["wikitext", "no/such.txt", "gone.bin"])
def test_what_is_no_text(name):
    with pytest.raises((EvaluationError, DataError), match=r"is no text|no such file|no gone.bin"):
        open_text(name)


def test_prepared_data(tmp_path):
    documents = [f"document {i}, " * (1 + i % 3) for i in range(40)]
    out = tmp_path / "bytes"
    binary.prepare(lambda: iter(documents), {}, "bytes", out, 0.3, workers=1)
    whole = open_text(str(out))
    tokens = np.fromfile(out / "val.bin", dtype="<u2")
    (stream,) = whole.streams(BytesTokenizer())
    np.testing.assert_array_equal(stream, [256, *tokens])
    (first,) = whole.streams(BytesTokenizer(), max_tokens=20)
    np.testing.assert_array_equal(first, stream[:21])
    separate = as_text(open_text(str(out / "train.bin")).streams(BytesTokenizer(), "separate"))
    assert separate[0].startswith("|document")
    assert {text[1:] for text in separate} | {
        text[1:] for text in as_text(whole.streams(BytesTokenizer(), "separate"))
    } == set(documents)
    with pytest.raises(EvaluationError, match=r"encoded already.*space"):
        whole.streams(BytesTokenizer(), "space")
    with pytest.raises(DataError, match="no split 'test'"):
        open_text(str(out), split="test")


def test_every_prepared_pair_is_a_stream(tmp_path):
    pairs = [Pair(f"source {i} é", f"target {i}", f"group {i}") for i in range(40)]
    for name in ("bytes", "bpe:270"):
        prepare = (lambda: iter(pairs), {}, name, tmp_path / name, 0.5, 1)
        binary.prepare(*prepare, pairs=True)
    text = open_text(str(tmp_path / "bytes"))
    found = [
        bytes(i if i < 256 else 124 for i in stream).decode() for stream in text.streams(BytesTokenizer())
    ]
    assert found == [f"|{p.source}|{p.target}|" for p in pairs if in_validation(p.group, 0.5)]
    other = open_text(str(tmp_path / "bpe:270"))
    decoded = other.streams(BytesTokenizer())
    assert [stream.tolist() for stream in decoded] == [s.tolist() for s in text.streams(BytesTokenizer())]
    # a limit cuts the last pair off, within either side
    first = found[0].encode()
    for limit in (3, len(first) - 6, len(first) - 3, len(first) + 2):
        cut = [
            bytes(i if i < 256 else 124 for i in s) for s in text.streams(BytesTokenizer(), max_bytes=limit)
        ]
        assert "".join(found).encode().startswith(b"".join(cut))
        assert limit - 1 <= len(b"".join(cut).replace(b"|", b"")) <= limit
    with pytest.raises(EvaluationError, match=r"pairs.*join"):
        text.streams(BytesTokenizer(), "separate")


def test_a_folder_of_several_splits_is_read_one_at_a_time(tmp_path, capsys):
    for name in ("train", "test"):
        (tmp_path / f"{name}-0.txt").write_text(f"of {name}")
    assert as_text(open_text(str(tmp_path)).streams(BytesTokenizer())) == ["|of test"]
    assert "reading 1 file of the split test; it has test and train" in capsys.readouterr().err
    text = open_text(str(tmp_path), split="train")
    assert as_text(text.streams(BytesTokenizer())) == ["|of train"]
    assert text.source["split"] == "train"
    with pytest.raises(DataError, match=r"no split 'dev'.*: choose with --split"):
        open_text(str(tmp_path), split="dev")
    with pytest.raises(EvaluationError, match=r"is one text without splits: leave out --split=test"):
        open_text(str(tmp_path / "test-0.txt"), split="test")


def test_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {name: datasets.Dataset.from_dict({"text": [f"of {name}"]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    assert as_text(open_text(str(tmp_path / "saved")).streams(BytesTokenizer())) == ["|of test"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The same documents, prepared for bytes and for a BPE some of whose tokens end within a character."""
    texts = [f"déjà vu {i} €{i % 7} 𝄞 " * (1 + i % 4) for i in range(60)]
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("bytes", "bpe:270"):
        binary.prepare(lambda: iter(texts), {}, name, folder / name, 0.4, workers=1)
    return {name: open_text(str(folder / name)) for name in ("bytes", "bpe:270")}


@pytest.mark.parametrize("join", ["end_of_text", "separate"])
@pytest.mark.parametrize("max_tokens", [None, 1, 70, 10**6])
def test_for_another_tokenizer_prepared_text_is_decoded(prepared, join, max_tokens):
    """It then is what preparing the same documents with that tokenizer gives."""
    for one, other in (("bytes", "bpe:270"), ("bpe:270", "bytes")):
        tokenizer = prepared[one].dataset.tokenizer()
        expected, found = (prepared[p].streams(tokenizer, join, max_tokens) for p in (one, other))
        assert len(found) == len(expected)
        for stream, expected_stream in zip(found, expected, strict=True):
            np.testing.assert_array_equal(stream, expected_stream)
    with pytest.raises(EvaluationError, match="is encoded already"):
        prepared["bpe:270"].streams(BytesTokenizer(), "space")


def test_prepared_text_that_cannot_be_decoded(prepared, monkeypatch):
    text = prepared["bytes"]
    monkeypatch.setattr(text.dataset, "tokens", np.array([0xE2, 0x82, 256], dtype=np.uint16))
    with pytest.raises(EvaluationError, match=r"not UTF-8"):
        text.streams(prepared["bpe:270"].dataset.tokenizer())


def text_of(tokenizer, streams):
    return [tokenizer.decode_bytes(stream) for stream in streams]


@pytest.mark.parametrize("join", ["blank_line", "space", "end_of_text", "separate"])
def test_a_limit_in_bytes_is_the_same_text_for_every_tokenizer(prepared, join, monkeypatch):
    """The longest beginning of whole characters; of prepared text, of whole tokens of the data set."""
    monkeypatch.setattr("evaluation.texts.PORTION", 7)
    tokenizers = [text.dataset.tokenizer() for text in prepared.values()]
    documents = ["aé€", "", "𝄞b", "c" * 9 + "é"]
    texts = [Documents("two", "end_of_text", None, {}, documents)]
    texts += prepared.values() if join in ("end_of_text", "separate") else []
    for text in texts:
        whole = b"".join(text_of(tokenizers[0], text.streams(tokenizers[0], join)))
        for limit in (*range(1, 40), 10**6):
            one, other = (text_of(t, text.streams(t, join, max_bytes=limit)) for t in tokenizers)
            assert one == other
            found = b"".join(one)
            found.decode()
            assert whole.startswith(found)
            assert limit - 12 < len(found) <= limit or found == whole
            if text is texts[0] or text is prepared["bytes"]:
                assert len(found) == len(whole[:limit].decode(errors="ignore").encode())


def test_a_prepared_text_that_is_damaged(tmp_path):
    out = tmp_path / "set"
    binary.prepare(lambda: (f"document {i}" for i in range(40)), {}, "bytes", out, 0.3, workers=1)
    content = bytearray((out / "val.bin").read_bytes())
    content[6] ^= 1
    (out / "val.bin").write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"val\.bin.*SHA-256"):
        open_text(str(out))
