"""Tokenizers that a tokenizer.json holds: byte-level BPEs, which are also trained here, and others.

A tokenizer from elsewhere may lack rare bytes, such as control characters. It refuses texts that contain
them.
"""

from host.disk import read_json

import contextlib
import hashlib
import itertools
import json
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from corpus import DataError, gpt2, lossless
from corpus.lossless import END_OF_TEXT
from corpus.tokenizer import Tokenizer, valid_unicode

MOST_BYTES = 2**31 - 1  # of the text that a BPE is trained on: `tokenizers` counts a pair in int32
PIECE = 1 << 20  # characters; an even part has many pieces
LONGEST_WORD = 4000  # bytes
TEXTS = 1000  # that are encoded at once
CONTEXT = 8  # tokens before a token that can change its text, such as whether a space precedes it


class NotLosslessError(DataError):
    """A tokenizer.json that loses or changes text."""


class FileTokenizer(Tokenizer):
    """A tokenizer in the format of Hugging Face `tokenizers`; `text` is that of a tokenizer.json.

    library: the `tokenizers.Tokenizer`. end_token: the name of its end-of-text token. Truncation, padding
    and tokens that a post-processor would add, such as <s>, are left out: texts are encoded completely, and
    as ordinary text. adds_tokens: whether the file has such a post-processor; begins_with: the token that
    it puts before a text, or None. Raises DataError for a file that cannot be read, or serves no training.
    """

    def __init__(self, text: str, end_token: str = END_OF_TEXT, name: str = "tokenizer.json"):
        from tokenizers import processors

        try:
            self._content = json.loads(text)
            with contextlib.suppress(AttributeError, KeyError, TypeError):  # the library says more
                self._check(name, self._of_fields(end_token))  # first: the library panics at some
            self.library = _opened(text)
            self.adds_tokens = self.library.num_special_tokens_to_add(False) > 0
            self.begins_with = None
            if self.adds_tokens:
                probe = self.library.encode("a")
                if probe.special_tokens_mask[:1] == [1]:
                    self.begins_with = probe.ids[0]
                self._content["post_processor"] = None
                text = json.dumps(self._content, ensure_ascii=False)
            # a ByteLevel takes spaces from the places of tokens
            self.library.post_processor = processors.Sequence([])
        except DataError:
            raise
        except Exception as error:  # `tokenizers` raises plain Exception
            raise DataError(f"{name} cannot be read as a tokenizer: {error}") from None
        self.text, self.end_token = text, end_token
        ending = "" if end_token == END_OF_TEXT else f"\n{end_token}"
        self.hash = hashlib.sha256((text + ending).encode()).hexdigest()
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        self._check(name, self._of_vocabulary(vocabulary, end_token))
        self.vocab_size = max(vocabulary.values()) + 1
        self.end_of_text = vocabulary[end_token]

    @abstractmethod
    def _of_fields(self, end_token: str) -> list[str]:
        """The complaints about the fields of `content`."""

    @abstractmethod
    def _of_vocabulary(self, vocabulary: dict[str, int], end_token: str) -> list[str]: ...

    @abstractmethod
    def _check(self, name: str, complaints: list[str]):
        """Raises DataError where there are complaints."""

    def __reduce__(self):
        return type(self), (self.text, self.end_token)

    def encode(self, text):
        return self.encode_batch([text])[0]

    def to_json(self):
        return {**super().to_json(), "end_token": self.end_token, "tokenizer.json": self.text}


def _opened(text: str):
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, and no Exception
            raise
        raise ValueError(f"the library fails: {error}") from None


class BpeTokenizer(FileTokenizer):
    """A lossless byte-level BPE. Raises NotLosslessError for a file that loses or changes text."""

    kind = "bpe"

    def __init__(self, text: str, end_token: str = END_OF_TEXT, name: str = "tokenizer.json"):
        super().__init__(text, end_token, name)
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        # such a byte would otherwise be dropped from the text silently
        self._lacking = lossless.bytes_without_token(vocabulary)
        self._check(name, lossless.round_trip(self._content, self, self._lacking))

    def _of_fields(self, end_token):
        return lossless.fields(self._content, end_token)

    def _of_vocabulary(self, vocabulary, end_token):
        return lossless.vocabulary(self._content, vocabulary, end_token)

    def _check(self, name, complaints):
        if complaints:
            raise NotLosslessError(f"{name} is not a lossless byte-level BPE: {'; '.join(complaints)}")

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int) -> "BpeTokenizer":
        """Trains deterministically. The vocabulary is smaller if the text has too few pairs to merge.

        The documents may have up to MOST_BYTES of text together, see `spread`. Words of more than
        LONGEST_WORD bytes are cut into pieces: the cost grows with the square of a word's length.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        if vocab_size < 257:
            raise DataError(f"bpe:{vocab_size}: the vocabulary holds 256 bytes and end-of-text, so >= 257")
        tokenizer = Tokenizer(models.BPE())
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        # a byte is one letter here
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(LONGEST_WORD)])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=list(gpt2.byte_letters()),
        )
        tokenizer.train_from_iterator(map(valid_unicode, documents), trainer)
        tokenizer.pre_tokenizer = words  # encoding takes time in proportion to a word's length
        tokenizer.add_special_tokens([END_OF_TEXT])
        return cls(tokenizer.to_str())

    def encode_batch(self, texts):
        texts = [valid_unicode(text) for text in texts]
        encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        batch = [encoding.ids for encoding in encodings]
        if self._lacking:
            for text, ids in zip(texts, batch, strict=True):
                if self.decode_bytes(ids) != text.encode():
                    self._refuse(text)
        return batch

    def _refuse(self, text: str):
        for place, character in enumerate(text):
            if lacking := self._lacking.intersection(character.encode()):
                raise DataError(
                    f"the tokenizer has no token for the byte {min(lacking):#04x} of {character!r} (after "
                    f"{text[max(0, place - 30) : place]!r}): take the character out of the text, or take "
                    "another tokenizer"
                )
        raise DataError(f"the tokenizer loses a part of the text that begins with {text[:60]!r}")

    @cached_property
    def _token_bytes(self):
        letters = str.maketrans({letter: chr(byte) for letter, byte in gpt2.byte_letters().items()})
        table = [b""] * self.vocab_size
        for token, i in self.library.get_vocab(with_added_tokens=False).items():
            try:
                table[i] = token.translate(letters).encode("latin-1")
            except UnicodeEncodeError:  # it has other letters: no text gives it
                table[i] = token.encode()
        for i, token in self.library.get_added_tokens_decoder().items():
            table[i] = token.content.encode()
        table[self.end_of_text] = b""
        return table


class InexactTokenizer(FileTokenizer):
    """Any other tokenizer.json: BPE and Unigram of SentencePiece, WordPiece, with normalizers or without.

    Its tokens are no fixed bytes: a text may come back otherwise, or without what the vocabulary lacks. It
    serves data, training and sampling. Bits per byte counts the bytes of the original texts, see
    `Dataset.target_bytes` and `encode_sized`. What needs the bytes of tokens raises DataError. reason: why
    it is not lossless. unknown: the token of characters that have none, where texts with them are refused.
    """

    kind = "inexact"
    exact = False
    reason = ""
    unknown: int | None = None

    def _of_fields(self, end_token):
        return lossless.ambiguous(self._content, end_token)

    def _of_vocabulary(self, vocabulary, end_token):
        found = lossless.numbers(self._content, vocabulary, end_token)
        found += lossless.dropping(self._content, vocabulary)
        if end_token == lossless.unknown(self._content["model"]):
            found.append(f"its {end_token} stands for what it does not know: name another --end_token")
        return found

    def _check(self, name, complaints):
        if complaints:
            raise DataError(f"{name} cannot be used: {'; '.join(complaints)}")

    def of_unknown(self):
        name = lossless.unknown(self._content["model"])
        return name, None if name is None else self.library.token_to_id(name)

    def encode_batch(self, texts):
        return [
            # a text may spell the end token, and a vocabulary may have it as a piece: left out
            [i for i in encoding.ids if i != self.end_of_text]
            for _, encoding in self._encodings(self.library.encode_batch_fast, texts)
        ]

    def encode_sized(self, texts):
        """See `Tokenizer.encode_sized`. The bytes are those of the text as it is given: a character that a
        normalizer changes counts as it was, a space that it adds does not, and what it drops counts with
        the next token, or at the end with the last one. Of the tokens of one character, the first has its
        bytes. So the tokens of a text, if there are any, have all its bytes.
        """
        for text, encoding in self._encodings(self.library.encode_batch, texts):
            ids, ends = encoding.ids, [end for _, end in encoding.offsets]
            if self.end_of_text in ids:
                kept = [place for place, i in enumerate(ids) if i != self.end_of_text]
                ids, ends = [ids[place] for place in kept], [ends[place] for place in kept]
            yield ids, _sizes(text, ends)

    def _encodings(self, encode: Callable, texts: list[str]) -> Iterator[tuple]:
        """(the text, what the library makes of it) of each text"""
        for at in range(0, len(texts), TEXTS):
            part = [valid_unicode(text) for text in texts[at : at + TEXTS]]
            try:
                found = encode(part, add_special_tokens=False)
            except Exception as error:  # for example a Unigram without an unknown token
                raise DataError(f"the tokenizer cannot encode a text ({error}): take another one") from None
            for text, encoding in zip(part, found, strict=True):
                if self.unknown in encoding.ids:
                    self._refuse(text)
                yield text, encoding

    def _refuse(self, text: str):
        encoding = self.library.encode(text, add_special_tokens=False)
        begin, end = encoding.offsets[encoding.ids.index(self.unknown)]
        raise DataError(
            f"the tokenizer has no token for {text[begin:end]!r} (after "
            f"{text[max(0, begin - 30) : begin]!r}): take it out of the text, or take another model"
        )

    def decode(self, ids):
        """The text that the library's decoder makes of the tokens, which may differ from the original."""
        return self.library.decode([i for i in ids if i != self.end_of_text], skip_special_tokens=False)

    def continued(self, prompt, ids):
        # tokens before, in groups that end where a character does: a part of one would spoil its neighbours
        groups, new = deque([self._context(list(prompt))]), []
        for i in ids:
            new.append(i)
            before = [*itertools.chain.from_iterable(groups)]
            known, text = self.decode(before), self.decode(before + new)
            if not text.endswith("\ufffd") or len(new) == CONTEXT:  # else bytes of a character are missing
                yield text[len(known) :]
                groups.append(new)
                new = []
                while sum(map(len, groups)) - len(groups[0]) >= CONTEXT:
                    groups.popleft()
        before = [*itertools.chain.from_iterable(groups)]
        yield self.decode(before + new)[len(self.decode(before)) :]

    def _context(self, prompt: list[int]) -> list[int]:
        """The last tokens of a prompt, from where a character begins."""
        parts = (prompt[-count:] for count in range(CONTEXT, CONTEXT + 4))  # of at most 4 bytes
        return next((part for part in parts if "\ufffd" not in self.decode(part)), prompt[-CONTEXT:])

    @property
    def _token_bytes(self):
        raise DataError(
            "the tokens of this tokenizer are no fixed bytes of a text, because it is not a lossless "
            "byte-level BPE: give the text itself as a file, or take gpt2, bytes or bpe:SIZE"
        )


def _sizes(text: str, ends: list[int]) -> np.ndarray:
    """The bytes of each token, int64. ends: the character behind each token."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    lengths = 1 + sum((points >= first).astype(np.int64) for first in (0x80, 0x800, 0x10000))
    before = np.concatenate(([0], np.cumsum(lengths)))
    places = np.array(ends, dtype=np.int64)
    places[-1:] = len(text)
    return np.diff(before[places], prepend=0)


def from_text(text: str, end_token: str, name: str) -> FileTokenizer:
    """The tokenizer of a tokenizer.json with that text. Raises DataError."""
    try:
        return BpeTokenizer(text, end_token, name)
    except NotLosslessError as error:
        tokenizer = InexactTokenizer(text, end_token, name)
        tokenizer.reason = str(error)
        return tokenizer


def end_token_of(path: Path, end_token: str | None = None) -> str:
    """The end-of-text token of a tokenizer.json: `end_token`, else the one that the files beside it name,
    else "<|endoftext|>". Raises DataError.
    """
    beside = {"meta.json": "tokenizer", "tokenizer_config.json": None, "special_tokens_map.json": None}
    for file, part in beside.items() if end_token is None else ():
        if not path.with_name(file).is_file():
            continue
        content = read_json(path.with_name(file), DataError)
        holder = content.get(part) if part else content
        found = holder.get("end_token" if part else "eos_token") if isinstance(holder, dict) else None
        found = found.get("content") if isinstance(found, dict) else found  # with its flags
        if isinstance(found, str):
            return found
    return END_OF_TEXT if end_token is None else end_token


def spread(documents: Callable[[], Iterable[str]], name: str) -> Iterator[str]:
    """The texts for the training of a BPE: all, or an even part of them with at most MOST_BYTES of UTF-8.

    name: of the tokenizer, for the line that says so. The part is of documents, or of PIECE characters
    of long ones, and depends on the sizes of the documents alone.
    """
    total = sum(len(valid_unicode(text).encode()) for text in documents())
    if total <= MOST_BYTES:
        yield from documents()
        return
    print(
        f"{name}: trained on {MOST_BYTES / total:.3g} of the training text, evenly spread: it has "
        f"{total:,} bytes, and with more than {MOST_BYTES:,} the counts of pairs could overflow",
        file=sys.stderr,
    )
    used = 0
    for number, piece in enumerate(
        text[start : start + PIECE] for text in documents() for start in range(0, len(text), PIECE)
    ):
        # multiples of the golden ratio are spread evenly over [0, 1), without a period that texts may share
        if number * 0x9E3779B97F4A7C15 % 2**64 * total < MOST_BYTES * 2**64:
            used += len(valid_unicode(piece).encode())
            if used > MOST_BYTES:
                return
            yield piece
