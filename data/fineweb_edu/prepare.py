"""Prepares FineWeb-Edu: web pages that a classifier rated as educational, 10 billion tokens by default.

    python data/fineweb_edu/prepare.py --max_tokens=1_000_000_000

The data are streamed from the Hugging Face hub, or read from --input=PATH. After a stop or a kill, a
command that streams continues.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, preparing, sources  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

NAME = "HuggingFaceFW/fineweb-edu"


@dataclass
class PrepareConfig(sources.Keys, Keys):
    """FineWeb-Edu -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/fineweb_edu/gpt2"  # folder to write
    hub_config: str = "sample-10BT"  # sample-10BT, sample-100BT, sample-350BT, default (all) or a crawl
    max_tokens: int | None = None  # stop with the document that brings the train split to so many tokens
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.0005  # share of the documents kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    source = sources.opened(config.input, NAME, config.hub_config, ["text"])
    preparing.run(config, source.texts(), source.about, max_tokens=config.max_tokens)


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
