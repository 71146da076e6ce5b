"""The keys of a model, and which of them go together."""

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from kernels.backend import why_not_triton
from kernels.continued_fraction import FUSED_POLES, POLES
from layers import ATTENTION, FFN, POSITION

LAST_BEFORE_INTERCEPTS = "16d9952"
LAST_WITH_SELF_SKIP = "66884a0"


@dataclass
class ModelConfig:
    """The architecture, in flat keys."""

    n_layer: int = 12  # blocks
    n_head: int = 12  # heads of softmax attention, synthesizer and bigbird
    n_kv_head: int | None = None  # heads of its keys and values; None: n_head, fewer: grouped-query
    key_shift: bool = False  # softmax, bigbird, cattn_m with content: the token before has a part in keys
    n_embd: int = 768  # width of the residual stream
    block_size: int = 1024  # longest sequence, in tokens
    vocab_size: int | None = None  # tokens in the vocabulary; None: as many as the data set has
    bias: bool = False  # biases in the linear layers and layer norms of the Transformer
    dropout: float = 0.0  # share of activations dropped in training
    attention: str = "softmax"  # token mixer: softmax, cattn_m, cattn_u, cattn_c, synthesizer, bigbird
    ffn: str = "mlp"  # channel mixer: mlp, swiglu, cffn_gated, cffn_product, cffn_added
    ffn_hidden: int | None = None  # width inside mlp, swiglu and GLUs of cffn; None: 4, 8/3, 1 n_embd
    gelu_approximation: Literal["none", "tanh"] = "none"  # mlp: tanh is GPT-2's published weights' GELU
    position: str = "learned"  # positional encoding: learned, sinusoidal, rope, expe, exqpe, none
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # before each mixer and the head
    norm_eps: float = 1e-5  # added to the variance
    tie_embeddings: bool = True  # the head's matrix is the embedding's
    rope_base: float = 10_000.0  # rope: the slowest pair of columns turns by about 1 / rope_base a token
    rope_scaling: Literal["none", "llama3"] = "none"  # rope: llama3 stretches the slow frequencies
    rope_factor: float = 32.0  # llama3: the slowest ones so many times
    rope_low_freq_factor: float = 1.0  # llama3: fewest turns in the original length that are not slow
    rope_high_freq_factor: float = 4.0  # llama3: from so many turns on nothing is stretched
    rope_original_max_position_embeddings: int = 8192  # llama3: the original length, in tokens
    expe_width: int | None = None  # expe, exqpe: l, columns that hold the position; None: n_embd/16, >= 16
    expe_start: float = 0.0  # expe, exqpe: S, where they begin
    expe_theta: float | None = None  # expe, exqpe: what a token adds; None: 1 / (4 block_size)
    expe_stable: bool = False  # expe, an ablation: the same number in all l columns
    expe_once: bool = False  # expe, exqpe, an ablation: in the embedding, not before each W_q and W_k
    expe_learned: Literal["no", "random", "standard"] = "no"  # expe, exqpe: learn S, theta; start
    expe_on_v: bool = False  # expe, exqpe, an ablation: before W_v too
    expe_inference_scale: float = 1.0  # expe, exqpe: multiplies the l columns, not in training
    exqpe_theta_1: float | None = None  # exqpe: step between columns; None: expe_theta
    exqpe_theta_2: float | None = None  # exqpe: what a token adds to its one column; None: l expe_theta
    cf_ladders: int = 7  # L, continued-fraction ladders in an ensemble (in each head)
    cf_depth: int = 3  # d, partial denominators in a ladder
    cf_pole: Literal[POLES] = "positive"  # near K_d = 0: clamp as printed, positive softplus(a) + cf_floor
    cf_eps: float = 0.01  # clamp, smooth, soft_clamp: smallest |K_d|, or about that
    cf_pole_grad: Literal["formula", "exact", "zero"] = "formula"  # clamp: gradient where |K_d| < cf_eps
    cf_floor: float = 0.1  # positive, absolute: smallest partial denominator; |z| <= 1 / cf_floor
    cf_init: Literal["fan_in", "nanogpt", "nanogpt_xl"] = "fan_in"  # ladder weights: see layers/ladder.py
    cf_intercept: Literal["one", "zero", "normal", "none"] = "one"  # where those of the a_k start, if any
    cf_linear_intercept: bool = False  # the linear part of an ensemble, a_0, has an intercept too
    cf_impl: Literal["continuant", "ladder"] = "continuant"  # one division, or as written: d clamped ones
    cf_backend: Literal["auto", "torch", "triton"] = "auto"  # the code; auto: Triton's kernels on a GPU
    cf_ladder: Literal["inner", "elementwise"] = "inner"  # ladders of all of x, or of each coordinate
    cf_eval_clip: bool = False  # in evaluation clip each ladder to its range in training
    cf_control: bool = False  # leave all fractions out: every z is 0, without weights of ladders
    cf_control_constant: bool = False  # cf_control: a learned constant in place of each fraction
    cffn_gate: Literal["self", "glu", "glu_collapsed"] = "self"  # what cffn_gated's h is
    cffn_proj: bool = False  # cffn_gated: a linear map on the output
    cattn_scores: Literal["rank", "collapsed"] = "rank"  # cattn_m: F (W_0 x + z), or U x + V z
    cattn_heads: int | None = 1  # cattn_m: heads, with ladders and F; cattn_c: with kernels; None: n_head
    cattn_value_heads: int | None = None  # cattn_m: columns of W^v, in n_embd / n_head; None: n_head
    cattn_content: bool = False  # cattn_m: columns of F hold a linear map of their token too
    cattn_relative: bool = False  # cattn_m: columns of F belong to distances, not to positions
    cattn_proj: bool = False  # cattn_m, cattn_c: a linear map on the output
    cattn_strict: bool = False  # cattn_m: a token does not attend to itself
    synthesizer_proj: bool = True  # synthesizer: a linear map on the output
    bigbird_block: int = 64  # bigbird: tokens in a block
    bigbird_global: int = 1  # bigbird: g, first blocks that every token attends to
    bigbird_window: int = 3  # bigbird: w, odd, blocks around a token's own; future ones drop out
    bigbird_random: int = 3  # bigbird: r, further blocks of the past, drawn for each layer and head
    bigbird_seed: int = 0  # bigbird: what the random blocks are drawn from

    def check(self) -> list[str]:
        """What is wrong, one sentence each."""
        wrong = []
        sizes = "n_layer n_head n_kv_head n_embd block_size vocab_size cf_ladders cf_depth cattn_heads"
        sizes += " cattn_value_heads ffn_hidden expe_width rope_original_max_position_embeddings"
        for key in sizes.split():
            value = getattr(self, key)
            if value is not None and value < 1:
                wrong.append(f"{key} must be at least 1, not {value}")
        for key in ("cf_eps", "cf_floor", "norm_eps", "rope_base", "rope_factor", "rope_low_freq_factor"):
            if not getattr(self, key) > 0:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        if not 0 <= self.dropout < 1:
            wrong.append(f"dropout must be in [0, 1), not {self.dropout}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if get_origin(field.type) is Literal and value not in get_args(field.type):
                wrong.append(_unknown(field.name, value, get_args(field.type)))
        if self.cf_pole_grad != "formula" and (self.cf_pole != "clamp" or self.cf_impl == "ladder"):
            wrong.append(
                f"cf_pole_grad={self.cf_pole_grad} acts with cf_pole=clamp and cf_impl=continuant only"
            )
        if self.cf_pole not in FUSED_POLES and (self.cf_impl == "ladder" or self.cf_backend == "triton"):
            wrong.append(
                f"cf_pole={self.cf_pole} is not there for cf_impl=ladder and cf_backend=triton, but for "
                "cf_impl=continuant in PyTorch"
            )
        if self.cf_impl == "continuant" and self.cf_depth > (most := self._deepest()):
            wrong.append(
                f"cf_depth={self.cf_depth}: continuants of more than {most} partial denominators"
                + (f" with cf_floor={self.cf_floor}" if self._has_floor else "")
                + " are beyond float32's range"
                + ("; cf_impl=ladder has none" if self.cf_pole in FUSED_POLES else "")
            )
        if self.cf_backend == "triton" and (reason := why_not_triton()):
            wrong.append(f"cf_backend=triton {reason}")
        for key, registry in (("attention", ATTENTION), ("ffn", FFN), ("position", POSITION)):
            name = getattr(self, key)
            if name not in registry:
                wrong.append(_unknown(key, name, registry))
            else:
                wrong += getattr(registry[name], "complaints", lambda config: [])(self)
        position, attention = POSITION.get(self.position), ATTENTION.get(self.attention)
        if getattr(position, "needs_queries_and_keys", False) and not has_queries_and_keys(attention):
            wrong.append(
                f"position={self.position} acts on queries and keys, which attention={self.attention} does "
                "not have: take learned, sinusoidal or none"
            )
        return wrong

    def without_effect(self) -> list[str]:
        """Keys that are not at their defaults and that no part of this model reads, as key=value.

        No mistake: overlays and sizes serve several models. But no ablation either.
        """
        ensembles = self.attention == "cattn_m" or self.ffn.startswith("cffn_")
        used = {
            "n_kv_head": has_queries_and_keys(ATTENTION[self.attention]),
            "key_shift": has_queries_and_keys(ATTENTION[self.attention])
            or (self.attention == "cattn_m" and self.cattn_content),
            "ffn_hidden": self.ffn in ("mlp", "swiglu") or _is_glu(self) or _control_has_units(self),
            "gelu_approximation": self.ffn == "mlp",
            "rope_base": self.position == "rope",
            "rope_scaling": self.position == "rope",
            "rope_": self.position == "rope" and self.rope_scaling == "llama3",
            "expe_": self.position in ("expe", "exqpe"),
            "exqpe_": self.position == "exqpe",
            "cf_eps": self.has_ladders and self.cf_pole in ("clamp", "smooth", "soft_clamp"),
            "cf_floor": self.has_ladders and self._has_floor,
            "cf_backend": self.has_ladders or _scores_in_triton(self),
            "cf_ladder": ensembles and self.has_ladders,
            "cf_ladders": ensembles and (self.has_ladders or _rank_of_control(self)),
            "cf_control": _could_have_ladders(self),
            "cf_control_constant": _could_have_ladders(self) and self.cf_control,
            "cf_linear_intercept": self.attention in ("cattn_m", "cattn_u")
            or self.ffn in ("cffn_gated", "cffn_product"),
            "cf_": self.has_ladders,
            "cffn_": self.ffn == "cffn_gated",
            "cattn_": self.attention == "cattn_m",
            "cattn_heads": self.attention in ("cattn_m", "cattn_c"),
            "cattn_proj": self.attention in ("cattn_m", "cattn_c"),
            "synthesizer_": self.attention == "synthesizer",
            "bigbird_": self.attention == "bigbird",
        }
        if self.exqpe_theta_1 is not None and self.exqpe_theta_2 is not None:
            used["expe_theta"] = self.position == "expe"
        idle = []
        for field in dataclasses.fields(ModelConfig):
            value = getattr(self, field.name)
            known = [part for part in used if field.name.startswith(part)]
            if value != field.default and known and not used[max(known, key=len)]:
                idle.append(f"{field.name}={value}")
        return idle

    def length_limits(self) -> list[str]:
        """The parts that know no position from block_size on, as key=name."""
        parts = {"attention": ATTENTION[self.attention], "position": POSITION[self.position]}
        return [
            f"{key}={getattr(self, key)}"
            for key, part in parts.items()
            if not getattr(part, "any_length", False)
        ]

    def _deepest(self) -> int:
        """Partial denominators whose continuant stays below 10^36 for what biases of 1 start with."""
        floor = max(0, self.cf_floor) if self._has_floor else 0  # below 0 is refused elsewhere
        return max(1, int(36 / math.log10(2.4 + floor)))  # a_k + 1, and K_k <= (a_k + 1) K_(k+1)

    @property
    def _has_floor(self) -> bool:
        return self.cf_pole in ("positive", "absolute")

    @property
    def has_ladders(self) -> bool:
        return _could_have_ladders(self) and not self.cf_control

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: a multiple of 64 suits the matrix units."""
        return (self.vocab_size + 63) // 64 * 64

    @staticmethod
    def of_today(saved: dict) -> dict:
        """A saved configuration in the keys of today.

        One without `cf_intercept` was saved before the ladders' intercepts were a key, when cffn_gate=self
        stood for U x + V z(h). Raises ValueError where today's code has no such model.
        """
        before = "cf_intercept" not in saved
        skips = ("self", "self_skip") if before else ("self_skip",)
        if saved.get("ffn") == "cffn_gated" and saved.get("cffn_gate", "self") in skips:
            last = LAST_BEFORE_INTERCEPTS if before else LAST_WITH_SELF_SKIP
            raise ValueError(
                f"cffn_gate={saved.get('cffn_gate', 'self')} was y = U x + V z(h) when this was saved, and "
                f"self is U h + V z(h) now: commit {last} is the last that computes that model"
            )
        if not before:
            return saved
        if saved.get("position") == "sinusoidal":
            raise ValueError(
                "position=sinusoidal did not multiply the embedding by sqrt(n_embd) when this was saved, "
                f"and does now: commit {LAST_BEFORE_INTERCEPTS} is the last that computes that model"
            )
        drawn = saved.get("cf_init", "bias1")
        values = {**saved, "cf_init": "fan_in" if drawn == "bias1" else drawn}
        values["cf_intercept"] = "none" if drawn == "nanogpt" else "one"
        return values


def _unknown(key, name, known) -> str:
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{key} must be one of {', '.join(known)}, not {name!r}{hint}"


def _could_have_ladders(config) -> bool:
    chosen = (ATTENTION[config.attention], FFN[config.ffn])
    return any(getattr(layer, "has_ladders", False) for layer in chosen)


def _scores_in_triton(config) -> bool:
    by_position_with_content = config.cattn_content and not config.cattn_relative
    wide = config.cattn_scores == "collapsed"
    return config.attention == "cattn_m" and not by_position_with_content and not wide


def _is_glu(config) -> bool:
    return config.ffn == "cffn_gated" and config.cffn_gate.startswith("glu")


def _control_has_units(config) -> bool:
    return config.ffn == "cffn_added" and config.cf_control


def _rank_of_control(config) -> bool:
    """Whether the number of ladders is a rank too, which remains where there are no ladders."""
    ranks = config.attention == "cattn_m" and (config.cattn_scores == "rank" or config.cf_control_constant)
    return ranks or (config.ffn == "cffn_gated" and config.cffn_gate == "glu")


def has_queries_and_keys(attention) -> bool:
    return getattr(attention, "queries_and_keys", False)


def model_config(config) -> ModelConfig:
    """The model's share of a script's config (or of a saved dict, whose cf_backend is the choice of the
    machine it was saved on and becomes auto, and which has the default of what it does not name yet).
    Raises KeyError where it cannot be one of ours, ValueError where today's code has no such model.
    """
    if isinstance(config, dict):
        values = {**ModelConfig.of_today(config), "cf_backend": "auto"}
    else:
        values = dataclasses.asdict(config)
    if missing := {"n_layer", "n_head", "n_embd", "block_size", "attention", "ffn"} - values.keys():
        raise KeyError(f"no config of ours: it lacks {', '.join(sorted(missing))}")
    return ModelConfig(**{f.name: values.get(f.name, f.default) for f in dataclasses.fields(ModelConfig)})
