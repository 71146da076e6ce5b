"""Pairs out of packages: LibreOffice's help and interface, Electron's documentation, manual pages."""

import json
import shutil
import struct

import pytest

from data import DataError, sentences
from data.splits import Pair
from tests.data.prepare_scripts import load_script

libreoffice = load_script("libreoffice")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? Four", 4),
        ("Voir « Un exemple. » Puis la suite.", 2),
        ("Version 1.5 of J. Smith is here.", 1),
        ("See e.g. the page. Über uns.", 2),
        ('He said "Yes." Then he left.', 2),
        ("no end", 1),
    ],
)
def test_sentences(text, count):
    assert len(sentences.sentences(text)) == count


def test_paragraphs_become_pairs_of_sentences():
    paragraphs = [
        Pair("The first one is. The second one is.", "Le premier est ceci. Le second est cela.", "a"),
        Pair("Only one sentence here, but long.", "Deux phrases ici. Elles sont courtes.", "a"),
        Pair("The first one is.", "Le premier est  ceci.", "b"),  # again
        Pair("Two words", "Deux mots", "b"),
        Pair("The same on both sides", "The same on both sides", "b"),
        Pair("This is short.", "Cela est bien plus long que la phrase anglaise, et de loin.", "b"),
    ]
    assert sentences.pairs_of(paragraphs) == [
        Pair("The first one is.", "Le premier est ceci.", "a"),
        Pair("The second one is.", "Le second est cela.", "a"),
        Pair("Only one sentence here, but long.", "Deux phrases ici. Elles sont courtes.", "a"),
    ]


def catalogue(entries):
    """The content of a .mo file."""
    header, texts = 28 + 16 * len(entries), b""
    tables = [[], []]
    for table, column in zip(tables, (0, 1), strict=True):
        for entry in entries:
            text = entry[column].encode()
            table.append((len(text), header + len(texts)))
            texts += text + b"\0"
    numbers = [0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0]
    numbers += [number for table in tables for span in table for number in span]
    return struct.pack(f"<{len(numbers)}I", *numbers) + texts


@pytest.fixture
def named_deb(debian_package, tmp_path):
    """named_deb(name, {path: bytes}) -> the path of a package of that name."""

    def make(name, files):
        return str(shutil.move(debian_package(files), tmp_path / f"{name}_1-1_all.deb"))

    return make


def run(script, out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    config = script.PrepareConfig(out=str(out), **keys)
    assert not config.check()
    script.main(config)
    return json.loads((out / "meta.json").read_text())


def page(language, number):
    word = {"en": "page", "fr": "feuille"}[language]
    return (
        f"<title>no</title><h1 id='h{number}'><a name='x'></a>This is {word} {number}</h1>"
        f"<p id='a' class='x'>The <b>first</b> &amp; best {word}<br>of {number}.</p><p>no id {word}</p>"
        f"<table><tr><td><p id='{language}'>Only in this {word}</p></td></tr></table>"
    ).encode()


def test_libreoffice(tmp_path, named_deb, texts):
    folder, debs = "usr/share/libreoffice/help", []
    for code, path, language in (("en-us", "en-US", "en"), ("fr", "fr", "fr")):
        pages = {f"{folder}/{path}/text/swriter/{i}.html": page(language, i) for i in range(30)}
        pages |= {
            f"{folder}/{path}/bookmarks.js": b"x",
            f"{folder}/{path}/text/{path}.html": page("en", 99),
        }
        debs.append(named_deb(f"libreoffice-help-{code}", pages))
    entries = [("", "Plural-Forms: x"), ("one\0two things here", "une\0deux choses ici")]
    entries += [
        (f"dialog{i}|label\4Open the _file ~{i} now", f"Ouvrir le fichier _{i} main~tenant")
        for i in range(30)
    ]
    entries += [("dialog1|a_b\4Use the a_b key", "Prenez la cl\u00e9 a_b")]
    files = {"usr/lib/libreoffice/program/resource/fr/LC_MESSAGES/sw.mo": catalogue(entries)}
    debs.append(named_deb("libreoffice-l10n-fr", files))
    meta = run(libreoffice, tmp_path / "set", debs=debs)
    sides = texts(tmp_path / "set")
    found = set(zip(sides[::2], sides[1::2], strict=True))
    expected = {(f"This is page {i}", f"This is feuille {i}") for i in range(30)}
    expected |= {(f"The first & best page of {i}.", f"The first & best feuille of {i}.") for i in range(30)}
    expected |= {(f"Open the file {i} now", f"Ouvrir le fichier {i} maintenant") for i in range(30)}
    assert found == expected | {("Use the a_b key", "Prenez la clé a_b")}
    assert meta["pairs"] == len(found)
    held_out = texts(tmp_path / "set", "val")[::2]
    for i in range(30):  # a page is in one split
        assert (f"This is page {i}" in held_out) == (f"The first & best page of {i}." in held_out)
    assert run(libreoffice, tmp_path / "help", debs=debs, parts=["help"])["pairs"] == 60
    with pytest.raises(
        DataError, match=r"none is a file of the package libreoffice-help-de, libreoffice-he"
    ):
        run(libreoffice, tmp_path / "de", debs=debs, language="de")
    wrong = libreoffice.PrepareConfig(parts=["halp"], language="French", tokenizer="x.json").check()
    assert [line.split(":")[0].split()[0] for line in wrong] == ["parts", "language", "out"]
    with pytest.raises(DataError, match="catalogue is damaged"):
        list(libreoffice.catalogue(catalogue(entries)[:40]))
