"""Compressed files and .json lists as input: what is read, and what is refused with which words."""

import contextlib
import gzip
import json
import lzma
import tracemalloc

import pytest

from corpus import DataError, compressed, files

pyarrow = pytest.importorskip("pyarrow")

QUOTE = '"'
TEXTS = ["one", 'two, with a "quote"\nand é', "", "four"]
COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
every_ending = pytest.mark.parametrize("ending", COMPRESS)


def read(path, separator=None, **keys):
    found = files.rows(files.find([str(path)]), ["text"], separator, **keys)
    return [files.text_of(row, "text", where) for row, where in found]


@contextlib.contextmanager
def memory_below(limit):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def write(folder, name, content):
    """The file `name`, compressed as its ending says."""
    path = folder / name
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return path


CONTENT = {
    ".txt": "\n--\n".join(TEXTS).encode(),
    ".jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode(),
    ".json": json.dumps([{"id": [n], "text": text} for n, text in enumerate(TEXTS)], indent=1).encode(),
    ".csv": "".join(f'1,"{text.replace(QUOTE, QUOTE * 2)}"\r\n' for text in ["text", *TEXTS]).encode(),
}


@every_ending
@pytest.mark.parametrize("suffix", CONTENT)
def test_every_format_in_every_compression(tmp_path, suffix, ending):
    plain = write(tmp_path, f"rows{suffix}", CONTENT[suffix])
    packed = write(tmp_path, f"rows{suffix}{ending}", b"\xef\xbb\xbf" + CONTENT[suffix])
    assert packed.read_bytes() != plain.read_bytes()
    assert read(packed, "\n--\n") == read(plain, "\n--\n") == TEXTS


@every_ending
def test_files_put_together_are_read_to_the_end(tmp_path, ending):
    """As `cat a.gz b.gz` and parallel compressors write them."""
    path = write(tmp_path, f"rows.txt{ending}", b"first,")
    path.write_bytes(path.read_bytes() + COMPRESS[ending](b"second"))
    assert read(path, ",") == ["first", "second"]


@every_ending
@pytest.mark.parametrize("kept", [0, 1, 20, -1, -9])
def test_a_file_that_was_cut_off_is_refused(tmp_path, ending, kept):
    content = " ".join(str(n * n) for n in range(5000)).encode()
    path = write(tmp_path, f"rows.txt{ending}", content)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"rows\.txt\{ending}.*cut off"):
        read(path)


@every_ending
def test_a_file_of_another_kind_is_refused(tmp_path, ending):
    (tmp_path / f"rows.txt{ending}").write_bytes(b"plain text " * 20)
    with pytest.raises(DataError, match=rf"rows\.txt\{ending}.*decompressed.*no \{ending}"):
        read(tmp_path / f"rows.txt{ending}")


@every_ending
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv"])
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path, ending, suffix, monkeypatch):
    monkeypatch.setattr(compressed, "ALWAYS", 1 << 20)
    path = write(tmp_path, f"rows{suffix}{ending}", b'[{"text": "' + b" " * (20 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"more than 1,048,576 bytes"):
        read(path, max_expansion=1)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@every_ending
def test_the_limit_can_be_raised(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(compressed, "ALWAYS", 0)
    path = write(tmp_path, f"rows.txt{ending}", b"a" * 100_000)
    with pytest.raises(DataError, match="decompresses to more than"):
        read(path, max_expansion=10)
    assert read(path, max_expansion=10_000) == ["a" * 100_000]


def test_mistakes_in_compressed_files_name_their_line(tmp_path):
    for name, content, said in (
        ("a.jsonl.gz", b'{"text": "x"}\n{"text": \n', "a.jsonl.gz, line 2: not JSON"),
        ("a.txt.xz", b"good\nb\xe9d\n", "a.txt.xz, line 2: not UTF-8"),
        ("a.json.zst", b'[{"text": "\xff"}]', "a.json.zst, line 1: not UTF-8"),
    ):
        with pytest.raises(DataError) as caught:
            read(write(tmp_path, name, content))
        assert said in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_lists_are_read_in_pieces(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(files, "CHUNK", chunk)
    rows = [{"n": [1.5e-7, -3, True, None, {"a": "\\ud83d"}], "text": text} for text in [*TEXTS, "🦜" * 9]]
    for layout in ({}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}):
        path = write(tmp_path, "rows.json", (" \n" + json.dumps(rows, **layout) + "\n ").encode())
        assert read(path) == [*TEXTS, "🦜" * 9]
    assert read(write(tmp_path, "rows.json", b" [ ] ")) == []


def test_a_json_file_of_lines_is_read_as_lines(tmp_path):
    assert read(write(tmp_path, "rows.json", b"\n" + CONTENT[".jsonl"])) == TEXTS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "begins with ''"),
        ('"text"', "begins with '\"'"),
        ('[{"text": "x"}, 5]', "element 2: holds int"),
        ('[{"text": "x"}, {"text": 5}]', "element 2: field 'text' holds int"),
        ('[{"text": "x"}, {"a": "x"}]', "element 2: no field 'text'"),
        ('[{"text": "x"} {"text": "y"}]', "'{' follows element 1"),
        ('[{"text": "x"}', "end of the file follows element 1"),
        ('[{"text": "x"}, ]', "element 2: not JSON"),
        ('[{"text": "x"}, {"text": "y', "element 2: not JSON (Unterminated"),
        ('[{"text": "x"}] [', "'[' follows the end"),
        ("[" * 100_000, "element 1: not JSON"),
        ('[{"text": "x", "n": ' + "9" * 5000 + "}]", "element 1: not JSON"),
        ('{"text": \n"x"}', "line 1: not JSON"),
    ],
)
def test_lists_that_are_refused(tmp_path, content, said):
    with pytest.raises(DataError) as caught:
        read(write(tmp_path, "a.json", content.encode()))
    assert said in str(caught.value)
    assert "a.json" in str(caught.value)


def test_a_mistake_in_a_long_list_is_found_where_it_is(tmp_path, monkeypatch):
    """Without reading the rest of the file into memory."""
    monkeypatch.setattr(files, "CHUNK", 1000)
    path = write(tmp_path, "a.json", b'[{"text": nonsense}' + b', {"text": "x"}' * 100_000 + b"]")
    with memory_below(500_000), pytest.raises(DataError, match="element 1: not JSON"):
        read(path)


def test_folders_give_compressed_files_and_pass_over_json(tmp_path):
    for name in ("a.txt.gz", "b.jsonl.zst", "about.json", "about.json.gz", "c.parquet.gz", "d.md.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in files.find([str(tmp_path)])] == ["a.txt.gz", "b.jsonl.zst"]
    assert [path.name for path in files.find([f"{tmp_path}/*.json"])] == ["about.json"]
    for name in ("gone.txt.gz", "gone.json", "data/gone.jsonl.zst"):
        assert files.looks_local(name)
