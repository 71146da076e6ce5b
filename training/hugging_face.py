"""Hugging Face's GPT-2 and Llama and ours: config.json and names of weights. T5 is only read."""

from pathlib import Path

import torch
from torch.nn import functional as F

from layers import FFN
from models.architecture import ModelConfig
from remote_code.packing import DTYPE
from reports.plural import counted
from training import hugging_face_t5 as t5
from training.checkpoint import CheckpointError, check_layers

GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
RECTIFIED = ("relu", "relu2")
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # old files store masks and angles


def _refuse(content: dict, **sound):
    """Raises ValueError where a key is there and has none of the values that our model computes."""
    for key, values in sound.items():
        if key in content and content[key] not in values:
            known = " or ".join(map(str, values))
            raise ValueError(f"{key}={content[key]!r} is not supported, only {known}")


def model_config(content: dict) -> ModelConfig:
    """The model of a config.json; raises ValueError, TypeError or KeyError where ours has no such one."""
    kind = content.get("model_type")
    readers = {"gpt2": _gpt2_config, "llama": _llama_config, "t5": t5.model_config}
    if kind not in readers:
        raise ValueError(f"model_type={kind!r} is none of {', '.join(readers)}")
    if content.get("quantization_config"):
        raise ValueError("quantization_config: quantized weights are not read")
    config = readers[kind](content)
    if wrong := config.check():
        raise ValueError("; ".join(wrong))
    return config


def _gpt2_config(content: dict) -> ModelConfig:
    _refuse(
        content,
        activation_function=(*GELUS, *RECTIFIED),
        scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,),
        add_cross_attention=(False,),
    )
    activation = content.get("activation_function", "gelu_new")
    return ModelConfig(
        n_layer=content["n_layer"],
        n_head=content["n_head"],
        n_embd=content["n_embd"],
        block_size=content["n_positions"],
        vocab_size=content["vocab_size"],
        bias=True,
        ffn_hidden=content.get("n_inner"),
        mlp_activation=activation if activation in RECTIFIED else "gelu",
        gelu_approximation=GELUS.get(activation, "none"),
        norm_eps=content.get("layer_norm_epsilon", 1e-5),
        tie_embeddings=content.get("tie_word_embeddings", True),
    )


def _llama_config(content: dict) -> ModelConfig:
    heads, width = content["num_attention_heads"], content["hidden_size"]
    _refuse(
        content,
        hidden_act=("silu",),
        attention_bias=(False,),
        mlp_bias=(False,),
        head_dim=(None, width // heads),
    )
    # since version 5 transformers keeps the base with the scaling, before it stood beside
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type={kind!r} is not supported, only default or llama3")
    _refuse(rope, partial_rotary_factor=(1.0,))
    _refuse(content, partial_rotary_factor=(1.0,))
    scaling = {}
    if kind == "llama3":
        scaling = {
            "rope_scaling": "llama3",
            "rope_factor": float(rope["factor"]),
            "rope_low_freq_factor": float(rope["low_freq_factor"]),
            "rope_high_freq_factor": float(rope["high_freq_factor"]),
            "rope_original_max_position_embeddings": rope["original_max_position_embeddings"],
        }
    return ModelConfig(
        n_layer=content["num_hidden_layers"],
        n_head=heads,
        n_kv_head=content.get("num_key_value_heads"),
        n_embd=width,
        block_size=content["max_position_embeddings"],
        vocab_size=content["vocab_size"],
        ffn="swiglu",
        ffn_hidden=content["intermediate_size"],
        position="rope",
        norm="rmsnorm",
        norm_eps=content.get("rms_norm_eps", 1e-6),
        tie_embeddings=content.get("tie_word_embeddings", False),
        rope_base=float(rope.get("rope_theta", content.get("rope_theta", 10_000.0))),
        **scaling,
    )


def config_json(config: ModelConfig, end_of_text: int | None = None) -> dict | None:
    """The config.json of the same model in transformers; None where it knows no such architecture.

    end_of_text: the token at which `generate` of transformers ends a text; None: at none.
    """
    shared = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        **DTYPE,
        "bos_token_id": None,
        "eos_token_id": end_of_text,
    }
    if config.token_shift or config.qk_norm or config.logit_softcap or config.value_embeddings:
        return None
    # a pattern of one name is that name
    mixers = (",".join(dict.fromkeys(config.names(key))) for key in ("attention", "ffn"))
    parts = (*mixers, config.position, config.norm)
    grouped = config.n_kv_head not in (None, config.n_head)
    if parts == ("softmax", "mlp", "learned", "layernorm") and not grouped:
        activation = {"tanh": "gelu_new", "none": "gelu"}[config.gelu_approximation]
        activation = config.mlp_activation if config.mlp_activation in RECTIFIED else activation
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": config.n_layer,
            "n_head": config.n_head,
            "n_embd": config.n_embd,
            "n_positions": config.block_size,
            "n_inner": config.ffn_hidden,
            "activation_function": activation,
            "layer_norm_epsilon": config.norm_eps,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
            **shared,
        }
    if parts == ("softmax", "swiglu", "rope", "rmsnorm") and not config.bias:
        base, scaling = {"rope_theta": config.rope_base}, None
        if config.rope_scaling == "llama3":
            scaling = {
                "rope_type": "llama3",
                "factor": config.rope_factor,
                "low_freq_factor": config.rope_low_freq_factor,
                "high_freq_factor": config.rope_high_freq_factor,
                "original_max_position_embeddings": config.rope_original_max_position_embeddings,
            }
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": config.n_layer,
            "num_attention_heads": config.n_head,
            "num_key_value_heads": config.n_kv_head or config.n_head,
            "hidden_size": config.n_embd,
            "intermediate_size": FFN["swiglu"].hidden(config),
            "max_position_embeddings": config.block_size,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_eps,
            # transformers 5 reads the first, 4 the two others
            "rope_parameters": base | (scaling or {"rope_type": "default"}),
            "rope_scaling": scaling,
            **base,
            "attention_bias": False,
            "mlp_bias": False,
            **shared,
        }
    return None


def _names(config: ModelConfig) -> dict[str, list[str]]:
    """Our name -> Hugging Face's, several where we keep them in one matrix, one above the other.

    Keys without the prefix that all but the head have.
    """
    llama = config.norm == "rmsnorm"
    names = {"embedding.weight": ["embed_tokens.weight" if llama else "wte.weight"]}
    if not llama:
        names["position.table.weight"] = ["wpe.weight"]
    maps = {
        "norm1": ["input_layernorm"],
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.proj": ["self_attn.o_proj"],
        "norm2": ["post_attention_layernorm"],
        "ffn.up": ["mlp.gate_proj", "mlp.up_proj"],
        "ffn.down": ["mlp.down_proj"],
    } if llama else {
        "norm1": ["ln_1"],
        "attention.qkv": ["attn.c_attn"],
        "attention.proj": ["attn.c_proj"],
        "norm2": ["ln_2"],
        "ffn.up": ["mlp.c_fc"],
        "ffn.down": ["mlp.c_proj"],
    }  # fmt: skip
    for layer in range(config.n_layer):
        for ours, theirs in maps.items():
            for kind in ("weight",) if llama else ("weight", "bias"):
                prefix = f"layers.{layer}" if llama else f"h.{layer}"
                names[f"blocks.{layer}.{ours}.{kind}"] = [f"{prefix}.{name}.{kind}" for name in theirs]
    for kind in ("weight",) if llama else ("weight", "bias"):
        names[f"norm.{kind}"] = [f"norm.{kind}" if llama else f"ln_f.{kind}"]
    if not config.tie_embeddings:
        names["head.weight"] = ["lm_head.weight"]
    return names


def _transposed(name: str) -> bool:
    """GPT-2 keeps the matrices of its blocks as [in, out]."""
    return name.endswith(".weight") and ".c_" in name


def our_weights(tensors: dict, config: ModelConfig, path: Path) -> dict[str, torch.Tensor]:
    """Under our names, in float32; raises CheckpointError where they are not those of `config`."""
    check_layers(config, tensors, path)
    of_t5 = config.position == "t5"
    prefix = "model." if config.norm == "rmsnorm" else "transformer."
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    names = t5.names(config) if of_t5 else _names(config)
    if config.tie_embeddings and (head := tensors.pop("lm_head.weight", None)) is not None:
        (embedding,) = names["embedding.weight"]  # a file may have the head's name alone
        if not torch.equal(head, tensors.setdefault(embedding, head)):
            raise CheckpointError(
                f"{path}: lm_head.weight is not {embedding}, though tie_word_embeddings says so: set it to "
                "false in config.json"
            )
    if missing := [name for theirs in names.values() for name in theirs if name not in tensors]:
        raise CheckpointError(
            f"{path} lacks {', '.join(missing[:3])} ({counted(len(missing), 'weight')} in all)"
        )
    known = {name for theirs in names.values() for name in theirs}
    if more := [
        name for name in tensors if name not in known and not name.endswith((*BUFFERS, *t5.UNUSED))
    ]:
        raise CheckpointError(f"{path} holds weights that its config.json does not tell of: {more[:3]}")
    weights = {}
    for ours, theirs in names.items():
        if of_t5:
            weight = t5.our_weight(tensors, theirs, config)
        else:
            parts = [tensors[name].mT if _transposed(name) else tensors[name] for name in theirs]
            weight = torch.cat(parts).float()
        if ours in ("embedding.weight", "head.weight"):
            if len(weight) != config.vocab_size:
                raise CheckpointError(
                    f"{path}: {theirs[0]} has {len(weight)} rows, vocab_size is {config.vocab_size}"
                )
            weight = F.pad(weight, (0, 0, 0, config.padded_vocab_size - config.vocab_size))
        weights[ours] = weight
    return weights


def their_weights(weights: dict, config: ModelConfig) -> dict[str, torch.Tensor]:
    """The inverse of `our_weights`, under the names that transformers writes."""
    prefix = "model." if config.norm == "rmsnorm" else "transformer."
    kv = config.n_embd // config.n_head * (config.n_kv_head or config.n_head)
    tensors = {}
    for ours, theirs in _names(config).items():
        weight = weights.get(ours)
        if weight is None:  # transformers' GPT-2 always has biases
            out = weights[ours.removesuffix("bias") + "weight"].shape[0]
            weight = torch.zeros(out)
        if ours in ("embedding.weight", "head.weight"):
            weight = weight[: config.vocab_size]
        sizes = (config.n_embd, kv, kv) if len(theirs) == 3 else len(weight) // len(theirs)
        for name, part in zip(theirs, weight.split(sizes), strict=True):
            part = part.mT if _transposed(name) else part
            tensors[name if name == "lm_head.weight" else prefix + name] = part.contiguous()
    return tensors
