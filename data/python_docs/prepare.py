"""Prepares the documentation of Python 3.11: the sources of its 497 pages, 11 MB, PSF licence.

    python data/python_docs/prepare.py
    python data/python_docs/prepare.py --deb=python3.11-doc_3.11.2-6+deb12u8_all.deb

They come from the Debian package `python3.11-doc` (downloaded, not installed), one document per page.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "python3.11-doc"


@dataclass
class PrepareConfig(Keys):
    """The pages of Python's documentation -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/python_docs/gpt2"  # folder to write
    deb: str | None = None  # the Debian package as a file; without it, apt-get downloads it
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the pages kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    preparing.run_texts(config, fetch_pages(config.deb), PACKAGE, "pages")


def fetch_pages(deb: str | None) -> list[str]:
    """The reStructuredText of every page, in the order of their paths."""
    pages = packages.files_of_debian_package(PACKAGE, lambda name: name.endswith(".rst.txt"), deb)
    return [packages.decoded(name, content) for name, content in pages.items()]


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
