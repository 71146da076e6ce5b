"""The keys of a model, and which of them go together."""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import config_keys
from config_keys import FROM_HERE, AtLeast, Below, Count, CountOrNone, Fixed, Named, Natural, Positive
from kernels.backend import why_not_triton
from layers import ATTENTION, FFN, POSITION, saffu
from layers.protocol import DECLARE, ChannelMixer, Part, TokenMixer

REGISTRIES = {"attention": ATTENTION, "ffn": FFN, "position": POSITION}
BASES = {"attention": TokenMixer, "ffn": ChannelMixer, "position": Part}
SHARED = ("model", "block_size", "vocab_size")  # keys of every kind of model
CUTS = Fixed("the model's positions and the cutting of the data depend on it")


@dataclass
class Core:
    """What no part needs to name."""

    # model
    model: Literal["gpt", "saffu"] = "gpt"  # gpt: blocks on a residual stream; saffu: see docs/saffu.md
    n_layer: Count = 12  # blocks
    encoder_layers: Natural = 0  # blocks that read a source, seen whole, for pairs; 0: no encoder
    n_head: Count = 12  # heads of softmax, sliding_window, synthesizer and bigbird
    n_embd: Count = 768  # width of the residual stream
    block_size: Annotated[Count, CUTS] = 1024  # longest sequence, in tokens
    vocab_size: CountOrNone = None  # tokens in the vocabulary; None: that of the data set
    bias: bool = False  # biases in the linear layers and layer norms of the Transformer
    dropout: Annotated[float, AtLeast(0), Below(1), FROM_HERE] = 0.0  # share dropped in training
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"  # before each mixer and the head
    norm_eps: Positive = 1e-5  # added to the variance
    tie_embeddings: bool = True  # the head shares its matrix with the embedding
    value_embeddings: bool = False  # in every second layer from the last on: a table that adds to v
    logit_softcap: Annotated[float, AtLeast(0)] = 0.0  # c of logits c tanh(logits / c); 0: none
    # attention and feed-forward: several names with commas between them repeat over the layers
    attention: Annotated[str, Named(ATTENTION, pattern=True)] = "softmax"  # token mixer
    ffn: Annotated[str, Named(FFN, pattern=True)] = "mlp"  # channel mixer
    position: Annotated[str, Named(POSITION)] = "learned"  # positional encoding


def declared() -> list[type]:
    """The classes of keys of all parts, but for those that others of them inherit from and those that are
    no dataclasses of keys.
    """
    parts = [part for registry in REGISTRIES.values() for part in registry.values()]
    of_parts = [getattr(part, "Keys", None) for part in parts]
    sound = [cls for cls in of_parts if cls is not None and not config_keys.wrong_declarations(cls)]
    found = dict.fromkeys((Core, *sound, saffu.Keys))
    return [cls for cls in found if not any(cls in other.__mro__[1:] for other in found)]


@dataclass
class ModelConfig(*reversed(declared())):
    """The architecture, in flat keys: those of the whole model and of all parts."""

    def check(self, try_out: bool = True) -> list[str]:
        """What is wrong, one sentence each. try_out: also run modules whose counts have no closed form."""
        wrong = config_keys.declared_twice(type(self))
        wrong += config_keys.mistakes(self) + self._keys_of_another_model()
        if self.model == "saffu":
            return wrong + saffu.mistakes(self)
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
                    unknown.append(config_keys.one_of(key, name, registry))
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
                    f"{key}={getattr(self, key)} names {len(names)} layers, and n_layer={self.n_layer}: "
                    f"take --n_layer={len(names)} or more"
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
        if self.value_embeddings and not self.value_layers():
            able = [name for name, one in ATTENTION.items() if one.takes_values]
            wrong.append(
                "value_embeddings=True acts in every second layer from the last on, and there "
                f"attention={self.attention} has no {' or '.join(able)}: leave it out"
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
        given = {f.name for f in dataclasses.fields(ModelConfig) if getattr(self, f.name) != f.default}
        other, of_saffu = "gpt" if self.model == "saffu" else "saffu", {*config_keys.names(saffu.Keys)}
        foreign = given - {*SHARED} - of_saffu if self.model == "saffu" else given & of_saffu
        return [
            f"{key}={getattr(self, key)} is a key of model={other}, and this is model={self.model}: leave "
            f"it out, or take --model={other}"
            for key in sorted(foreign)
        ]

    def _mistakes_of(self, key: str, name: str) -> list[str]:
        """What a part says against this config, and mistakes in what its class says."""
        part = REGISTRIES[key][name]
        if not issubclass(part, base := BASES[key]):
            return [f"{key}={name}: {part.__name__} must derive from {base.__name__}"]
        if wrong := config_keys.wrong_declarations(part.Keys) if part.Keys else []:
            return wrong
        if unknown := {*config_keys.names(part.Keys)} - {*config_keys.names(ModelConfig)}:
            names = ", ".join(sorted(unknown))
            return [
                f"{part.__name__}.Keys declares {names}, which the config lacks: name {part.__name__} in a "
                "registry of layers/__init__.py"
            ]
        try:
            found = part.validate(self)
        except AttributeError as error:
            if error.obj is not self:
                raise
            return [f"{part.__name__}.validate reads config.{error.name}: no config key{DECLARE}"]
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

    def value_layers(self) -> list[int]:
        """The layers with value embeddings: every second from the last on, where attention takes them."""
        layers = range(self.n_layer - 1, -1, -2) if self.value_embeddings else ()
        return [n for n in layers if getattr(self.of_layer("attention", n), "takes_values", False)]

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
            idle = tuple(f"{u}_" for u in ("saffu_block", "saffu_radius") if getattr(self, u) is None)
            return {*SHARED, *(key for key in config_keys.names(saffu.Keys) if not key.startswith(idle))}
        parts = itertools.chain.from_iterable(self.parts().values())
        return {*config_keys.names(Core), *(key for part in parts for key in part.keys_read(self))}

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
    def of_this_version(cls, saved: dict, commit: str | None = None) -> dict:
        """A saved configuration as it is. Raises ValueError where another version of this code has saved
        it: a key more or less may be another model. commit: of that version, if it is known.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        there = [f"no {key}" for key in sorted(known - saved.keys())]
        there += [f"{key}={saved[key]!r}" for key in sorted(saved.keys() - known)]
        if there:
            more = f" and {len(there) - 3} more" if len(there) > 3 else ""
            raise ValueError(
                f"it was saved before a key was added or removed, with {', '.join(there[:3])}{more}: train "
                f"it again, or use the code that saved it{f', of commit {commit}' if commit else ''}"
            )
        return saved


def model_config(config) -> ModelConfig:
    """The model's share of a script's config, or of a saved dict, whose cf_backend is the choice of the
    machine it was saved on and becomes auto. Raises KeyError where the dict lacks a key.
    """
    values = {**config, "cf_backend": "auto"} if isinstance(config, dict) else dataclasses.asdict(config)
    return ModelConfig(**{field.name: values[field.name] for field in dataclasses.fields(ModelConfig)})
