"""Prepares LibreOffice's help and interface as pairs of English and another language (MPL-2.0).

    python data/libreoffice/prepare.py --language=fr --tokenizer=bpe:8192
    python data/libreoffice/prepare.py --language=de --parts=help --tokenizer=bpe:8192
    python data/libreoffice/prepare.py --parts=interface --debs=libreoffice-l10n-fr_7.4.7-1_all.deb

The texts come from Debian packages (downloaded, not installed): the help is HTML whose paragraphs have the
same ids in all languages, the interface is in message catalogues that hold the English beside the
translation. Paragraphs are cut into sentences where both sides have as many. Pairs of one help page, or of
one dialog, share a split.
"""

import os
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing, sentences  # noqa: E402
from corpus.splits import Pair  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PARTS = ("help", "interface")
TEXTS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}


@dataclass
class PrepareConfig(Keys):
    """LibreOffice's help and interface -> a data set of pairs with train.bin, val.bin and meta.json."""

    out: str | None = None  # folder to write; None: data/libreoffice/en_fr_gpt2, by language and tokenizer
    language: str = "fr"  # of the translation, as Debian names it: fr, de, nb, pt-br
    parts: list[str] = field(default_factory=lambda: [*PARTS])  # help, interface or both
    debs: list[str] | None = None  # the packages as files; without them, apt-get downloads them
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.03  # share of the help pages and dialogs kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def __post_init__(self):
        self.out = self.out or preparing.folder_of_pairs("libreoffice", self.language, self.tokenizer)

    def check(self) -> list[str]:
        wrong = [
            f"parts: {part!r} is none of {', '.join(PARTS)}" for part in self.parts if part not in PARTS
        ]
        if not re.fullmatch(r"[a-z]{2,3}(-[a-z]{2,4})?", self.language):
            wrong.append(
                f"language must be one of Debian's, such as fr, de or pt-br, not {self.language!r}"
            )
        return wrong if self.out else [*wrong, preparing.NO_FOLDER]


def main(config: PrepareConfig) -> None:
    paragraphs: list[Pair] = []
    if "help" in config.parts:
        paragraphs += help_pages(config.language, config.debs)
    if "interface" in config.parts:
        paragraphs += messages(config.language, config.debs)
    what = f"pairs of LibreOffice's {' and '.join(config.parts)} in English and {config.language}"
    preparing.run_pairs(config, sentences.pairs_of(paragraphs), "libreoffice", what)


def help_pages(language: str, debs: list[str] | None) -> Iterator[Pair]:
    """The paragraphs with the same id in both languages; the group is the page."""
    sides = []
    for code in ("en-us", language):
        name = f"libreoffice-help-{code}"
        deb = packages.deb_of(name, debs)
        found = packages.files_of_debian_package(
            name, lambda n: re.search(r"/help/[^/]+/text/.*\.html$", n), deb, "debs"
        )
        sides.append({re.sub(r".*/help/[^/]+/", "", path): content for path, content in found.items()})
    english, other = sides
    for page in sorted(english.keys() & other.keys()):
        source, target = (Page(packages.decoded(page, side[page])).texts for side in sides)
        yield from (Pair(source[id], target[id], page) for id in source if id in target)


class Page(HTMLParser):
    """`texts`: {id: text} of the paragraphs and headings of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.texts: dict[str, str] = {}
        self.open = None  # (tag, id)
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        id = dict(attrs).get("id")
        if tag in TEXTS and id:
            self.open = tag, id
            self.texts[id] = ""
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag):
        if self.open and self.open[0] == tag:
            self.open = None

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[1]] += data


def messages(language: str, debs: list[str] | None) -> Iterator[Pair]:
    """The messages of the interface; the group is the dialog, or the list of messages, that they are in."""
    name = f"libreoffice-l10n-{language}"
    found = packages.files_of_debian_package(
        name, lambda n: n.endswith(".mo"), packages.deb_of(name, debs), "debs"
    )
    for path, content in found.items():
        for key, translation in catalogue(content):
            context, _, source = key.rpartition("\4")
            # "~" and "_" mark the letter of a menu's short cut
            sides = (re.sub(r"~|_(?=\w)(?<!\w_)", "", side) for side in (source, translation))
            yield Pair(*sides, f"{Path(path).stem} {context.partition('|')[0]}")


def catalogue(content: bytes) -> Iterator[tuple[str, str]]:
    """(message with its context, translation) of a .mo file of GNU gettext; without plural forms."""
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    try:
        count, *tables = struct.unpack_from(f"{order}3I", content, 8)
        for number in range(count):
            spans = [struct.unpack_from(f"{order}2I", content, table + 8 * number) for table in tables]
            key, value = (content[start : start + size].decode() for size, start in spans)
            if key and "\0" not in key:
                yield key, value
    except (struct.error, UnicodeDecodeError) as error:
        raise DataError(f"a message catalogue is damaged: {error}") from None


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
