"""Prepares GneissWeb: the web pages of FineWeb that pass IBM's quality filters, up to 35 billion tokens.

    python data/gneissweb/prepare.py
    python data/gneissweb/prepare.py --hub_config=CC-MAIN-2024-10 --bloom=PATH --max_tokens=1_000_000_000

GneissWeb is not published as text but as a Bloom filter of 28 GB over the ids of its documents. FineWeb is
streamed from the Hugging Face hub, or read from --input=PATH, and documents whose ids pass the filter are
kept. The filter is downloaded into the hub's cache and must fit into memory. Like every Bloom filter, it
also passes a few wrong documents. By default it is applied to FineWeb's random sample of 100 billion
tokens: the whole of FineWeb is ordered by crawl, so its first 35 billion tokens would come from a few
months. IBM's data set also has repeated passages removed from documents, which ids cannot tell. After a
stop or a kill, a command that streams continues.
"""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from host.packages import install  # noqa: E402

from configurator import parse  # noqa: E402
from corpus import DataError, files, hub, preparing, sources  # noqa: E402
from corpus.tokenizer_registry import Keys  # noqa: E402

FINEWEB = "HuggingFaceFW/fineweb"
FILTER = "ibm-granite/GneissWeb.bloom"
PROBE = 100_000  # documents to test the filter on: the right one knows more than half of them
HINT = "The hub needs network. Run the same command again when it is back"  # for the filter


@dataclass
class PrepareConfig(sources.Keys, Keys):
    """FineWeb, filtered to GneissWeb -> a data set with train.bin, val.bin and meta.json."""

    out: str = "data/gneissweb/gpt2"  # folder to write
    hub_config: str = "sample-100BT"  # of FineWeb: a random sample, default (all crawls in turn), one crawl
    bloom: str | None = None  # a file that holds the filter; without it, the hub's is downloaded
    max_tokens: int = 35_000_000_000  # stop with the document that brings the train split to so many
    tokenizer: str = "gpt2"  # gpt2, bytes or a tokenizer.json
    val_fraction: float = 0.0005  # share of the documents kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def check(self) -> list[str]:
        if self.bloom is not None and not Path(self.bloom).is_file():
            return [f"--bloom={self.bloom}: no such file"]
        return []


def main(config: PrepareConfig) -> None:
    try:
        import rbloom  # noqa: F401
    except ImportError:
        raise DataError(f"the filter needs the package rbloom: {install('rbloom')}") from None
    hub.library()
    source = sources.opened(config.input, FINEWEB, config.hub_config, ["text", "id"])
    source.about["filter"] = FILTER
    if config.bloom is not None:
        with files.readable(Path(config.bloom)), open(config.bloom, "rb") as file:
            source.about["filter"] = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
    out = Path(config.out)
    if not out.exists():
        written = sum(path.stat().st_size for path in out.parent.glob(f"{out.name}.partial/*.bin"))
        require_space(out.parent, 2 * config.max_tokens - written, "the tokens")
    bloom = None

    def documents(state: dict | None = None) -> Iterator[str | None]:
        nonlocal bloom
        bloom = bloom or load_filter(config.bloom)
        return source.read(Selection(bloom), state)

    preparing.run(config, documents, source.about, max_tokens=config.max_tokens)


class Selection:
    """Returns the text of a row whose id the filter knows, and None for any other row."""

    def __init__(self, bloom):
        self.bloom = bloom
        self.seen = self.kept = 0

    def __call__(self, row: dict, where: str) -> str | None:
        self.seen += 1
        if files.text_of(row, "id", where) in self.bloom:
            self.kept += 1
            return files.text_of(row, "text", where)
        if self.seen == PROBE and not self.kept:
            raise DataError(
                f"the filter knows none of the first {PROBE:,} documents: it is not one of FineWeb's ids, "
                "or it was made with another hash"
            )
        return None


def hash_id(document_id: str) -> int:
    """The hash that the filter was made with; it depends on the pickle protocol."""
    digest = hashlib.sha256(pickle.dumps(document_id, protocol=4)).digest()
    return int.from_bytes(digest[:16], "big", signed=True)


def load_filter(path: str | None):
    import rbloom

    if path is None:
        path = download_filter()
    else:
        require_memory(os.path.getsize(path))
    print(f"loading the filter {path}", file=sys.stderr)
    try:
        return rbloom.Bloom.load(path, hash_id)
    except OSError as error:
        raise DataError(f"{path} cannot be read as a filter of rbloom: {error}") from None


def download_filter() -> str:
    """Downloads the hub's filter into its cache, and returns the path. Checks memory and disk first."""
    import huggingface_hub  # comes with `datasets`
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        listed = huggingface_hub.HfApi().model_info(FILTER, files_metadata=True).siblings
        largest = max(listed, key=lambda file: file.size or 0)  # the others are small, such as the card
        require_memory(largest.size)
        if not isinstance(huggingface_hub.try_to_load_from_cache(FILTER, largest.rfilename), str):
            require_space(Path(HF_HUB_CACHE), largest.size, "the filter")
        return huggingface_hub.hf_hub_download(FILTER, largest.rfilename)
    except DataError:
        raise
    except Exception as error:  # the library has many kinds of network errors
        raise DataError(
            f"the filter {FILTER} cannot be downloaded: {type(error).__name__}: {error}\n{HINT}, or give "
            "the filter as --bloom=PATH"
        ) from None


def require_memory(size: int) -> None:
    free = available_memory()
    if free < size:
        raise DataError(
            f"the filter takes {size / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: "
            "prepare the data on a larger machine and copy the folder"
        )


def available_memory() -> int:
    """Available memory in bytes, at most the limit of the container."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):  # not Linux
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # not in a container, or its limit is "max"
        return free


def require_space(folder: Path, size: int, what: str) -> None:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DataError(
            f"{what} take {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in {folder}: make room or "
            "choose another disk (--out for the tokens, the environment's HF_HOME for the filter)"
        )


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
