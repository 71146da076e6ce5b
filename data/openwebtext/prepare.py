"""Prepares OpenWebText, the open remake of GPT-2's training text: 8,013,769 web pages.

    python data/openwebtext/prepare.py

It is streamed from the Hugging Face hub, in the first of three forms that the hub has: the data set itself,
the hub's own conversion to Parquet, or the 21 archives (.tar of .xz of .txt files) that it was made from.
--input=PATH reads any of them from a download. After a stop or a kill, the same command continues. nanoGPT
counts 9,035,582,198 training tokens with a different split.
"""

import os
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, hub, packages, preparing, sources  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

NAME = "Skylion007/openwebtext"
HUB = f"hf://datasets/{NAME}/"  # where its files are opened
KNOWN_DOCUMENTS = 8_013_769


@dataclass
class PrepareConfig(sources.Keys, Keys):
    """OpenWebText -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/openwebtext/gpt2"  # folder to write
    tokenizer: str = "gpt2"  # gpt2, bytes, bpe:SIZE (trained on the train split) or a tokenizer.json
    val_fraction: float = 0.0005  # share of the documents kept for validation; nanoGPT's
    workers: int = os.cpu_count() or 1  # processes that encode


def main(config: PrepareConfig) -> None:
    source = open_source(config.input)
    preparing.run(config, source.texts(), source.about, known_documents=KNOWN_DOCUMENTS)


def open_source(given: str | None) -> sources.Source:
    archives = [] if given is None else sorted(Path(given).glob("subsets/*.tar"))
    if archives:  # the repository as it was downloaded
        return local_archives(archives)
    where = (NAME, None, "train")
    forms = [hub.plain(*where), hub.parquet(*where, whole=True), hub.Form("its archives", open_archives)]
    return sources.opened(given, NAME, None, ["text"], forms)


def open_archives():
    archives = sorted(path for path in hub.files(NAME) if re.fullmatch(r"subsets/.*\.tar", path))
    if not archives:
        raise hub.NotServedError("there is no subsets/*.tar")
    return rows_of([HUB + path for path in archives])


def local_archives(paths: list[Path]) -> sources.Source:
    form = hub.Form("its archives", lambda: rows_of([str(path) for path in paths]))
    about = {"archives": [path.name for path in paths], "bytes": sum(path.stat().st_size for path in paths)}
    hint = "Download the archive again, or leave --input out"
    return sources.Source(
        lambda document, state: hub.Stream([form], document, "the archives", hint, state), about
    )


def rows_of(urls: list[str]):
    return hub.library().IterableDataset.from_generator(read_archives, gen_kwargs={"urls": urls})


def read_archives(urls: list[str]) -> Iterator[dict]:
    """The pages as rows. Runs of blank lines are reduced to one, as in the data set itself."""
    import fsspec  # comes with `datasets`

    for url in urls:
        # block_size 0: one connection for the whole file, instead of one request per part
        with fsspec.open(url, block_size=0) as file, tarfile.open(fileobj=file, mode="r|") as outer:
            for packed in outer:
                if not packed.name.endswith(".xz"):
                    continue
                with tarfile.open(fileobj=outer.extractfile(packed), mode="r|xz") as inner:
                    for member in inner:
                        if member.name.endswith(".txt"):
                            text = packages.decoded(member.name, inner.extractfile(member).read())
                            yield {"text": re.sub(r"\n{3,}", "\n\n", text).strip()}


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
