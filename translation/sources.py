"""What is to be translated: a text, the lines of a file, or the pairs of a prepared data set."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data import DataError, mixture
from data.files import readable
from data.loader import Dataset
from data.tokenizer import valid_unicode
from disk import read_json
from evaluation.models import Opened
from plural import counted
from training import pretrained
from translation import TranslationError

TEXT = "the text"
SHOWN = 10  # lines in a message
PREPARE = "python data/pairs/prepare.py --input=pairs.tsv"


@dataclass
class Sources:
    """Texts of one language, and their translations by people if there are any."""

    texts: list[str]
    tokens: list[list[int]]  # of each text, without end-of-text
    references: list[str] | None = None
    left_out: int = 0  # pairs that do not fit into the model's block
    about: dict = field(default_factory=dict)  # where the texts come from, for JSON


def of_text(text: str, opened: Opened) -> Sources:
    """Raises TranslationError where the text does not fit into the model's block."""
    text = valid_unicode(text)
    if not text.strip():
        raise TranslationError("--text is empty: give a sentence to translate")
    return _fitting(Sources([text], [opened.tokenizer.encode(text)]), opened, TEXT)


def of_file(path: str, references: str | None, opened: Opened) -> Sources:
    """A text per line; line n of `references` is the translation of line n.

    Raises TranslationError for files that are not aligned and for lines that are empty or do not fit, and
    DataError for files that cannot be read.
    """
    texts = _lines(Path(path))
    known = None if references is None else _lines(Path(references))
    if known is not None and len(known) != len(texts):
        short, long = sorted(((len(texts), path), (len(known), references)))
        raise TranslationError(
            f"{path} and {references} are not aligned: line {short[0] + 1:,} is in {long[1]} only, "
            f"which has {counted(long[0], 'line')}; line n of one must translate line n of the other"
        )
    if not texts:
        raise TranslationError(f"{path} is empty: give a file with a text in each line")
    for name, lines in ((path, texts), (references, known or [])):
        if empty := [number for number, line in enumerate(lines, 1) if not line.strip()]:
            raise TranslationError(f"{name}: {_numbered(empty)} empty, and has no translation: take it out")
    found = Sources(texts, opened.tokenizer.encode_batch(texts), known, about={"files": [path, references]})
    return _fitting(found, opened, path)


def of_pairs(path: str, limit: int | None, opened: Opened) -> Sources:
    """Pairs of a prepared .bin file, or of a folder's validation split; the first `limit` of them.

    Pairs that do not fit into the model's block are left out, as in training. Raises DataError,
    TranslationError, or CheckpointError where the model has another tokenizer.
    """
    file = Path(path)
    folder, split = (file.parent, file.stem) if file.suffix == ".bin" else (file, "val")
    dataset = Dataset(folder, split, block_size=1)
    if "pairs" not in dataset.meta:
        raise TranslationError(f"{path} holds documents, not pairs: prepare pairs, such as by {PREPARE}")
    pretrained.check_tokenizer(opened.source, dataset.tokenizer())
    if split != "train":  # the training split may be large
        for _ in dataset.verified():
            pass
    ends = np.flatnonzero(dataset.tokens == dataset.meta["end_of_text"])
    if len(ends) % 2 or not len(ends) or ends[-1] + 1 != len(dataset.tokens):
        raise TranslationError(f"{path} does not end with a whole pair: prepare the data set again")
    starts = np.concatenate(([0], ends[1::2] + 1))
    # end-of-text, source, end-of-text, target: what the model reads of a pair
    fits = np.diff(starts) <= opened.config.block_size
    chosen = np.flatnonzero(fits)[:limit]
    if not len(chosen):
        raise TranslationError(
            f"none of the {counted(len(fits), 'pair')} of {path} fits into "
            f"block_size={opened.config.block_size} of {opened.name}"
        )
    left_out = int(np.count_nonzero(~fits[: chosen[-1] + 1 if limit else None]))
    sources, targets = [], []
    for place in chosen:
        begin, middle, end = starts[place], ends[2 * place], ends[2 * place + 1]
        sources.append(dataset.tokens[begin:middle].tolist())
        targets.append(dataset.tokens[middle + 1 : end].tolist())
    decode = opened.tokenizer.decode
    about = {"prepared": str(folder), "split": split, "recipe": dataset.meta.get("source"), "limit": limit}
    return Sources(list(map(decode, sources)), sources, list(map(decode, targets)), left_out, about)


def check_trained_on_pairs(opened: Opened):
    """Raises TranslationError where the data set of a run is known to hold no pairs."""
    if opened.source.dataset is None:
        return
    metas = [Path(folder) / "meta.json" for folder in mixture.parse(opened.source.dataset)[0]]
    if all(path.is_file() and "pairs" not in read_json(path, DataError) for path in metas):
        raise TranslationError(
            f"{opened.name} was trained on {opened.source.dataset}, which holds documents, not pairs: it "
            f"has not learnt that a target follows its source. Prepare pairs, such as by {PREPARE}, and "
            "train on them"
        )


def _lines(path: Path) -> list[str]:
    with readable(path), path.open("rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line:,}: not UTF-8 ({error.reason})") from None
    # only \n ends a line: a text may hold other line ends of Unicode
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _fitting(sources: Sources, opened: Opened, name: str) -> Sources:
    """Raises TranslationError that names the lines after which the model sees no token of a translation."""
    block = opened.config.block_size
    most = block - 2  # end-of-text stands before and after a source
    if long := [number for number, ids in enumerate(sources.tokens, 1) if len(ids) > most]:
        where = f"{name} is" if name == TEXT else f"{name}: {_numbered(long)}"
        longest = max(map(len, sources.tokens))
        raise TranslationError(
            f"{where} too long for {opened.name}: it sees block_size={block} tokens, so that a source may "
            f"have {most}, and the longest has {longest:,}; split the text into sentences"
        )
    return sources


def _numbered(lines: list[int]) -> str:
    """[3, 7] -> lines 3, 7 are"""
    if len(lines) == 1:
        return f"line {lines[0]:,} is"
    shown = ", ".join(f"{line:,}" for line in lines[:SHOWN])
    more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return f"lines {shown}{more} are"
