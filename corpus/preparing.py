"""What the prepare scripts of data/ share: documents in, a data set and the closing lines out."""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from corpus import DataError
from corpus.binary import prepare
from corpus.splits import Document, Pair
from reports.plural import counted

NO_FOLDER = "out: a data set with a tokenizer.json needs a folder: give --out=data/NAME/FOLDER"


def run(config, documents: Callable[..., Iterator[Document | None]], source: dict, **options) -> dict:
    """Calls `prepare` with the keys of a script's config, and prints the closing lines."""
    start = time.monotonic()
    out = Path(config.out)
    how = (config.tokenizer, out, config.val_fraction, config.workers)
    try:
        meta = prepare(documents, source, *how, end_token=config.end_token, **options)
    except MemoryError:
        raise DataError(
            "out of memory: a document, or a line of pairs, is encoded whole, which takes about 20 times "
            "its bytes. Split the longest ones, or take fewer --workers"
        ) from None
    print(describe(out, meta))
    print(f"{time.monotonic() - start:.1f} s")
    if missing := meta.get("missing_documents"):
        print(
            f"WARNING: {meta['documents_read']:,} documents were read and {meta['known_documents']:,} are "
            f"known: {abs(missing):,} {'are missing' if missing > 0 else 'too many'}",
            file=sys.stderr,
        )
    return meta


def run_texts(config, texts: list[str], package: str, what: str) -> dict:
    """`run` for the texts of a package, which fit into memory and are identified by their content.

    what: the name of a document, in the plural.
    """
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    source = {"package": package, what: len(texts), "sha256": digest}
    return run(config, lambda: iter(texts), source, scan=True)


def folder_of_pairs(name: str, language: str, tokenizer: str) -> str | None:
    """data/bible/en_fr_bpe8192: where pairs of English and another language are written by default.

    None if the tokenizer is a path, which does not say what it is.
    """
    label = tokenizer.replace(":", "")
    return None if "/" in label or label.endswith(".json") else f"data/{name}/en_{language}_{label}"


def run_pairs(config, pairs: list[Pair], package: str, what: str) -> dict:
    """`run_texts` for pairs; `what` names the pairs."""
    fields = (field or "" for pair in pairs for field in pair)
    digest = hashlib.sha256("\0".join(fields).encode()).hexdigest()
    source = {"package": package, what: len(pairs), "sha256": digest}
    return run(config, lambda: iter(pairs), source, scan=True, pairs=True)


def describe(out: Path, meta: dict) -> str:
    """The closing lines of a prepare script: the size of each split, and where it is stored."""
    lines = [f"tokenizer {meta['tokenizer']['name']}, vocabulary {meta['vocab_size']:,}"]
    for split, count in meta["splits"].items():
        documents = counted(count["documents"], "document")
        if "pairs" in meta:
            documents = counted(count["documents"] // 2, "pair")
        lines.append(
            f"{split:>5}: {documents}, {count['tokens']:,} tokens, "
            f"{count['bytes']:,} bytes of text, {count['bytes'] / count['tokens']:.3f} bytes per token"
        )
    if meta["skipped_empty"]:
        what = "pair with an empty side" if "pairs" in meta else "empty document"
        lines.append(f"skipped {counted(meta['skipped_empty'], what)}")
    if meta.get("left_out"):
        kept = 1 - meta["left_out"] / meta["documents_read"]
        lines.append(f"kept {kept:.2%} of {meta['documents_read']:,} documents read")
    return "\n".join([*lines, f"data set: {out}"])
