"""OpenWebText in each of its three forms, and the count of its documents."""

import json
import os

import pytest

import corpus.hub
from corpus import DataError
from tests.data.prepare_scripts import load_script, tar_bytes

openwebtext = load_script("openwebtext")
NAME = openwebtext.NAME
SCRIPT = RuntimeError("Dataset scripts are no longer supported, but found openwebtext.py")
PAGES = [f"Page {i}\n\nof the web" for i in range(60)]


def run(out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    openwebtext.main(openwebtext.PrepareConfig(out=str(out), **keys))
    return json.loads((out / "meta.json").read_text())


@pytest.fixture
def listed(monkeypatch):
    """The files that the hub lists, by revision."""
    found = {None: [], corpus.hub.PARQUET: ["plain_text/train/0000.parquet"]}
    monkeypatch.setattr(corpus.hub, "files", lambda name, revision=None: found[revision])
    return found


@pytest.fixture
def archives(tmp_path, listed, monkeypatch):
    """Two of the archives, as the repository holds them; their last pages are PAGES[:40]."""
    for i in range(2):
        inner = []
        for j in range(2):
            pages = PAGES[20 * i + 10 * j : 20 * i + 10 * j + 10]
            texts = {f"{j}-{k}.txt": page.replace("\n\n", "\n\n\n\n") for k, page in enumerate(pages)}
            inner.append({name: f"\n{text}\n".encode() for name, text in texts.items()})
        packed = {f"openwebtext/urlsf_subset0{i}-{j}_data.xz": tar_bytes(f) for j, f in enumerate(inner)}
        path = tmp_path / "subsets" / f"urlsf_subset0{i}.tar"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tar_bytes({**packed, "README": b"no archive"}, "w"))
    listed[None] = [
        "README.md",
        "openwebtext.py",
        "subsets/urlsf_subset01.tar",
        "subsets/urlsf_subset00.tar",
    ]
    monkeypatch.setattr(openwebtext, "HUB", f"{tmp_path}/")


def test_under_its_name(tmp_path, hub, texts, capsys):
    hub[NAME] = {"text": PAGES}
    meta = run(tmp_path / "set")
    assert sorted(texts(tmp_path / "set")) == sorted(PAGES)
    assert meta["read_as"] == "the data set under its name"
    assert (meta["known_documents"], meta["missing_documents"]) == (8_013_769, 8_013_709)
    said = capsys.readouterr().err
    assert "8,013,769 are known: 8,013,709 are missing" in said
    assert "reading the data set under its name" in said


def test_complete(tmp_path, hub, monkeypatch, capsys):
    monkeypatch.setattr(openwebtext, "KNOWN_DOCUMENTS", 60)
    hub[NAME] = {"text": PAGES}
    assert run(tmp_path / "set")["missing_documents"] == 0
    assert "WARNING" not in capsys.readouterr().err
    monkeypatch.setattr(openwebtext, "KNOWN_DOCUMENTS", 59)
    run(tmp_path / "other")
    assert "1 too many" in capsys.readouterr().err


def test_converted(tmp_path, hub, listed, texts, capsys):
    hub[NAME], hub[NAME, corpus.hub.PARQUET] = SCRIPT, {"text": PAGES}
    meta = run(tmp_path / "set")
    assert sorted(texts(tmp_path / "set")) == sorted(PAGES)
    assert meta["read_as"] == "the hub's own conversion to Parquet"
    assert "loading script, which is never run" in capsys.readouterr().err


@pytest.mark.parametrize("conversion", ["missing", "partial"])
def test_archives(tmp_path, hub, listed, archives, texts, capsys, conversion):
    hub[NAME] = SCRIPT
    if conversion == "missing":
        hub[NAME, corpus.hub.PARQUET] = FileNotFoundError("no such revision")
    else:
        hub[NAME, corpus.hub.PARQUET] = {"text": PAGES}
        listed[corpus.hub.PARQUET] = ["plain_text/partial-train/0000.parquet"]
    meta = run(tmp_path / "set")
    assert sorted(texts(tmp_path / "set")) == sorted(PAGES[:40])
    assert meta["read_as"] == "its archives"
    said = capsys.readouterr().err
    assert "reading its archives" in said
    assert ("first part only" if conversion == "partial" else "no such revision") in said


def test_archives_can_be_gone_on_with(hub, listed, archives):
    hub[NAME], hub[NAME, corpus.hub.PARQUET] = SCRIPT, FileNotFoundError("no such revision")
    for n in (0, 13, 20, 39):
        first = openwebtext.open_source(None).texts()()
        assert [next(first) for _ in range(n)] == PAGES[:n]
        assert (
            list(openwebtext.open_source(None).texts()(json.loads(json.dumps(first.state()))))
            == PAGES[n:40]
        )


def test_nothing_there(tmp_path, hub, listed):
    hub[NAME], hub[NAME, corpus.hub.PARQUET] = SCRIPT, FileNotFoundError("no such revision")
    with pytest.raises(DataError) as caught:
        run(tmp_path / "set")
    for part in (
        "cannot be had",
        "loading script",
        "no such revision",
        "no subsets/*.tar",
        "needs network",
    ):
        assert part in str(caught.value)
    assert "set" not in os.listdir(tmp_path)


def test_the_archives_of_a_download(tmp_path, archives, texts, monkeypatch):
    monkeypatch.setattr(corpus.hub, "files", lambda *_: pytest.fail("asked the hub"))
    meta = run(tmp_path / "set", input=str(tmp_path))
    assert sorted(texts(tmp_path / "set")) == sorted(PAGES[:40])
    assert meta["read_as"] == "its archives"
    assert meta["source"]["archives"] == ["urlsf_subset00.tar", "urlsf_subset01.tar"]
