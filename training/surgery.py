"""Starting from another model: what its weights fix, which parts are kept, which are new.

Another attention, ffn or position may replace that part; a smaller block_size cuts off what is stored
for later positions.
"""

import dataclasses

from config_keys import names
from configurator import ConfigError
from layers.sliding_window import window_of
from models.architecture import REGISTRIES, ModelConfig
from models.language_model import LanguageModel
from training import checkpoint, model_folder, sharding
from training.pretrained import Source, read_checked

TRUNK = ("n_layer", "n_embd", "vocab_size", "bias", "norm", "norm_eps", "tie_embeddings")
TRUNK += ("encoder_layers", "logit_softcap", "value_embeddings")


def architecture(source: Source, given: dict) -> dict:
    """The model keys of a run that starts from `source`; given: those that the user named.

    Another attention, ffn or position replaces that part; what belongs to the rest must not change, but
    for a smaller block_size. Raises ConfigError with every key that contradicts the source.
    """
    old = source.config
    if kinds := {old.model, given.get("model", old.model)} - {"gpt"}:
        raise ConfigError(
            [
                f"init_from={source.path}: a run starts from the weights of model=gpt, and only as one, "
                f"not with model={kinds.pop()}; saffu_init says where a SAFFU starts"
            ]
        )
    parts = {part: given.get(part, getattr(old, part)) for part in REGISTRIES}
    new = dataclasses.replace(old, **parts)
    fixed = {key: getattr(old, key) for key in fixed_keys(old, new)}
    if "expe_theta" in fixed and old.expe_theta is None:
        fixed["expe_theta"] = 1 / (4 * old.block_size)  # the default follows a block_size that may change
    if "attention_window" in fixed:
        fixed["attention_window"] = window_of(old)  # so does this one
    wrong = {
        key: f"{key} is {value!r} there, not {given[key]!r}: its weights were trained with that"
        for key, value in fixed.items()
        if key in given and _effective(new, key, given[key]) != _effective(new, key, value)
    }
    # a part that ends at block_size knows no position beyond it
    kept = [(part, *pair) for part in ("attention", "position") for pair in _pairs(part, old, new)]
    ends = dict.fromkeys(
        f"{part}={name}"
        for part, before, name in kept
        if _same_weights(part, before, name)
        and not (REGISTRIES[part][before].any_length or REGISTRIES[part][name].any_length)
    )
    if ends and given.get("block_size", 0) > old.block_size:
        wrong["block_size"] = (
            f"block_size={given['block_size']} is beyond the {old.block_size} "
            f"positions that {' and '.join(ends)} has there"
        )
    values = {"n_head": old.n_head, "block_size": old.block_size, **fixed, **parts}
    if wrong:
        instead = {key: value for key, value in values.items() if key in wrong or key not in given}
        raise ConfigError([f"init_from={source.path}: {one}" for one in wrong.values()], instead)
    return values


def fixed_keys(old: ModelConfig, new: ModelConfig) -> list[str]:
    """The keys that the kept weights depend on: with other values they would compute something else."""
    fixed = set(TRUNK)
    same = [now for was, now in _pairs("attention", old, new) if _same_weights("attention", was, now)]
    if not any(REGISTRIES["attention"][name].takes_values for name in same):
        fixed -= {"value_embeddings"}  # the tables go with the attention
    for part in REGISTRIES:
        for before, name in _pairs(part, old, new):
            if _same_weights(part, before, name):
                fixed |= {*names(REGISTRIES[part][before].Keys)} & {*names(REGISTRIES[part][name].Keys)}
                fixed |= {"n_head"} if part == "attention" else set()
    # acts outside training only, and no weight depends on it
    fixed -= {"expe_inference_scale"}
    return [field.name for field in dataclasses.fields(ModelConfig) if field.name in fixed]


def _pairs(part: str, old: ModelConfig, new: ModelConfig) -> list[tuple[str, str]]:
    """(the name before, the name now) of the part in each layer; of `position`, one pair."""
    before, now = old.names(part), new.names(part)
    count = 1 if part == "position" else max(old.n_layer, old.encoder_layers)
    return [(before[layer % len(before)], now[layer % len(now)]) for layer in range(count)]


def _same_weights(part: str, before: str, name: str) -> bool:
    if part != "attention" or before == name or name not in REGISTRIES[part]:
        return before == name
    return before in REGISTRIES[part][name].same_weights or name in REGISTRIES[part][before].same_weights


def _effective(config: ModelConfig, key: str, value):
    """None stands for a default that the other keys give."""
    if value is None and key in ("n_kv_head", "cattn_heads", "cattn_value_heads"):
        return config.n_head
    if value is None and key == "ffn_hidden":
        without = dataclasses.replace(config, ffn_hidden=None)
        (*widths,) = dict.fromkeys(part.hidden(without) for part in config.parts()["ffn"])
        return widths[0] if len(widths) == 1 else widths
    return value


def initialise(model: LanguageModel, source: Source) -> list[str]:
    """Put into `model` every part of the source that both share -> what was kept, is new, was dropped.

    The parts that are new keep their weights. Raises CheckpointError.
    """
    weights = read_checked(source)
    model_folder.check_finite(weights, source.path)
    old, new = source.config, model.config
    if new.block_size < old.block_size:
        weights = crop_block_size(weights, old, new.block_size)
    pairs = {part: _pairs(part, old, new) for part in REGISTRIES}

    def keeps(key):
        place = _place(key)
        return place is None or _same_weights(place[0], *pairs[place[0]][place[1]])

    kept = {key: weight for key, weight in weights.items() if keeps(key)}
    own = model.state_dict()
    checkpoint.check_weights(model, {**own, **kept}, source.path)
    sharding.load(model, kept)
    lines = [f"starting from {source.path}: {_count(kept.values()):,} weights kept"]
    for part in REGISTRIES:
        before, name = getattr(old, part), getattr(new, part)
        if before == name:
            continue
        if any(was != now and _same_weights(part, was, now) for was, now in pairs[part]):
            lines.append(f"  {part}={name} has weights of {before}")
        dropped, drawn = (
            _count(
                w
                for key, w in held.items()
                if (place := _place(key)) and place[0] == part and key not in kept
            )
            for held in (weights, own)
        )
        if dropped or drawn:
            lines.append(
                f"  new: {part}={name}, {drawn:,} weights; dropped: {part}={before}, {dropped:,} weights"
            )
    if new.block_size != old.block_size:
        lines.append(f"  block_size {old.block_size:,} -> {new.block_size:,}")
    return lines


def _count(weights) -> int:
    return sum(weight.numel() for weight in weights)


def _place(key: str) -> tuple[str, int] | None:
    """ "blocks.3.ffn.up.weight", in the encoder too -> ("ffn", 3); of the position: layer 0; None for what
    no key replaces. A value embedding goes with its attention.
    """
    names = key.removeprefix("encoder.").split(".")
    part, layer = (names[2], int(names[1])) if names[0] == "blocks" else (names[0], 0)
    part = "attention" if part == "values" else part
    return (part, layer) if part in REGISTRIES else None


def crop_block_size(weights: dict, config: ModelConfig, block_size: int) -> dict:
    """The weights of a model built from `config`, as those of one that ends at a smaller block_size."""
    cropped = {}
    for key, weight in weights.items():
        place = _place(key)
        if place is not None and place[0] != "ffn" and f"{place[0]}." in key:
            part, layer = place
            names = config.names(part)
            cls = REGISTRIES[part][names[layer % len(names)]]
            weight = cls.cropped(key.split(f"{part}.", 1)[1], weight, config, block_size)
        cropped[key] = weight
    return cropped
