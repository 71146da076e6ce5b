"""Prepares any text: local files, or a data set of the Hugging Face hub, by name or downloaded.

    python data/text/prepare.py '--input=books/*.txt,more.jsonl' --out=data/text/books
    python data/text/prepare.py --input=book.txt --out=data/text/book --split=contiguous --val_fraction=0.1
    python data/text/prepare.py --input=roneneldan/TinyStories --out=data/text/stories --tokenizer=bpe:8192
    python data/text/prepare.py --input=wikitext --hub_config=wikitext-2-raw-v1 --out=data/text/wikitext

Files are .txt, .jsonl, .json (a list of objects, or one object per line), .csv and .parquet. All but
Parquet may be compressed (.jsonl.gz, .txt.xz, .csv.zst). One .txt file is one document unless --separator
splits it, where \\n stands for \\r\\n too. In the other formats each row is a document, and --field names
the column with its text. Documents stay whole, and a hash of its text decides the split of each. One
document alone needs --split=contiguous: the end of each document, from a start of a line on if there is one
near, is validation. Files are streamed: only a few documents per worker are in memory.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, files, hub, preparing, sources  # noqa: E402
from corpus.compressed import MAX_EXPANSION  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402


@dataclass
class PrepareConfig(Keys):
    """Local files or a data set of the hub -> a data set with train.bin, val.bin and meta.json."""

    input: str  # files, folders or globs, with commas; or one data set: downloaded, or its name on the hub
    out: str  # folder to write
    field: str = "text"  # the column that holds the text, in all formats but .txt
    separator: str | None = None  # cuts each .txt file into documents; \n, \r and \t are understood
    #: refuse a compressed file that gives so many times its size in text, and more than 64 MiB
    max_expansion: int = MAX_EXPANSION
    max_docs: int | None = None  # stop after so many documents
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    split: Literal["documents", "contiguous"] = "documents"  # contiguous: the end of each is validation
    val_fraction: float = 0.01  # share of the documents, or of each document, kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode
    hub_config: str | None = None  # the configuration of a data set, downloaded or not, that has several
    hub_split: str = "train"  # the split of such a data set; train and val are cut from it

    def check(self) -> list[str]:
        complaints = []
        if not self.input.strip(", "):
            complaints.append("--input names nothing")
        if self.max_docs is not None and self.max_docs < 1:
            complaints.append(f"--max_docs must be at least 1, not {self.max_docs}")
        if self.max_expansion < 1:
            complaints.append(f"--max_expansion must be at least 1, not {self.max_expansion}")
        if self.separator == "":
            complaints.append("--separator is empty")
        return complaints


def main(config: PrepareConfig) -> None:
    source = open_source(config)
    documents, options = source.texts(config.field), {"contiguous": config.split == "contiguous"}
    options["scan"] = "hub" not in source.about
    if config.max_docs is not None:
        source.about["max_docs"] = config.max_docs
        documents = sources.first(documents, config.max_docs)
    preparing.run(config, documents, source.about, **options)


def open_source(config: PrepareConfig) -> sources.Source:
    """The rows of --input, and their origin."""
    if "," not in config.input and not files.looks_local(name := config.input.strip()):
        return on_hub(name, config)
    separator = config.separator
    if separator is not None:
        for written, meant in (("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
            separator = separator.replace(written, meant)
    where = (config.hub_config, config.hub_split)
    source = sources.local(config.input, [config.field], *where, separator, config.max_expansion)
    if "files" in source.about and where != (None, source.about.get("split", "train")):
        raise DataError(
            f"--input={config.input} names plain files, which have no configuration and no split: leave "
            "out --hub_config and --hub_split, and name the files of one split"
        )
    if "files" in source.about:  # of which the first ones are named
        of_text = [".txt" in Path(name).suffixes for name in source.about["files"]]
        if separator is not None and not any(of_text):
            raise DataError("--separator cuts .txt files, and --input names none: leave it out")
        if config.field != "text" and all(of_text):
            raise DataError(f"--field={config.field}: .txt files have no columns, leave it out")
    source.about |= {"field": config.field, "separator": separator}
    return source


def on_hub(name: str, config: PrepareConfig) -> sources.Source:
    where = (name, config.hub_config, config.hub_split)
    shown = f"the hub's data set {name!r} (config {config.hub_config}, split {config.hub_split})"
    forms = [hub.plain(*where), hub.parquet(*where)]
    about = {"hub": name, "config": config.hub_config, "split": config.hub_split, "field": config.field}
    hint = f"No local file or folder has this name either. {sources.HINT}"
    return sources.Source(lambda document, state: hub.Stream(forms, document, shown, hint, state), about)


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
