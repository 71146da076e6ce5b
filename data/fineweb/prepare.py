"""Prepares FineWeb, English web pages: by default those of at least 4000 tokens, as in the ExPE paper.

    python data/fineweb/prepare.py
    python data/fineweb/prepare.py --min_tokens=0 --max_tokens=10_000_000_000 --out=data/fineweb/all

The first command writes 600 million training tokens, and validation and test splits of about 50 million
each. The text of a document decides its split, so the sizes of these two are approximate. Documents that
are too short are counted as left out. The paper counts tokens of Llama's SentencePiece tokenizer of 32,000,
which --tokenizer=PATH/tokenizer.json takes. The data are streamed from the Hugging Face hub, or read from
--input=PATH. After a stop or a kill, a command that streams continues.
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

NAME = "HuggingFaceFW/fineweb"


@dataclass
class PrepareConfig(sources.Keys, Keys):
    """FineWeb -> a data set with train.bin, val.bin, test.bin and meta.json."""

    out: str = "data/fineweb/gpt2"  # folder to write
    hub_config: str = "sample-100BT"  # a random sample (also 10BT, 350BT), default (all), or one crawl
    min_tokens: int = 4000  # leave out documents of fewer tokens, end-of-text not counted
    max_tokens: int | None = 600_000_000  # stop with the document that brings the train split to so many
    tokenizer: str = "gpt2"  # gpt2, bytes or a tokenizer.json
    val_fraction: float = 1 / 14  # share of the documents kept for validation
    test_fraction: float = 1 / 14  # share of the documents kept for a test split; 0: none
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    source = sources.opened(config.input, NAME, config.hub_config, ["text"])
    keys = ("max_tokens", "min_tokens", "test_fraction")
    preparing.run(config, source.texts(), source.about, **{key: getattr(config, key) for key in keys})


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
