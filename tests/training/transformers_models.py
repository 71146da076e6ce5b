"""Tiny transformers models whose every weight matters, for the tests of what reads and writes them."""

import torch
import transformers

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def gpt2(**keys):
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "n_positions": 128, "vocab_size": 101}
    return transformers.GPT2Config(**{**sizes, "bos_token_id": None, "eos_token_id": None, **keys})


def llama(**keys):
    sizes = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
        "intermediate_size": 40, "max_position_embeddings": 128, "vocab_size": 101,
    }  # fmt: skip
    return transformers.LlamaConfig(**{**sizes, "bos_token_id": None, "eos_token_id": None, **keys})


def drawn(config, seed=0):
    """A transformers model whose every weight matters: biases and norms too."""
    kind = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}[config.model_type]
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # larger ones would add up to one and the same token
                parameter.normal_(std=0.1 / config.num_hidden_layers)
            elif parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "wte" in name or "embed_tokens" in name:
                parameter.normal_(std=0.1)  # a tied head would repeat a token that stands out
            elif "wpe" in name:
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=2 / (config.num_hidden_layers * parameter.shape[-1]) ** 0.5)
    return model
