"""Pairs out of packages: LibreOffice's help and interface, Electron's documentation, manual pages."""

import gzip
import io
import json
import shutil
import struct
import tarfile

import pytest

from corpus import DataError, packages, roff, sentences
from corpus.splits import Pair
from tests.data.prepare_scripts import load_script

libreoffice = load_script("libreoffice")
electron = load_script("electron")
manpages = load_script("manpages")


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
    with pytest.raises(DataError, match=r"--debs=.*libreoffice-help-de,"):
        run(libreoffice, tmp_path / "de", debs=debs, language="de")
    wrong = libreoffice.PrepareConfig(parts=["halp"], language="French", tokenizer="x.json").check()
    assert [line.split(":")[0].split()[0] for line in wrong] == ["parts", "language", "out"]
    with pytest.raises(DataError, match="catalogue is damaged"):
        list(libreoffice.catalogue(catalogue(entries)[:40]))


def test_sections_with_the_same_kinds_of_blocks_are_aligned():
    ours = [[("h1", "Title of it")], [("p", "A"), ("p", "B")], [("p", "C")]]
    theirs = [[("h1", "Titre de cela")], [("p", "A'"), ("li", "B'")], [("p", "C'")]]
    found = list(sentences.aligned_sections(ours, theirs, "page"))
    assert found == [Pair("Title of it", "Titre de cela", "page"), Pair("C", "C'", "page")]
    assert not list(sentences.aligned_sections(ours, theirs[:2], "page"))


def test_electron(tmp_path, texts, monkeypatch):
    def html(language, i):
        word = {"en": "page", "fr": "feuille"}[language]
        return (
            f"<h1 id='x'>Title of {word} {i}</h1>\n"
            f"<p>A <code>first</code>\n{word} {i}. The second {word} {i}.</p>"
            f"<pre><code>no code {word}</code></pre><ul><li>An item of {word} {i}</li></ul>"
            f"<h2>Untranslated heading here</h2><p>Not aligned {word}</p>"
            + ("<p>more</p>" if language == "fr" else "")
        )

    pages = {
        locale: {f"/docs/{i}": {"html": html(language, i)} for i in range(30)}
        for locale, language in (("en-US", "en"), ("fr-FR", "fr"))
    }
    archive = tmp_path / "electron-i18n-1.3136.0.tgz"
    with tarfile.open(archive, "w:gz") as opened:
        content = json.dumps(pages).encode()
        member = tarfile.TarInfo(electron.PATH)
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    meta = run(electron, tmp_path / "set", archive=str(archive))
    sides = texts(tmp_path / "set")
    expected = set()
    for i in range(30):
        for text in (
            f"Title of {{}} {i}",
            f"A first {{}} {i}.",
            f"The second {{}} {i}.",
            f"An item of {{}} {i}",
        ):
            expected.add((text.format("page"), text.format("feuille")))
    assert set(zip(sides[::2], sides[1::2], strict=True)) == expected
    assert meta["source"]["package"] == "electron-i18n@1.3136.0"
    with pytest.raises(DataError, match="is not as expected: KeyError"):
        run(electron, tmp_path / "de", archive=str(archive), language="de")
    with pytest.raises(DataError, match=r"--archive=gone: No such file"):
        run(electron, tmp_path / "de", archive="gone")
    monkeypatch.setattr(packages, "NPM", ["no-such-client"])
    with pytest.raises(DataError, match=r"no-such-client .*\n.*`npm pack electron-i18n@1"):
        run(electron, tmp_path / "de")


PAGE = r""".\" a comment
.TH open 2 2023-02-05 "Linux"
.SH NAME
open \- open a file
.SH SYNOPSIS
.nf
.BI "int open(const char *" path );
code
.fi
.SH DESCRIPTION
.BR open ()
opens
.IR path .
It returns "a" \fIfile\fP, \f[B]not\f[R] a\ \(lqdescriptor\(rq\(em\s-1OR\s0 -1.
.PP
'\" another comment
Version\~1.5 \(bu \[u00E9] \e0 \&.hidden
.TP
.BR O_RDONLY " (\fIint\fP)"
Read only.
.IP "one two" 4
Of one.
.SS "A part"
.RS
.EX
left out
.EE
.UNKNOWN macro
Last words.
"""


def test_roff():
    assert roff.sections(PAGE) == [
        [],
        [("SH", "NAME"), ("P", "open - open a file")],
        [("SH", "SYNOPSIS")],
        [
            ("SH", "DESCRIPTION"),
            ("P", 'open() opens path. It returns "a" file, not a “descriptor”—OR -1.'),
            ("P", "Version 1.5 • é \\0 .hidden"),
            ("tag", "O_RDONLY (int)"),
            ("P", "Read only."),
            ("tag", "one two"),
            ("IP", "Of one."),
        ],
        [("SS", "A part"), ("P", "Last words.")],
    ]


def test_manpages(tmp_path, named_deb, texts):
    def source(language, i):
        word = {"en": "page", "fr": "feuille"}[language]
        text = f".SH NAME OF {word}\nopen{i} \\- open the {word}\n"
        text += f".SH DESCRIPTION\nThis is \\fB{word}\\fP {i}.\n"
        return gzip.compress(
            (text + (".SH TRADUCTION\nBy somebody else.\n" if language == "fr" else "")).encode()
        )

    debs = []
    for prefix, folder, language in (("manpages", "", "en"), ("manpages-fr", "/fr", "fr")):
        for name, numbers in ((prefix, range(15)), (f"{prefix}-dev", range(15, 31))):
            files = {f"usr/share/man{folder}/man2/open{i}.2.gz": source(language, i) for i in numbers}
            files |= {f"usr/share/doc/{name}/changelog.gz": b"no gzip"}
            debs.append(named_deb(name, files))
    meta = run(manpages, tmp_path / "set", debs=debs)
    sides = texts(tmp_path / "set")
    expected = {(f"open{i} - open the page", f"open{i} - open the feuille") for i in range(31)}
    expected |= {(f"This is page {i}.", f"This is feuille {i}.") for i in range(31)}
    expected |= {("NAME OF page", "NAME OF feuille")}
    assert set(zip(sides[::2], sides[1::2], strict=True)) == expected
    assert meta["pairs"] == len(expected)
    debs[0] = named_deb("manpages", {"usr/share/man/man2/open1.2.gz": b"damaged"})
    with pytest.raises(DataError, match=r"open1\.2\.gz of manpages.*decompressed"):
        run(manpages, tmp_path / "other", debs=debs)
