"""Prepares WordNet 3.0 as a dictionary: 147,306 entries, 31 MB, free to use with its notice kept.

    python data/wordnet/prepare.py
    python data/wordnet/prepare.py --deb=dict-wn_3.0-37_all.deb

They come from the Debian package `dict-wn` (downloaded, not installed), one document per entry, with the
line breaks and the indentation of the dictionary.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, dictd, packages, preparing  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "dict-wn"


@dataclass
class PrepareConfig(Keys):
    """The entries of WordNet -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/wordnet/gpt2"  # folder to write
    deb: str | None = None  # the Debian package as a file; without it, apt-get downloads it
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.01  # share of the entries kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    preparing.run_texts(config, fetch_entries(config.deb), PACKAGE, "entries")


def fetch_entries(deb: str | None) -> list[str]:
    """Each entry once, in the order of the dictionary."""
    found = packages.files_of_debian_package(PACKAGE, lambda name: "/dictd/wn." in name, deb)
    return dictd.entries(PACKAGE, found)


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
