"""The tokenizer that --tokenizer names, or that a prepared data set has saved."""

from host.disk import open_to_read

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from corpus import DataError
from corpus.file_tokenizer import BpeTokenizer, InexactTokenizer, end_token_of, from_text, spread
from corpus.lossless import END_OF_TEXT
from corpus.tokenizer import BytesTokenizer, Gpt2Tokenizer, MqarTokenizer, Tokenizer

SAVING = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) of transformers writes one"
FROM_FILES = {cls.kind: cls for cls in (BpeTokenizer, InexactTokenizer)}


@dataclass(kw_only=True)
class Keys:
    """The key of all scripts that take the path of a tokenizer.json."""

    end_token: str | None = None  # ends a document, for a tokenizer.json; None: as its configuration says


def parse_tokenizer_name(name: str) -> tuple[str, int | Path | None]:
    """ "gpt2" | "bytes" | "bpe:4096" | "path/to/tokenizer.json" -> (kind, vocabulary size or path).

    A folder stands for the tokenizer.json in it. Raises DataError.
    """
    if name in ("gpt2", "bytes"):
        return name, None
    if found := re.fullmatch(r"bpe:(\d+)", name):
        if int(found[1]) < 257:
            raise DataError(f"{name}: the vocabulary holds 256 bytes and end-of-text, so at least 257")
        return "bpe", int(found[1])
    if os.path.isdir(name):
        if not os.path.isfile(file := os.path.join(name, "tokenizer.json")):
            raise DataError(f"tokenizer {name}: the folder has no tokenizer.json. {SAVING}")
        return "bpe", Path(file)
    if name.endswith(".json"):
        if not os.path.isfile(name):
            raise DataError(f"tokenizer {name}: no such file")
        return "bpe", Path(name)
    raise DataError(
        f"unknown tokenizer {name!r}: gpt2, bytes, bpe:SIZE, or the path of a tokenizer.json or of a "
        f"folder with one. {SAVING}"
    )


def build_tokenizer(
    name: str, training_documents: Callable[[], Iterable[str]], end_token: str | None = None
) -> Tokenizer:
    """The tokenizer of that name. Only "bpe:SIZE" reads the documents, for training.

    end_token: of a tokenizer.json, see `end_token_of`. Raises DataError where a tokenizer cannot be read,
    or the documents give fewer than SIZE tokens.
    """
    kind, argument = parse_tokenizer_name(name)
    if end_token is not None and not isinstance(argument, Path):
        raise DataError(f"--end_token={end_token} is for a tokenizer.json: {name} has an end of its own")
    if kind == "gpt2":
        return Gpt2Tokenizer()
    if kind == "bytes":
        return BytesTokenizer()
    if isinstance(argument, int):
        tokenizer = BpeTokenizer.train(spread(training_documents, name), argument)
        if tokenizer.vocab_size < argument:
            raise DataError(
                f"{name}: the training text gives {tokenizer.vocab_size:,} tokens only; after them no pair "
                f"occurs twice. Give --tokenizer=bpe:{tokenizer.vocab_size} or a smaller one, and a folder "
                "whose name says so, or more text"
            )
        return tokenizer
    try:
        with open_to_read(argument) as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"tokenizer {name} cannot be read: {reason}") from None
    end_token = end_token_of(argument, end_token)
    return from_text(text, end_token, name)


def from_json(saved: dict) -> Tokenizer:
    """Rebuilds a tokenizer from `to_json()`. Raises DataError if the result is not the saved one."""
    kind = saved.get("kind")
    if kind == "gpt2":
        tokenizer = Gpt2Tokenizer()
    elif kind == "bytes":
        tokenizer = BytesTokenizer()
    elif kind in FROM_FILES and "tokenizer.json" in saved:
        tokenizer = FROM_FILES[kind](saved["tokenizer.json"], saved.get("end_token", END_OF_TEXT))
    elif kind == "mqar" and str(saved.get("vocab_size")).isdecimal():
        tokenizer = MqarTokenizer(int(saved["vocab_size"]))
    else:
        raise DataError(f"a saved tokenizer of kind {kind!r} with keys {sorted(saved)} cannot be rebuilt")
    if tokenizer.hash != saved.get("hash"):
        raise DataError(
            f"the {kind} tokenizer does not match the one that was saved: its hash is {tokenizer.hash}, "
            f"the saved one {saved.get('hash')}; the tokens would mean other texts"
        )
    return tokenizer


def end_of_text_of(saved: dict) -> int:
    """The token that ends a text, of what `to_json()` of a tokenizer gave; raises DataError."""
    fixed = {"gpt2": Gpt2Tokenizer, "bytes": BytesTokenizer}.get(saved.get("kind"))
    return from_json(saved).end_of_text if fixed is None else fixed.end_of_text
