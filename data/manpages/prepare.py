"""Prepares Linux's manual pages as pairs of English and another language.

    python data/manpages/prepare.py --language=fr --tokenizer=bpe:8192
    python data/manpages/prepare.py --language=de --tokenizer=bpe:8192

They come from Debian packages (downloaded, not installed): `manpages` and `manpages-dev` in English, and
`manpages-fr` and `manpages-fr-dev` (or -de) in the other language. Each page has a licence of its own, most
of them free for verbatim and modified copies, others the GPL or BSD's: see the `copyright` files of the
packages. Sections of a page are aligned where they have the same paragraphs, and cut into sentences where
both sides have as many. Code and tables are left out. Pairs of one page share a split.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, compressed, packages, preparing, roff, sentences  # noqa: E402
from corpus.splits import Pair  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402


@dataclass
class PrepareConfig(Keys):
    """Manual pages -> a data set of pairs with train.bin, val.bin and meta.json."""

    out: str | None = None  # folder to write; None: data/manpages/en_fr_gpt2, by language and tokenizer
    language: str = "fr"  # of the translation, as Debian names it: fr, de, es, pl, pt-br
    debs: list[str] | None = None  # the four packages as files; without them, apt-get downloads them
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.05  # share of the pages kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def __post_init__(self):
        self.out = self.out or preparing.folder_of_pairs("manpages", self.language, self.tokenizer)

    def check(self) -> list[str]:
        wrong = [] if self.out else [preparing.NO_FOLDER]
        if not re.fullmatch(r"[a-z]{2,3}(-[a-z]{2,4})?", self.language):
            wrong.append(
                f"language must be one of Debian's, such as fr, de or pt-br, not {self.language!r}"
            )
        return wrong


def main(config: PrepareConfig) -> None:
    pairs = sentences.pairs_of(paragraphs(config.language, config.debs))
    preparing.run_pairs(config, pairs, "manpages", f"pairs of English and {config.language}")


def paragraphs(language: str, debs: list[str] | None) -> Iterator[Pair]:
    """The aligned paragraphs of the pages that both languages have; the group is the page."""
    english, other = (pages(prefix, debs) for prefix in ("manpages", f"manpages-{language}"))
    for name in sorted(english.keys() & other.keys()):
        source, target = roff.sections(english[name]), roff.sections(other[name])
        # the last section of a translation names its translators
        yield from sentences.aligned_sections(source, target[: len(source)], name)


def pages(prefix: str, debs: list[str] | None) -> dict[str, str]:
    """{"man2/fcntl.2": its source} of the package and of the one for developers."""
    found = {}
    for name in (prefix, f"{prefix}-dev"):
        deb = packages.deb_of(name, debs)
        files = packages.files_of_debian_package(
            name, lambda path: re.search(r"/man/.*\.gz$", path), deb, "debs"
        )
        for path, content in files.items():
            page = re.sub(r".*/(man\w+/.*)\.gz$", r"\1", path)
            where = f"{path} of {name}"
            found[page] = packages.decoded(where, compressed.decompressed(where, content))
    return found


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
