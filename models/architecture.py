"""The keys of a model, and which of them go together."""

import dataclasses
import difflib
import itertools
import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from kernels.backend import why_not_triton
from kernels.continued_fraction import POLES
from layers import ATTENTION, FFN, POSITION
from layers.protocol import ADD_FIELD, ChannelMixer, Part, TokenMixer

REGISTRIES = {"attention": ATTENTION, "ffn": FFN, "position": POSITION}
BASES = {"attention": TokenMixer, "ffn": ChannelMixer, "position": Part}
# keys of the whole model, which no part needs to name
OF_ALL = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout", "norm", "norm_eps")
OF_ALL += ("tie_embeddings", "encoder_layers", "model", *REGISTRIES)
SHARED = ("model", "block_size", "vocab_size")  # keys of every kind of model


@dataclass
class ModelConfig:
    """The architecture, in flat keys."""

    # model
    model: Literal["gpt", "saffu"] = "gpt"  # gpt: blocks on a residual stream; saffu: see docs/saffu.md
    n_layer: int = 12  # blocks
    encoder_layers: int = 0  # blocks that read a source, seen whole, for pairs; 0: no encoder
    n_head: int = 12  # heads of softmax attention, synthesizer and bigbird
    n_kv_head: int | None = None  # heads of keys and values; None: n_head, fewer: grouped-query attention
    token_shift: bool = False  # softmax, bigbird, cattn_relative: each key has a map of the token before
    n_embd: int = 768  # width of the residual stream
    block_size: int = 1024  # longest sequence, in tokens
    vocab_size: int | None = None  # tokens in the vocabulary; None: that of the data set
    bias: bool = False  # biases in the linear layers and layer norms of the Transformer
    dropout: float = 0.0  # share of activations dropped in training
    # attention and feed-forward: several names with commas between them repeat over the layers
    attention: str = "softmax"  # softmax, cattn_m, cattn_relative, cattn_u, synthesizer, bigbird; or a,b,..
    ffn: str = "mlp"  # channel mixer: mlp, swiglu, cffn_gated, cffn_product, cffn_added; or a,b,..
    ffn_hidden: int | None = None  # hidden width; None: 4 (mlp), 8/3 (swiglu), 1 (gated Cffn) n_embd
    mlp_activation: Literal["gelu", "relu"] = "gelu"  # mlp: relu is that of Vaswani et al. 2017
    gelu_approximation: Literal["none", "tanh"] = "none"  # mlp: tanh is that of GPT-2's published weights
    # positions, norms, embeddings
    position: str = "learned"  # positional encoding: learned, sinusoidal, rope, t5, expe, exqpe, none
    t5_buckets: int = 32  # t5: learned numbers of a head, each for one distance or several
    t5_max_distance: int = 128  # t5: from this distance on, all share one number
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # before each mixer and the head
    norm_eps: float = 1e-5  # added to the variance
    tie_embeddings: bool = True  # the head shares its matrix with the embedding
    # rope
    rope_base: float = 10_000.0  # rope: the slowest pair of columns turns by about 1 / rope_base a token
    rope_scaling: Literal["none", "llama3"] = "none"  # rope: llama3 divides the slow frequencies
    rope_factor: float = 32.0  # llama3: the slowest frequencies are divided by this
    rope_low_freq_factor: float = 1.0  # llama3: fewer turns than this in the original length are slow
    rope_high_freq_factor: float = 4.0  # llama3: frequencies with at least this many turns stay as they are
    rope_original_max_position_embeddings: int = 8192  # llama3: the original length, in tokens
    # expe, exqpe
    expe_width: int | None = None  # expe, exqpe: l, columns that hold the position; None: n_embd/16, >= 16
    expe_start: float = 0.0  # expe, exqpe: S, the value at position 0
    expe_theta: float | None = None  # expe, exqpe: increase per token; None: 1 / (4 block_size)
    expe_stable: bool = False  # expe, an ablation: the same number in all l columns
    expe_once: bool = False  # expe, exqpe, an ablation: in the embedding, not before each W_q and W_k
    expe_learned: Literal["no", "random", "standard"] = "no"  # expe, exqpe: learn S and theta; from where
    expe_on_v: bool = False  # expe, exqpe, an ablation: before W_v too
    expe_inference_scale: float = 1.0  # expe, exqpe: factor on the l columns outside training
    exqpe_theta_1: float | None = None  # exqpe: step between columns; None: expe_theta
    exqpe_theta_2: float | None = None  # exqpe: increase per token of its one column; None: l expe_theta
    # continued fractions
    cf_ladders: int = 7  # L, continued-fraction ladders in an ensemble (in each head)
    cf_depth: int = 3  # d, partial denominators in a ladder
    cf_pole: Literal[POLES] = "positive"  # near K_d = 0: clamp as printed, positive softplus(a) + cf_floor
    cf_eps: float = 0.01  # clamp: smallest |K_d|
    cf_floor: float = 0.1  # positive: smallest partial denominator; |z| <= 1 / cf_floor
    cf_init: Literal["fan_in", "nanogpt", "nanogpt_xl"] = "fan_in"  # ladder weights: see layers/ladder.py
    cf_intercept: Literal["one", "zero", "normal", "none"] = "one"  # initial intercepts of the a_k, if any
    cf_linear_intercept: bool = False  # the linear part of an ensemble, a_0, has an intercept too
    cf_impl: Literal["continuant", "ladder"] = "continuant"  # one division, or d divisions as written
    cf_backend: Literal["auto", "torch", "triton"] = "auto"  # the code; auto: Triton's kernels on a GPU
    cf_eval_clip: bool = False  # in evaluation clip each ladder to its range in training
    cf_clip_of: Literal["z", "ladder"] = "z"  # what is clipped; ladder: a_0 + z, where a_0 is at hand
    cf_control: Literal["none", "zero", "constant"] = "none"  # replace fractions by 0 or constants
    # cffn_*, cattn_*
    cffn_gate: Literal["self", "glu_collapsed"] = "self"  # cffn_gated: what h is
    cattn_scores: Literal["rank", "collapsed"] = "rank"  # cattn_m: F (W_0 x + z), or U x + V z
    cattn_heads: int | None = 1  # cattn_m, cattn_relative: heads, each with its ladders; None: n_head
    cattn_value_heads: int | None = None  # cattn_*: columns of W^v, in n_embd / n_head; None: n_head
    cattn_proj: bool = False  # cattn_m, cattn_relative: a linear map on the output
    cattn_strict: bool = False  # cattn_m: a token does not attend to itself
    cattn_content: bool = False  # cattn_relative: columns hold a linear map of their token too
    # synthesizer, bigbird
    synthesizer_proj: bool = True  # synthesizer: a linear map on the output
    bigbird_block: int = 64  # bigbird: tokens in a block
    bigbird_global: int = 1  # bigbird: g, first blocks that every token attends to
    bigbird_window: int = 3  # bigbird: w, odd, blocks around a token's own; future ones are left out
    bigbird_random: int = 3  # bigbird: r, further blocks of the past, drawn for each layer and head
    bigbird_seed: int = 0  # bigbird: seed of the random blocks
    # model=saffu
    saffu_block: int | None = 128  # b, slots of the block unit; None: no block unit
    saffu_radius: int | None = 8  # r, slots of the radius unit; None: no radius unit
    saffu_block_width: int = 128  # D_b, width of the block unit's embedding
    saffu_radius_width: int = 32  # D_r, width of the radius unit's embedding
    saffu_block_mode: Literal["sum", "cat"] = "sum"  # add up the block's weighted vectors, or concatenate
    saffu_radius_mode: Literal["sum", "cat"] = "cat"  # the same for the radius
    saffu_block_head: int | None = None  # slot of the block's query, from 1; None: the first
    saffu_radius_head: int | None = None  # slot of the radius's query, from 1; None: the last, the nearest
    saffu_hidden: int | None = 256  # D_H, hidden bits of each unit; None: decode to the vocabulary directly
    saffu_train_embeddings: bool = False  # train the embeddings too
    saffu_end_of_text: int | None = None  # token that ends a document; None: that of the data set

    def check(self, try_out: bool = True) -> list[str]:
        """What is wrong, one sentence each. try_out: also run modules whose counts have no closed form."""
        wrong = self._keys_of_another_model()
        if self.model == "saffu":
            return wrong + self._mistakes_of_saffu()
        sizes = "n_layer n_head n_kv_head n_embd block_size vocab_size cf_ladders cf_depth cattn_heads"
        sizes += " cattn_value_heads ffn_hidden expe_width rope_original_max_position_embeddings"
        for key in sizes.split():
            value = getattr(self, key)
            if value is not None and value < 1:
                wrong.append(f"{key} must be at least 1, not {value}")
        for key in ("cf_eps", "cf_floor", "norm_eps", "rope_base", "rope_factor", "rope_low_freq_factor"):
            if not getattr(self, key) > 0:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        if self.encoder_layers < 0:
            wrong.append(f"encoder_layers must not be below 0, not {self.encoder_layers}")
        if not 0 <= self.dropout < 1:
            wrong.append(f"dropout must be in [0, 1), not {self.dropout}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in get_args(field.type):
                wrong.append(_unknown(field.name, value, get_args(field.type)))
        if self.cf_impl == "continuant" and self.cf_depth > (most := self._deepest()):
            wrong.append(
                f"cf_depth={self.cf_depth}: continuants of more than {most} partial denominators"
                + (f" with cf_floor={self.cf_floor}" if self._has_floor else "")
                + " are beyond float32's range"
                + "; cf_impl=ladder has none"
            )
        if self.cf_backend == "triton" and (reason := why_not_triton()):
            wrong.append(f"cf_backend=triton {reason}")
        unknown = []
        for key, registry in REGISTRIES.items():
            for name in dict.fromkeys(self.names(key)):
                if name not in registry:
                    unknown.append(_unknown(key, name, registry))
                else:
                    wrong += self._mistakes_of(key, name)
        wrong += unknown or self._mistakes_of_patterns()
        for key in () if wrong or not try_out else ("attention", "ffn"):
            for name in dict.fromkeys(self.names(key)):
                try:
                    REGISTRIES[key][name].try_out(self)
                except ValueError as error:
                    wrong.append(f"{key}={name}: {error}")
        return wrong

    def _mistakes_of_patterns(self) -> list[str]:
        wrong = []
        for key in ("attention", "ffn"):
            if len(names := self.names(key)) > max(1, self.n_layer):
                wrong.append(
                    f"{key}={getattr(self, key)} names {len(names)} layers, and n_layer={self.n_layer}"
                )
        position, attentions = POSITION[self.position], self.parts()["attention"]
        names = set(self.names("attention"))
        able = {name for name in names if getattr(ATTENTION[name], "queries_and_keys", True)}
        if getattr(position, "needs_queries_and_keys", False) and not able:
            wrong.append(
                f"position={self.position} acts on queries and keys, which attention={self.attention} does "
                "not have: take learned, sinusoidal or none"
            )
        elif (only := getattr(position, "only_in", ())) and (not able or able - {*only}):
            wrong.append(
                f"position={self.position} acts in attention={' or '.join(only)}, not in "
                f"{', '.join(sorted(able or names))}: take another position"
            )
        if self.encoder_layers > 0 and not all(
            getattr(attention, "bidirectional", True) for attention in attentions
        ):
            able = [name for name, one in ATTENTION.items() if one.bidirectional]
            wrong.append(
                f"encoder_layers={self.encoder_layers} needs an attention that can look ahead, and "
                f"attention={self.attention} is causal as it is built: take {' or '.join(able)}, or "
                "encoder_layers=0, which trains on pairs too"
            )
        return wrong

    def _keys_of_another_model(self) -> list[str]:
        """Keys that are not at their defaults and belong to the other kind of model."""
        given = [f.name for f in dataclasses.fields(ModelConfig) if getattr(self, f.name) != f.default]
        other = "gpt" if self.model == "saffu" else "saffu"
        foreign = [key for key in given if key not in SHARED and _kind(key) == other]
        return [
            f"{key}={getattr(self, key)} is a key of model={other}, and this is model={self.model}: leave "
            f"it out, or take --model={other}"
            for key in foreign
        ]

    def _mistakes_of_saffu(self) -> list[str]:
        wrong = []
        for key in ("block_size", "vocab_size", "saffu_block_width", "saffu_radius_width", "saffu_hidden"):
            if getattr(self, key) is not None and getattr(self, key) < 1:
                wrong.append(f"{key} must be at least 1, not {getattr(self, key)}")
        if self.saffu_block is None and self.saffu_radius is None:
            wrong.append("saffu_block and saffu_radius are both None: a SAFFU needs at least one of them")
        widths = {} if self.saffu_hidden is None else {"saffu_hidden": 0}
        for unit in ("saffu_block", "saffu_radius"):
            slots, head = getattr(self, unit), getattr(self, f"{unit}_head")
            if slots is None:
                continue
            widths[f"{unit}_width"] = 3  # special tokens have embeddings and are no targets
            if slots < 2:
                wrong.append(f"{unit} must be at least 2, not {slots}: one slot has no attention")
            elif head is not None and not 1 <= head <= slots:
                wrong.append(f"{unit}_head must be a slot from 1 to {unit}={slots}, not {head}")
        for key, more in widths.items():
            tokens, width = (self.vocab_size or 0) + more, getattr(self, key)
            if 1 <= width <= 40 and tokens > 2**width - 1:
                least = tokens.bit_length()
                wrong.append(
                    f"{key}={width} gives 2^{width} - 1 bit-vectors, fewer than the {tokens:,} tokens that "
                    f"need one: take at least {least}"
                )
        end = self.saffu_end_of_text
        if end is not None and not 0 <= end < (self.vocab_size or end + 1):
            known = f"a vocabulary of {self.vocab_size}" if self.vocab_size else "any vocabulary"
            wrong.append(f"saffu_end_of_text={end} is no token of {known}")
        return wrong

    def _mistakes_of(self, key: str, name: str) -> list[str]:
        """What a part says against this config, and mistakes in what its class says."""
        part = REGISTRIES[key][name]
        if not issubclass(part, base := BASES[key]):
            return [f"{key}={name}: {part.__name__} must derive from {base.__name__}"]
        if not isinstance(part.keys, (tuple, list)):
            write = f'write a tuple, with a comma: keys = ("{part.keys}",)'
            return [f"{part.__name__}.keys is {part.keys!r}: {write}"]
        if unknown := set(part.keys) - {field.name for field in dataclasses.fields(ModelConfig)}:
            names = ", ".join(sorted(unknown))
            return [f"{part.__name__}.keys names {names}: no config key{ADD_FIELD}"]
        try:
            found = part.validate(self)
        except AttributeError as error:
            if error.obj is not self:
                raise
            return [f"{part.__name__}.validate reads config.{error.name}: no config key{ADD_FIELD}"]
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            told = f"{part.__name__}.validate must return a list of sentences, [] for no mistakes"
            return [f"{told}, not {found!r}"]
        return found

    def names(self, key: str) -> list[str]:
        """The names of a pattern, which repeats over the layers; key: attention, ffn, or position, which is
        one for all.
        """
        value = getattr(self, key)
        return [value] if key == "position" else [name.strip() for name in value.split(",")]

    def of_layer(self, key: str, layer: int) -> type:
        """The class of a layer's attention or ffn."""
        names = self.names(key)
        return REGISTRIES[key][names[layer % len(names)]]

    @property
    def period(self) -> int:
        """After so many layers, mixers repeat."""
        return math.lcm(len(self.names("attention")), len(self.names("ffn")))

    def parts(self) -> dict[str, list[type]]:
        """{attention, ffn, position: their classes, each once}; none where model=saffu"""
        if self.model == "saffu":
            return {}
        return {
            key: [registry[name] for name in dict.fromkeys(self.names(key))]
            for key, registry in REGISTRIES.items()
        }

    def keys_read(self) -> set[str]:
        """The keys that the model or one of its parts reads."""
        if self.model == "saffu":
            keys = {f.name for f in dataclasses.fields(ModelConfig) if _kind(f.name) == "saffu"}
            idle = [unit for unit in ("saffu_block", "saffu_radius") if getattr(self, unit) is None]
            return {*SHARED, *(key for key in keys if not key.startswith(tuple(f"{u}_" for u in idle)))}
        parts = itertools.chain.from_iterable(self.parts().values())
        return {*OF_ALL, *(key for part in parts for key in part.keys_read(self))}

    def unused_keys(self) -> list[str]:
        """Keys that are not at their defaults and that no part of this model reads, as key=value.

        Allowed, because overlays are shared between models. Varying such a key would compare identical
        models.
        """
        read = self.keys_read()
        return [
            f"{field.name}={value}"
            for field in dataclasses.fields(ModelConfig)
            if (value := getattr(self, field.name)) != field.default and field.name not in read
        ]

    def length_limits(self) -> list[str]:
        """The parts that know no position from block_size on, as key=name."""
        if self.model == "saffu":
            return []
        names = [
            (key, name) for key in ("attention", "position") for name in dict.fromkeys(self.names(key))
        ]
        return [f"{key}={name}" for key, name in names if not REGISTRIES[key][name].any_length]

    def _deepest(self) -> int:
        """Partial denominators whose continuant stays below 10^36 for what biases of 1 start with."""
        floor = max(0, self.cf_floor) if self._has_floor else 0  # below 0 is refused elsewhere
        return max(1, int(36 / math.log10(2.4 + floor)))  # a_k + 1, and K_k <= (a_k + 1) K_(k+1)

    @property
    def _has_floor(self) -> bool:
        return self.cf_pole == "positive"

    @property
    def residual_scale(self) -> float:
        """What the initialisation of the decoder's maps to the residual stream is multiplied by."""
        return ((3 if self.encoder_layers else 2) * self.n_layer) ** -0.5

    @property
    def has_ladders(self) -> bool:
        parts = self.parts()
        mixers = [*parts.get("attention", ()), *parts.get("ffn", ())]
        return self.cf_control == "none" and any(mixer.has_ladders for mixer in mixers)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: a multiple of 64 suits the matrix units."""
        return (self.vocab_size + 63) // 64 * 64

    @classmethod
    def of_this_version(cls, saved: dict) -> dict:
        """A saved configuration as it is. Raises ValueError where another version of this code has saved
        it: a key more or less may be another model.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        there = [f"no {key}" for key in sorted(known - saved.keys())]
        there += [f"{key}={saved[key]!r}" for key in sorted(saved.keys() - known)]
        if there:
            more = f" and {len(there) - 3} more" if len(there) > 3 else ""
            raise ValueError(
                f"it was saved by another version of this code, with {', '.join(there[:3])}{more}: train "
                "it again, or use the commit that saved it"
            )
        return saved


def _kind(key: str) -> str:
    """The kind of model that a key outside SHARED belongs to."""
    return "saffu" if key.startswith("saffu_") else "gpt"


def _unknown(key, name, known) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{key} must be one of {', '.join(known)}, not {name!r}{hint}"


def model_config(config) -> ModelConfig:
    """The model's share of a script's config, or of a saved dict, whose cf_backend is the choice of the
    machine it was saved on and becomes auto. Raises KeyError where the dict lacks a key.
    """
    values = {**config, "cf_backend": "auto"} if isinstance(config, dict) else dataclasses.asdict(config)
    return ModelConfig(**{field.name: values[field.name] for field in dataclasses.fields(ModelConfig)})
