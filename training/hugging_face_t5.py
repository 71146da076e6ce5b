"""Hugging Face's T5 (Raffel et al. 2020) as an encoder-decoder of ours: config.json and names of weights.

T5 differs from our model by two factors, which are multiplied into its weights: it does not divide scores
by sqrt(D), so that its queries become sqrt(D) times as large, and it multiplies what the head reads by
1 / sqrt(C), which goes into the last norm.
"""

import torch

from models.architecture import ModelConfig

# copies of the embedding, and a table that old files hold and no layer reads
UNUSED = ("coder.embed_tokens.weight", ".EncDecAttention.relative_attention_bias.weight")


def model_config(content: dict) -> ModelConfig:
    """The model of a config.json; raises ValueError or KeyError where ours has no such one."""
    heads, width = content["num_heads"], content["d_model"]
    sound = {
        "feed_forward_proj": ("relu",),
        "tie_word_embeddings": (True,),
        "scale_decoder_outputs": (True,),
        "is_encoder_decoder": (True,),
        "d_kv": (width // heads,),
    }
    for key, values in sound.items():
        if content.get(key, values[0]) not in values:
            raise ValueError(f"{key}={content[key]!r} is not supported, only {values[0]}")
    return ModelConfig(
        encoder_layers=content["num_layers"],
        n_layer=content.get("num_decoder_layers") or content["num_layers"],
        n_head=heads,
        n_embd=width,
        block_size=content.get("n_positions", 512),  # that of the pretraining: the model has no end
        vocab_size=content["vocab_size"],
        ffn_hidden=content["d_ff"],
        mlp_activation="relu",
        position="t5",
        t5_buckets=content.get("relative_attention_num_buckets", 32),
        t5_max_distance=content.get("relative_attention_max_distance", 128),
        norm="rmsnorm",
        norm_eps=content.get("layer_norm_epsilon", 1e-6),
    )


def names(config: ModelConfig) -> dict[str, list[str]]:
    """Our name -> theirs, several where we keep them in one matrix, one above the other."""
    found = {"embedding.weight": ["shared.weight"]}
    for stack, prefix, layers in (
        ("encoder", "encoder.", config.encoder_layers),
        ("decoder", "", config.n_layer),
    ):
        first = f"{stack}.block.0.layer.0.SelfAttention"
        found[f"position.{stack}.weight"] = [f"{first}.relative_attention_bias.weight"]
        found[f"{prefix}norm.weight"] = [f"{stack}.final_layer_norm.weight"]
        for layer in range(layers):
            ours, theirs = f"{prefix}blocks.{layer}", f"{stack}.block.{layer}.layer"
            last = 1 if stack == "encoder" else 2
            parts = {
                "norm1": ["0.layer_norm"],
                "attention.qkv": [f"0.SelfAttention.{part}" for part in "qkv"],
                "attention.proj": ["0.SelfAttention.o"],
                "norm2": [f"{last}.layer_norm"],
                "ffn.up": [f"{last}.DenseReluDense.wi"],
                "ffn.down": [f"{last}.DenseReluDense.wo"],
            }
            if stack == "decoder":
                parts |= {
                    "norm_cross": ["1.layer_norm"],
                    "cross.query": ["1.EncDecAttention.q"],
                    "cross.key_value": [f"1.EncDecAttention.{part}" for part in "kv"],
                    "cross.proj": ["1.EncDecAttention.o"],
                }
            for name, others in parts.items():
                found[f"{ours}.{name}.weight"] = [f"{theirs}.{other}.weight" for other in others]
    return found


def factor(theirs: str, config: ModelConfig) -> float:
    """What a weight of theirs is multiplied by, so that our model computes the same."""
    if theirs.endswith("Attention.q.weight"):
        return (config.n_embd // config.n_head) ** 0.5
    return config.n_embd**-0.5 if theirs == "decoder.final_layer_norm.weight" else 1.0


def our_weight(tensors: dict, theirs: list[str], config: ModelConfig) -> torch.Tensor:
    """One of our weights, float32."""
    return torch.cat([tensors[name].float() * factor(name, config) for name in theirs])
