"""Weights from elsewhere: of our runs, of exported folders, of Hugging Face's GPT-2 and Llama.

A model folder holds config.json and model.safetensors (or several files and their index), in Hugging
Face's format or, for architectures that it does not know, in ours; data_tokenizer.json, if there is one,
is the tokenizer in our form. All weights are float32 here, under our names.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from configurator import ConfigError
from data import DataError
from data.tokenizer import Tokenizer, from_json
from layers import ATTENTION, FFN, POSITION
from model import GPT, ModelConfig, model_config
from training import checkpoint
from training.checkpoint import CheckpointError
from training.log import write_whole

HUB = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
FORMAT = "cofrgenet model 1"
REGISTRIES = {"attention": ATTENTION, "ffn": FFN, "position": POSITION}
# what a part reads, as prefixes of keys; `fixed_keys` says why it matters
READS = {
    "softmax": ("n_head", "n_kv_head"),
    "bigbird": ("n_head", "n_kv_head", "bigbird_"),
    "synthesizer": ("n_head", "synthesizer_"),
    "cattn_m": ("cattn_", "cf_"),
    "cattn_u": ("cf_",),
    "mlp": ("ffn_hidden", "gelu_approximation"),
    "swiglu": ("ffn_hidden",),
    "cffn_gated": ("cffn_", "cf_"),
    "cffn_product": ("cf_",),
    "cffn_added": ("cf_",),
    "learned": (),
    "sinusoidal": (),
    "rope": ("n_head", "rope_"),
    "expe": ("expe_",),
    "exqpe": ("expe_", "exqpe_"),
    "none": (),
}
SAME_WEIGHTS = {"softmax", "bigbird"}  # another pattern of the same attention
TRUNK = ("n_layer", "n_embd", "vocab_size", "bias", "norm", "norm_eps", "tie_embeddings")
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # old files store masks and angles


@dataclass
class Source:
    """A model to start from; `read` gives its weights, or raises CheckpointError."""

    path: Path
    config: ModelConfig
    read: Callable[[], dict[str, torch.Tensor]]
    tokenizer: dict | None = None  # as Tokenizer.to_json gives it; None: not known
    step: int | None = None  # of a run


def open_source(name: str, which: str = "best") -> Source:
    """A run folder or checkpoint of train.py, a model folder, or one of HUB, without its weights.

    Raises CheckpointError.
    """
    if name in HUB:
        return _foreign(name, lambda file: _download(name, file))
    path = Path(name)
    content = None
    if not (path / "ckpt").is_dir() and (path / "config.json").is_file():
        content = _read_json(path / "config.json")
    if content is None:
        if not path.exists():
            raise CheckpointError(
                f"{path} does not exist: give a run folder or .pt file of train.py, a folder of "
                f"config.json and model.safetensors, or one of {', '.join(HUB)}"
            )
        return _run(checkpoint.find(path, which))
    if "format" in content:
        return _ours(path, content)
    return _foreign(name, lambda file: path / file)


def build(source: Source, device: torch.device | str = "cpu") -> GPT:
    """The source's model with its weights; raises CheckpointError."""
    weights = read_checked(source)
    with torch.device("meta"):
        model = GPT(source.config)
    model.to_empty(device="cpu").init_weights()
    model.load_state_dict(weights)
    return model.to(device)


def read_checked(source: Source) -> dict[str, torch.Tensor]:
    """The source's weights, which are those that its config names; raises CheckpointError."""
    try:
        with torch.device("meta"):
            model = GPT(source.config)
    except ValueError as error:
        raise CheckpointError(f"{source.path}: {error}") from None
    weights = source.read()
    checkpoint.check_weights(model, weights, source.path)
    return weights


# --- starting a run from a source ---


def architecture(source: Source, given: dict) -> dict:
    """The model keys of a run that starts from `source`; given: those that the user named.

    Another attention, ffn or position replaces that part; what belongs to the rest must not change, but
    for a smaller block_size. Raises ConfigError with every key that contradicts the source.
    """
    old = source.config
    parts = {part: given.get(part, getattr(old, part)) for part in REGISTRIES}
    kept = [part for part, name in parts.items() if _same_weights(getattr(old, part), name)]
    fixed = {key: getattr(old, key) for key in fixed_keys(old, parts)}
    if "expe_theta" in fixed and old.expe_theta is None:
        fixed["expe_theta"] = 1 / (4 * old.block_size)  # the default follows a block_size that may change
    wrong = [
        f"init_from={source.path}: {key} is {value!r} there, not {given[key]!r}: the weights do not fit"
        for key, value in fixed.items()
        if key in given and _effective(old, key, given[key], parts) != _effective(old, key, value, parts)
    ]
    # a part that ends at block_size knows no position beyond it
    ends = [part for part in kept if part != "ffn" and not _any_length(part, parts[part])]
    if ends and given.get("block_size", 0) > old.block_size:
        wrong.append(
            f"init_from={source.path}: block_size={given['block_size']} is beyond the {old.block_size} "
            f"positions that {' and '.join(f'{part}={parts[part]}' for part in ends)} has there"
        )
    if wrong:
        raise ConfigError(wrong)
    return {"n_head": old.n_head, "block_size": old.block_size, **fixed, **parts}


def fixed_keys(old: ModelConfig, parts: dict[str, str]) -> list[str]:
    """The keys that the kept weights depend on: with other values they would compute something else."""
    prefixes = [
        prefix
        for part, name in parts.items()
        if _same_weights(before := getattr(old, part), name)
        for prefix in READS[before]
        if prefix in READS[name]
    ]
    # acts outside training only, and no weight depends on it
    keys = [f.name for f in dataclasses.fields(ModelConfig) if f.name != "expe_inference_scale"]
    return [key for key in keys if key in TRUNK or any(key.startswith(prefix) for prefix in prefixes)]


def _same_weights(before: str, name: str) -> bool:
    return before == name or {before, name} <= SAME_WEIGHTS


def _any_length(part: str, name: str) -> bool:
    return getattr(REGISTRIES[part][name], "any_length", False)


def _effective(config: ModelConfig, key: str, value, parts: dict[str, str]):
    """None stands for a default that the other keys give."""
    if value is None and key == "n_kv_head":
        return config.n_head
    if value is None and key == "ffn_hidden":
        return FFN[parts["ffn"]].hidden(dataclasses.replace(config, ffn_hidden=None))
    return value


def initialise(model: GPT, source: Source) -> list[str]:
    """Put into `model` every part of the source that both share -> what was kept, is new, was dropped.

    The parts that are new keep their weights. Raises CheckpointError.
    """
    weights = read_checked(source)
    old, new = source.config, model.config
    if new.block_size < old.block_size:
        weights = crop_block_size(weights, old, new.block_size)
    kept = {
        key: weight
        for key, weight in weights.items()
        if (part := _part(key)) is None or _same_weights(getattr(old, part), getattr(new, part))
    }
    own = model.state_dict()
    checkpoint.check_weights(model, {**own, **kept}, source.path)
    model.load_state_dict({**own, **kept})
    lines = [f"starting from {source.path}: {_count(kept.values()):,} weights kept"]
    for part in REGISTRIES:
        before, name = getattr(old, part), getattr(new, part)
        if before == name:
            continue
        if _same_weights(before, name):
            lines.append(f"  {part}={name} has the weights of {before}")
            continue
        dropped = _count(w for key, w in weights.items() if _part(key) == part)
        drawn = _count(w for key, w in own.items() if _part(key) == part)
        lines.append(
            f"  new: {part}={name}, {drawn:,} weights; dropped: {part}={before}, {dropped:,} weights"
        )
    if new.block_size != old.block_size:
        lines.append(f"  block_size {old.block_size:,} -> {new.block_size:,}")
    return lines


def _count(weights) -> int:
    return sum(weight.numel() for weight in weights)


def _part(key: str) -> str | None:
    """ "blocks.0.ffn.up.weight" -> "ffn"; None for embedding, norms and head."""
    names = key.split(".")
    part = names[2] if names[0] == "blocks" else names[0]
    return part if part in REGISTRIES else None


def crop_block_size(weights: dict, config: ModelConfig, block_size: int) -> dict:
    """The weights of a model built from `config`, as those of one that ends at a smaller block_size."""
    cropped = {}
    for key, weight in weights.items():
        part = _part(key)
        if part in ("attention", "position"):
            layer = REGISTRIES[part][getattr(config, part)]
            name = key.split(f"{part}.", 1)[1]
            weight = layer.cropped(name, weight, config, block_size)
        cropped[key] = weight
    return cropped


def check_tokenizer(source: Source, tokenizer: Tokenizer):
    """Raises CheckpointError where the source's tokens are known to mean something else than the data's."""
    saved = source.tokenizer
    if saved is None or saved["hash"] == tokenizer.hash:
        return
    if from_json(saved).token_bytes() != tokenizer.token_bytes():
        raise CheckpointError(
            f"{source.path} was trained with another vocabulary (tokenizer {saved['kind']}) than the "
            f"data set's ({tokenizer.kind}), and its embedding would mean other tokens: prepare the data "
            "with its tokenizer"
        )


# --- reading ---


def _run(path: Path) -> Source:
    content = checkpoint.load(path, mmap=True)
    try:
        config = model_config(content["config"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} has no model configuration that this version knows ({error})"
        ) from None
    return Source(path, config, lambda: content["model"], content["tokenizer"], content["step"])


def _ours(path: Path, content: dict) -> Source:
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path}/config.json: its format is {content['format']!r}, not {FORMAT!r}")
    try:
        config = model_config(content["model"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}/config.json is no model configuration that this version knows ({error})"
        ) from None

    def read():
        return _read_tensors(lambda file: path / file)

    return Source(path, config, read, _saved_tokenizer(path), content.get("step"))


def _foreign(name: str, file: Callable[[str], Path]) -> Source:
    """file: gives the path of a file of the model, or one that does not exist."""
    content = _read_json(file("config.json"))
    where = f"{name}/config.json"
    kind = content.get("model_type")
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(f"{where}: model_type={kind!r} is neither gpt2 nor llama")
    if content.get("quantization_config"):
        raise CheckpointError(f"{where}: quantization_config: quantized weights are not read")
    try:
        config = _gpt2_config(content) if kind == "gpt2" else _llama_config(content)
        wrong = config.check()
    except KeyError as error:
        raise CheckpointError(f"{where} lacks {error}") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    if wrong:
        raise CheckpointError(f"{where}: {'; '.join(wrong)}")

    def read():
        return _from_foreign(_read_tensors(file), config, Path(name))

    if name in HUB:
        from data import gpt2

        return Source(Path(name), config, read, {"kind": "gpt2", "hash": gpt2.HASH})
    return Source(Path(name), config, read, _saved_tokenizer(Path(name)))


def _refuse(content: dict, **sound):
    """Raises ValueError where a key is there and has none of the values that our model computes."""
    for key, values in sound.items():
        if key in content and content[key] not in values:
            known = " or ".join(map(str, values))
            raise ValueError(f"{key}={content[key]!r} is not supported, only {known}")


def _gpt2_config(content: dict) -> ModelConfig:
    _refuse(
        content,
        activation_function=tuple(GELUS),
        scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,),
        add_cross_attention=(False,),
    )
    return ModelConfig(
        n_layer=content["n_layer"],
        n_head=content["n_head"],
        n_embd=content["n_embd"],
        block_size=content["n_positions"],
        vocab_size=content["vocab_size"],
        bias=True,
        ffn_hidden=content.get("n_inner"),
        gelu_approximation=GELUS[content.get("activation_function", "gelu_new")],
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


def _foreign_names(config: ModelConfig) -> dict[str, list[str]]:
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


def _from_foreign(tensors: dict, config: ModelConfig, path: Path) -> dict[str, torch.Tensor]:
    prefix = "model." if config.norm == "rmsnorm" else "transformer."
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if config.tie_embeddings:
        tensors.pop("lm_head.weight", None)  # the embedding again
    names = _foreign_names(config)
    if missing := [name for theirs in names.values() for name in theirs if name not in tensors]:
        raise CheckpointError(f"{path} lacks {', '.join(missing[:3])} ({len(missing)} weights in all)")
    known = {name for theirs in names.values() for name in theirs}
    if more := [name for name in tensors if name not in known and not name.endswith(BUFFERS)]:
        raise CheckpointError(f"{path} holds weights that its config.json does not tell of: {more[:3]}")
    weights = {}
    for ours, theirs in names.items():
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


def _read_tensors(file: Callable[[str], Path]) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the files that its index names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = file("model.safetensors.index.json")
    names = ["model.safetensors"]
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError(f"{index} has no weight_map")
        names = sorted(set(shards.values()))
    tensors = {}
    for name in names:
        path = file(name)
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist (weights are read from safetensors files only)")
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or no safetensors file ({error})") from None
    return tensors


def _download(name: str, file: str) -> Path:
    """A file of one of HUB, or of the hub's cache; a path that does not exist where it has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(f"openai-community/{name}", file))
    except LocalEntryNotFoundError as error:
        reason = error
    except EntryNotFoundError:
        return Path(file)
    except Exception as error:  # of the network, the disk, the hub: whatever it is, there is no file
        reason = error
    raise CheckpointError(
        f"{name}: {file} could not be had from the Hugging Face hub ({str(reason).splitlines()[0]}). "
        "Run once with network, or download the model elsewhere and give its folder"
    )


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no object")
    return content


def _saved_tokenizer(folder: Path) -> dict | None:
    path = folder / "data_tokenizer.json"
    return _read_json(path) if path.is_file() else None


def tokenizer_of(source: Source) -> Tokenizer:
    """For texts: ours if it is known, otherwise the folder's tokenizer.json; raises DataError."""
    if source.tokenizer is not None:
        return from_json(source.tokenizer)
    from data.tokenizer import build_tokenizer

    path = source.path / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"{source.path} has no tokenizer.json, so nothing says what its tokens mean")
    return build_tokenizer(str(path), list)


# --- writing ---


def foreign_config(config: ModelConfig) -> dict | None:
    """The config.json of the same model in transformers; None where it knows no such architecture."""
    shared = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    parts = (config.attention, config.ffn, config.position, config.norm)
    grouped = config.n_kv_head not in (None, config.n_head)
    if parts == ("softmax", "mlp", "learned", "layernorm") and not grouped:
        activation = {"tanh": "gelu_new", "none": "gelu"}[config.gelu_approximation]
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
        rope = {"rope_type": "default", "rope_theta": config.rope_base}
        if config.rope_scaling == "llama3":
            rope |= {
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
            "rope_parameters": rope,
            "attention_bias": False,
            "mlp_bias": False,
            **shared,
        }
    return None


def _to_foreign(weights: dict, config: ModelConfig) -> dict[str, torch.Tensor]:
    prefix = "model." if config.norm == "rmsnorm" else "transformer."
    kv = config.n_embd // config.n_head * (config.n_kv_head or config.n_head)
    tensors = {}
    for ours, theirs in _foreign_names(config).items():
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


def export(source: Source, folder: Path) -> bool:
    """Write a model folder that does not exist yet, whole or not at all; whether transformers loads it.

    Raises CheckpointError where something is there already, OSError where the disk does not take it.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise CheckpointError(f"{folder} exists already, and nothing is overwritten: choose another folder")
    weights, config = read_checked(source), source.config
    content = foreign_config(config)
    known = content is not None
    if known:
        tensors = _to_foreign(weights, config)
    else:
        tensors = {name: weight.contiguous() for name, weight in weights.items()}
        content = {"format": FORMAT, "step": source.step, "model": dataclasses.asdict(config)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir()
        write_whole(beside / "config.json", json.dumps(content, indent=2) + "\n")
        if source.tokenizer is not None:
            write_whole(beside / "data_tokenizer.json", json.dumps(source.tokenizer) + "\n")
            if text := source.tokenizer.get("tokenizer.json"):
                write_whole(beside / "tokenizer.json", text)
        # safetensors refuses tensors that share memory
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        save_file(tensors, beside / "model.safetensors", {"format": "pt"})
        with open(beside / "model.safetensors", "rb") as file:
            os.fsync(file.fileno())
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return known
