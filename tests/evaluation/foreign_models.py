"""Tiny random models of other codebases' kinds, with their tokenizers, saved as transformers does."""

import json

import pytest
import tokenizers
import torch
from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers

from tests.conftest import documents

transformers = pytest.importorskip("transformers")

TEXTS = [*documents()][:40]
BLOCK = 24


def byte_level():
    """A tokenizer as Qwen's: bytes as letters, NFC, one special token."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    keys = {"special_tokens": ["<|end|>"], "initial_alphabet": alphabet, "show_progress": False}
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, **keys))
    return library


def sentencepiece(prefix=True):
    """As Mistral's: a space before the text (not in Gemma's), bytes where there is no piece."""
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    spaces = [normalizers.Replace(" ", "▁")]
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * prefix + spaces)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # pieces begin with a space
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=330, special_tokens=special))
    content = json.loads(library.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are ordinary tokens
    content["pre_tokenizer"] = None
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    pair = [("<s>", library.token_to_id("<s>"))]
    library.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", pair)
    return library


SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": BLOCK, "initializer_range": 0.3,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
END, BOTH = {"eos_token": "<|end|>"}, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
KINDS = {
    "qwen2": (SIZES | GROUPED, byte_level, END),
    "qwen3": (SIZES | GROUPED | {"head_dim": 8}, byte_level, END),
    "mistral": (SIZES | GROUPED | {"sliding_window": 9}, sentencepiece, BOTH),
    "gpt_neox": (SIZES, byte_level, END | {"bos_token": "<|end|>"}),
    "gemma": (SIZES | GROUPED | {"head_dim": 8}, lambda: sentencepiece(False), BOTH),
    "olmo": (SIZES, byte_level, END),
    "phi": (SIZES, byte_level, END | {"bos_token": "<|end|>"}),
    # learned positions
    "opt": ({"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
             "word_embed_proj_dim": 32, "max_position_embeddings": BLOCK + 1, "init_std": 0.3},
            sentencepiece, BOTH),
    # no positions
    "mamba": ({"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "initializer_range": 0.3},
              byte_level, END),
}  # fmt: skip


def save(folder, kind):
    sizes, tokenizer, special = KINDS[kind]
    library = tokenizer()
    ids = {f"{name}_id": library.token_to_id(token) for name, token in special.items()} | {
        "pad_token_id": 0
    }
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=library.get_vocab_size() + 3, **sizes, **ids
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **special).save_pretrained(folder)
