"""Tokenizers without a file of their own: GPT-2's byte-pair encoding, plain bytes, and MQAR's symbols.

All tokenizers but InexactTokenizer (corpus/file_tokenizer.py) are lossless: the bytes of a text's tokens
are the text's UTF-8. (Lone surrogates, which have no UTF-8, first become U+FFFD.) No text encodes to the
end-of-text token, not even one that contains "<|endoftext|>". That token is only put between documents.
"""

import base64
import codecs
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from corpus import DataError, gpt2
from corpus.lossless import END_OF_TEXT

# GPT-2's split of a text into words. Possessive quantifiers find the same pieces faster.
GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# tiktoken's regular expressions fail inside runs of a million blanks; see Gpt2Tokenizer.encode.
LONG_BLANK = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{10000,}")


class Tokenizer(ABC):
    """The base class of all tokenizers. `hash` is a hexadecimal SHA-256 that identifies the mapping."""

    exact = True  # whether each token stands for fixed bytes, which together are the text
    end_token = END_OF_TEXT
    kind: str
    hash: str
    vocab_size: int  # end-of-text included
    end_of_text: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without end-of-text. Raises DataError for a byte without a token."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_sized(self, texts: list[str]) -> Iterator[tuple[list[int], np.ndarray | None]]:
        """(tokens, the bytes of UTF-8 that each stands for, int64) of each text; None instead of the bytes
        where tokens have fixed ones.
        """
        return ((ids, None) for ids in self.encode_batch(texts))

    def of_unknown(self) -> tuple[str | None, int | None]:
        """The token for what the vocabulary lacks, and its number; None where texts do not give it."""
        return None, None

    @cached_property
    def start_of_text(self) -> int:
        """The token before the first document."""
        return self.end_of_text

    @property
    @abstractmethod
    def _token_bytes(self) -> list[bytes]: ...

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token, b"" for end-of-text: a list of length vocab_size."""
        return self._token_bytes

    def byte_counts(self) -> np.ndarray | None:
        """The number of bytes of each token, int32 [vocab_size]; None where tokens have no fixed bytes."""
        if not self.exact:
            return None
        return np.array([len(token) for token in self.token_bytes()], dtype=np.int32)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens, which may end within a character; end-of-text adds nothing."""
        return b"".join(self._token_bytes[i] for i in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; bytes that are not whole characters become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def continued(self, prompt: list[int], ids: Iterable[int]) -> Iterator[str]:
        """The text of tokens that follow the tokens of a prompt, each piece as soon as its bytes are whole
        characters. Together the pieces are what `decode` gives.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(self._token_bytes[i])
        yield decoder.decode(b"", final=True)

    def same_tokens(self, other: "Tokenizer") -> bool:
        """Whether each token stands for the same bytes in both tokenizers."""
        if self.hash == other.hash:
            return True
        return self.exact and other.exact and self.token_bytes() == other.token_bytes()

    def to_json(self) -> dict:
        """Everything that `from_json` needs, as strings."""
        return {"kind": self.kind, "hash": self.hash}


class BytesTokenizer(Tokenizer):
    kind = "bytes"
    hash = hashlib.sha256(b"token = byte; end-of-text = 256").hexdigest()
    vocab_size = 257
    end_of_text = 256

    def encode(self, text):
        return list(valid_unicode(text).encode())

    @cached_property
    def _token_bytes(self):
        return [bytes([i]) for i in range(256)] + [b""]


class Gpt2Tokenizer(Tokenizer):
    kind = "gpt2"
    hash = gpt2.HASH
    vocab_size = 50257
    end_of_text = 50256

    def __init__(self, table: bytes | None = None):
        """table: one line "base64 rank" per token; None: from `gpt2.table`."""
        import tiktoken

        self.table = table or gpt2.table()
        lines = (line.split() for line in self.table.splitlines())
        self._encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=GPT2_SPLIT,
            mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
            special_tokens={END_OF_TEXT: self.end_of_text},
            explicit_n_vocab=self.vocab_size,
        )

    def __reduce__(self):
        return Gpt2Tokenizer, (self.table,)

    def encode(self, text):
        text = valid_unicode(text)
        ids, start = [], 0
        # All blanks of a run but the last one are one piece (at the end of the text all of them), so
        # cutting there changes nothing.
        for run in LONG_BLANK.finditer(text):
            cut = run.end() if run.end() == len(text) else run.end() - 1
            ids += self._encoding.encode_ordinary(text[start : run.start()])
            ids += self._encoding.encode_ordinary(text[run.start() : cut])
            start = cut
        return ids + self._encoding.encode_ordinary(text[start:])

    @cached_property
    def _token_bytes(self):
        return [base64.b64decode(line.split()[0]) for line in self.table.splitlines()] + [b""]


class MqarTokenizer(Tokenizer):
    """The symbols of an MQAR data set (corpus/mqar.py), which no text gave: keys and then values.

    With 256 tokens these are k1 .. k127 and v128 .. v255, where the number is the token. Token 0 is the
    filler, and end-of-text. As a text, symbols stand side by side: k3v200k7v131.
    """

    kind = "mqar"
    end_of_text = 0

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size
        self.hash = hashlib.sha256(f"mqar: 0 is filler, {vocab_size} tokens".encode()).hexdigest()

    def __reduce__(self):
        return MqarTokenizer, (self.vocab_size,)

    def encode(self, text):
        ids = [self._ids.get(symbol.encode()) for symbol in re.findall(r".\d*", text, re.DOTALL)]
        if None in ids:
            last = self.vocab_size - 1
            raise DataError(
                f"the text that begins with {text[:30]!r} is not of the symbols of MQAR, k1 to "
                f"k{self.vocab_size // 2 - 1} and v{self.vocab_size // 2} to v{last}, without spaces"
            )
        return ids

    @cached_property
    def _token_bytes(self):
        half = self.vocab_size // 2
        return [b""] + [f"{'k' if i < half else 'v'}{i}".encode() for i in range(1, self.vocab_size)]

    @cached_property
    def _ids(self):
        return {symbol: i for i, symbol in enumerate(self._token_bytes) if symbol}

    def to_json(self):
        return {**super().to_json(), "vocab_size": str(self.vocab_size)}


def valid_unicode(text: str) -> str:
    """Joins surrogate pairs and replaces lone surrogates by U+FFFD, so that the text has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
