"""What is to be translated: a text, the lines of a file, or the pairs of a prepared data set."""

from dataclasses import dataclass, field
from pathlib import Path

from corpus import mixture
from corpus.files import lines
from corpus.loader import read_meta
from corpus.pairs import PairDataset
from corpus.tokenizer import valid_unicode
from evaluation.models import Opened
from reports.plural import counted
from training import pretrained
from translation import TranslationError

TEXT = "the text"
SHOWN = 10  # lines in a message
PREPARE = "python data/pairs/prepare.py --input=pairs.tsv"


@dataclass
class SourceTexts:
    """Texts of one language, and their translations by people if there are any."""

    texts: list[str]
    tokens: list[list[int]]  # of each text, without end-of-text
    references: list[str] | None = None
    left_out: int = 0  # pairs that do not fit into the model's block
    about: dict = field(default_factory=dict)  # where the texts come from, for JSON


def of_text(text: str, opened: Opened) -> SourceTexts:
    """Raises TranslationError where the text does not fit into the model's block."""
    text = valid_unicode(text)
    if not text.strip():
        raise TranslationError("--text is empty: give a sentence to translate")
    return _fitting(SourceTexts([text], [opened.tokenizer.encode(text)]), opened, TEXT)


def of_file(path: str, references: str | None, opened: Opened) -> SourceTexts:
    """A text per line; line n of `references` is the translation of line n.

    Raises TranslationError for files that are not aligned and for lines that are empty or do not fit, and
    DataError for files that cannot be read.
    """
    texts = list(lines(Path(path)))
    known = None if references is None else list(lines(Path(references)))
    if known is not None and len(known) != len(texts):
        short, long = sorted(((len(texts), path), (len(known), references)))
        raise TranslationError(
            f"{path} and {references} are not aligned: line {short[0] + 1:,} is in {long[1]} only, "
            f"which has {counted(long[0], 'line')}; line n of one must translate line n of the other"
        )
    if not texts:
        raise TranslationError(f"{path} is empty: give a file with a text in each line")
    for name, found in ((path, texts), (references, known or [])):
        if empty := [number for number, line in enumerate(found, 1) if not line.strip()]:
            raise TranslationError(
                f"{name}: {_numbered(empty)} empty: nothing to translate; take out empty lines"
            )
    tokens = opened.tokenizer.encode_batch(texts)
    return _fitting(SourceTexts(texts, tokens, known, about={"files": [path, references]}), opened, path)


def of_pairs(path: str, limit: int | None, opened: Opened) -> SourceTexts:
    """Pairs of a prepared .bin file, or of a folder's validation split; the first `limit` of them.

    Pairs that do not fit into the model's block are left out, as in training. Raises DataError,
    TranslationError, also where the tokenizer is not lossless, or CheckpointError where the model has
    another one.
    """
    file = Path(path)
    if file.is_file() and file.suffix != ".bin":
        raise TranslationError(
            f"--pairs={path} is no prepared data: give a folder or its val.bin, from {PREPARE}, or give "
            "texts as --input=FILE"
        )
    folder, split = (file.parent, file.stem) if file.suffix == ".bin" else (file, "val")
    if not opened.tokenizer.exact:
        raise TranslationError(
            f"--pairs={path}: the tokenizer of {opened.name} loses parts of a text, so its tokens are no "
            "references: give the texts themselves, as --input=FILE --references=FILE"
        )
    if "pairs" not in read_meta(folder, "pairs"):
        raise TranslationError(f"{path} holds documents, not pairs: prepare pairs, such as by {PREPARE}")
    dataset = PairDataset(folder, split, opened.config.block_size)
    pretrained.check_tokenizer(opened.source, dataset.tokenizer())
    if split != "train":  # the training split may be large
        for _ in dataset.verified():
            pass
    pairs = [dataset.pair(number) for number in range(min(dataset.n_windows, limit or dataset.n_windows))]
    sources, targets = ([side.tolist() for side in sides] for sides in zip(*pairs, strict=True))
    decode = opened.tokenizer.decode
    about = {"prepared": str(folder), "split": split, "recipe": dataset.meta.get("source"), "limit": limit}
    return SourceTexts(
        list(map(decode, sources)), sources, list(map(decode, targets)), dataset.left_out, about
    )


def check_trained_on_pairs(opened: Opened):
    """Raises TranslationError where the data set of a run is known to hold no pairs."""
    if opened.source.dataset is None:
        return
    folders = [Path(folder) for folder in mixture.parse(opened.source.dataset)[0]]
    if all((one / "meta.json").is_file() and "pairs" not in read_meta(one) for one in folders):
        raise TranslationError(
            f"{opened.name} was trained on {opened.source.dataset}, which holds documents, not pairs: it "
            f"has not learnt that a target follows its source. Prepare pairs, such as by {PREPARE}, and "
            "train on them"
        )


def _fitting(sources: SourceTexts, opened: Opened, name: str) -> SourceTexts:
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
