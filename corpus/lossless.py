"""Finds what loses or changes text in a tokenizer.json when it is opened: by its fields and a round trip.

Truncation, padding and the tokens of a post-processor are overridden, so they are no complaint.
"""

from collections.abc import Iterator

from corpus import gpt2

END_OF_TEXT = "<|endoftext|>"
# pre-tokenizers that drop what they split at, or replace it
DROPPING = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "Metaspace"}
HARD_TEXTS = (
    *map(chr, range(33)),
    *("\r\n", "  a  b ", "\n\n  \t x \r\n\r\r\n y\t\n ", "a\u00a0\u2003\u3000b\u2028\x85"),
    *("\x7f", "\x80", "\x9f\xad", "\ufeffa", "\u200b\u200d", "\ufffd \U0010ffff \ue000", "Ã©Â\xa0"),
    *("I'll we're 'S 3.14 1,000 x_y --- ... !?\"", "The DOG und die Straße", "½ ① ﬁ Ⅷ ２"),
    "na\u00efve e\u0301 \u00c5 A\u030a \u212b \u1e9b\u0323 \u0958",
    *("日本語 数学。中文，", "ภาษาไทย हिन्दी", "한국어 \u1112\u1161\u11ab"),
    *("👩\u200d👩\u200d👧 🇫🇷 ❤\ufe0f", "Ġthe Ċ ▁a ##b </w> <unk> [UNK] <s> <0x0A>"),
    *(END_OF_TEXT, f"a  {END_OF_TEXT}  b"),
    *(" " * 1000, "\n" * 1000 + "x", "a" * 1000, "=" * 1000 + "\n", "ab 1" * 250),
)  # fmt: skip


def ambiguous(content: dict, end_token: str) -> list[str]:
    """The complaints about fields that serve no training, even of a tokenizer that may lose text."""
    found = []
    if dropout := content["model"].get("dropout"):
        found.append(
            f"its model has dropout {dropout}, so that a text has other tokens each time: set dropout to "
            "null"
        )
    for token in content.get("added_tokens", []):
        if token["content"] == end_token and not token.get("special"):
            found.append(f"its {end_token} would be found in texts: set special to true")
    return found


def fields(content: dict, end_token: str) -> list[str]:
    """The complaints about the fields of a tokenizer.json, without its vocabulary: what to change."""
    model = content["model"]
    if (kind := model.get("type", "BPE")) != "BPE":
        return [f"its model is {kind}"]
    steps = list(_steps(content.get("pre_tokenizer") or {}))
    if not any(step.get("type") == "ByteLevel" for step in steps):
        # its vocabulary is of other pieces: no change of its fields would mend that
        return ["it has no ByteLevel pre-tokenizer, so its tokens stand for characters, not for bytes"]
    found = ambiguous(content, end_token)
    for field in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            found.append(f"its model's {field} {model[field]!r} is no part of the text: take another file")
    if content.get("normalizer"):
        found.append("it has a normalizer, which changes the text: set it to null")
    if any(step.get("add_prefix_space") for step in steps):
        found.append("it adds a space before the text: set add_prefix_space to false")
    for step in steps:
        if step.get("type") in DROPPING or step.get("behavior") == "Removed":
            found.append(f"its pre_tokenizer {step.get('type')} drops what it splits at: take it out")
    for token in content.get("added_tokens", []):
        # special tokens are never looked for in a text
        strips = [field for field in ("lstrip", "rstrip") if token.get(field)]
        if strips and not token.get("special"):
            found.append(
                f"its added token {token['content']!r} strips blanks: set {' and '.join(strips)} to false"
            )
    return found


def _steps(pre_tokenizer: dict) -> Iterator[dict]:
    """The pre-tokenizers of a Sequence, and of those within it."""
    if pre_tokenizer.get("type") == "Sequence":
        for step in pre_tokenizer["pretokenizers"]:
            yield from _steps(step)
    else:
        yield pre_tokenizer


def numbers(content: dict, tokens: dict[str, int], end_token: str) -> list[str]:
    """The complaints about the numbers of the tokens, those of added tokens too."""
    found = []
    if len(set(tokens.values())) < len(tokens):
        # for example because the library renumbers added tokens
        found.append("two of its tokens share a number")
    added, of_unknown = content.get("added_tokens", []), unknown(content["model"])
    if end_token in tokens and end_token not in (token["content"] for token in added):
        found.append(
            f"its {end_token} is an ordinary token, which would be taken out of texts: name a special one "
            "with --end_token"
        )
    if end_token not in tokens:
        special = [token["content"] for token in added if token.get("special")]
        special = [token for token in special if token != of_unknown]
        others = f", such as {' or '.join(special[:4])}" if special else ""
        found.append(
            f"it has no {end_token} token: name the one that ends a text with --end_token{others}, "
            "or as eos_token in a tokenizer_config.json beside the file"
        )
    return found


def unknown(model: dict) -> str | None:
    """The token for what a model does not know; None: it has none."""
    if isinstance(number := model.get("unk_id"), int) and number < len(model.get("vocab", [])):
        return model["vocab"][number][0]
    return model.get("unk_token")


def vocabulary(content: dict, tokens: dict[str, int], end_token: str) -> list[str]:
    """The complaints about the tokens of a byte-level BPE, {token: number}."""
    found = numbers(content, tokens, end_token)
    lacking = bytes_without_token(tokens)
    if _ordinary(lacking):
        found.append(f"{len(lacking)} of the 256 bytes have no token, ordinary characters among them")
    of_unknown = content["model"].get("unk_token")
    if lacking and of_unknown is not None and of_unknown not in tokens:
        found.append(f"its unk_token {of_unknown!r} is no token: set unk_token to null")
    return found


def dropping(content: dict, tokens: dict[str, int]) -> list[str]:
    """The complaint about a BPE that leaves out, without a trace, ordinary characters that are no token."""
    model = content["model"]
    if model.get("type", "BPE") != "BPE" or unknown(model) is not None:
        return []
    falls_back = model.get("byte_fallback") and all(f"<0x{byte:02X}>" in tokens for byte in range(256))
    lacking = bytes_without_token(tokens)
    if falls_back or not _ordinary(lacking):
        return []
    return [
        f"it leaves out of a text what it does not know: {len(lacking)} of the 256 bytes have no token, "
        "and there is no unk_token. Train it again with initial_alphabet=ByteLevel.alphabet(), or with an "
        "unk_token"
    ]


def bytes_without_token(tokens: dict[str, int]) -> set[int]:
    """The bytes whose letters in a byte-level BPE are no tokens."""
    return {byte for letter, byte in gpt2.byte_letters().items() if letter not in tokens}


def _ordinary(lacking: set[int]) -> bool:
    return any(chr(byte).isprintable() or chr(byte) in "\t\n" for byte in lacking if byte < 128)


def round_trip(content: dict, tokenizer, lacking: set[int]) -> list[str]:
    """The complaint about the first text that comes back otherwise. lacking: bytes without a token.

    tokenizer: a `corpus.file_tokenizer.BpeTokenizer` whose fields and vocabulary are right.
    """
    added = (token["content"] for token in content.get("added_tokens", []))
    texts = [*HARD_TEXTS, *(f"a \t{token} \n{token}b{token}" for token in added)]
    texts = [text for text in texts if not lacking.intersection(text.encode())]
    library = tokenizer.library
    batch = [found.ids for found in library.encode_batch_fast(texts, add_special_tokens=False)]
    theirs = library.decode_batch(batch, skip_special_tokens=False)
    for text, ids, decoded in zip(texts, batch, theirs, strict=True):
        if (back := tokenizer.decode(ids)) != text:  # end-of-text decodes to nothing
            names = ", ".join(step.get("type", "?") for step in _steps(content["pre_tokenizer"]))
            return [
                f"{_shown(text)} comes back as {_shown(back)}: look at its added_tokens and its "
                f"pre_tokenizer ({names})"
            ]
        if decoded != text:
            kind = (content.get("decoder") or {}).get("type")
            return [f"its decoder {kind} gives {_shown(decoded)} for {_shown(text)}: set it to ByteLevel"]
    return []


def _shown(text: str) -> str:
    return repr(text) if len(text) < 60 else f"{text[:60]!r} and so on"
