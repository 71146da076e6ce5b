"""Our tokenizers as the files from which AutoTokenizer of transformers makes a PreTrainedTokenizerFast."""

import json

from corpus import gpt2
from corpus.tokenizer import END_OF_TEXT, Gpt2Tokenizer, Tokenizer


def tokenizer_files(tokenizer: Tokenizer, block_size: int, vocab_size: int) -> dict[str, str]:
    """{tokenizer.json, tokenizer_config.json, generation_config.json: its text}

    Token ids are ours, except that the end token in a text becomes that token, as usual there, and so does
    the one for unknown text, if there is one. The end token also begins, ends and pads texts. block_size,
    vocab_size: the model's, whose vocabulary may be larger: its other tokens are never generated.
    """
    end = tokenizer.end_of_text
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.end_token,
        "eos_token": tokenizer.end_token,
        "pad_token": tokenizer.end_token,
        "model_max_length": block_size,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left",  # new tokens follow the text
        "clean_up_tokenization_spaces": False,
    }
    if (unknown := tokenizer.of_unknown())[1] is not None:
        config["unk_token"] = unknown[0]
    generation = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    if tokenizer.vocab_size < vocab_size:
        generation["suppress_tokens"] = list(range(tokenizer.vocab_size, vocab_size))
    return {
        "tokenizer.json": tokenizer_json(tokenizer),
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "generation_config.json": json.dumps(generation) + "\n",
    }


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """The text of a tokenizer.json with the same tokens."""
    saved = tokenizer.to_json()
    if "tokenizer.json" in saved:
        return saved["tokenizer.json"]
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers

    letter_of = {byte: letter for letter, byte in gpt2.byte_letters().items()}
    pieces = tokenizer.token_bytes()[: tokenizer.end_of_text]
    vocabulary = {"".join(letter_of[byte] for byte in piece): i for i, piece in enumerate(pieces)}
    pairs = merged_pairs(pieces)
    merges = [tuple("".join(letter_of[byte] for byte in half) for half in pair) for pair in pairs]
    fast = Fast(models.BPE(vocabulary, merges))
    splits = isinstance(tokenizer, Gpt2Tokenizer)  # into words; bytes need none
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([END_OF_TEXT])
    return fast.to_str()


def merged_pairs(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The two tokens that each token of several bytes is merged from; pieces: the tokens by rank.

    They are what remains of its bytes after all merges of lower rank.
    """
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    pairs = []
    for piece in pieces:
        parts = [piece[i : i + 1] for i in range(len(piece))]
        while len(parts) > 2:
            joined = [ranks.get(parts[i] + parts[i + 1], len(pieces)) for i in range(len(parts) - 1)]
            best = min(range(len(joined)), key=joined.__getitem__)
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            pairs.append((parts[0], parts[1]))
    return pairs
