"""The methods that token mixers and channel mixers must have, and defaults for all others.

A token mixer (`attention` in a config) must have `forward(x)`: [B, T, C] -> [B, T, C]. No output may depend
on a later token. A channel mixer (`ffn`) must have `forward(x)`: [B, T, C] -> [B, T, C]. Each output
depends on its own token alone. Everything else has a default here: a module of your own is one class and
one line in `layers/__init__.py`. docs/extending.md walks through an example.
"""

import contextlib
import re
import sys
import textwrap
import traceback

import torch
from torch import nn

from config_keys import names
from layers.cache import update_cache

DECLARE = "; declare it in the class's Keys, or mend the name"


class Drawn(nn.Module):
    """A module that may initialise its own parameters.

    `GPT.init_weights` first initialises Linear, Embedding and norm layers as GPT-2 does. It then calls
    `init_weights` of every module that overrides it. All other parameters and buffers keep the values that
    the constructor gave them, for example nn.Parameter(torch.ones(C)).
    """

    def init_weights(self):
        """Initialises the parameters and buffers of this module itself, not those of its submodules."""

    @classmethod
    def draws(cls) -> bool:
        return cls.init_weights is not Drawn.init_weights


class Part(Drawn):
    """What mixers and positional encodings share: each is chosen by a config key."""

    Keys: type | None = None  # dataclass of the config keys that it reads, beside those of all models

    def __init__(self, *built_from):
        """built_from: the arguments of the constructor."""
        super().__init__()
        self.built_from = built_from

    @classmethod
    def idle_keys(cls, config) -> set[str]:
        """The keys of `Keys` that have no effect with this config."""
        return set()

    @classmethod
    def keys_read(cls, config) -> set[str]:
        """The keys of `Keys` that have an effect with this config."""
        return {*names(cls.Keys)} - cls.idle_keys(config)

    @classmethod
    def validate(cls, config) -> list[str]:
        """The mistakes in the config, one sentence each."""
        return []

    @classmethod
    def cropped(cls, name: str, weight: torch.Tensor, config, block_size: int) -> torch.Tensor:
        """Crops the named weight of a part built from `config` to a smaller block_size."""
        return weight


class Mixer(Part):
    """What token mixers and channel mixers share."""

    has_ladders = False  # whether it has continued fractions, which a schedule may treat by depth

    def residual_outputs(self) -> list[nn.Linear]:
        """The linear maps that write to the residual stream. Their weights are initialised smaller."""
        return []

    def undecayed(self) -> list[nn.Parameter]:
        """Parameters of two or more dimensions that are not matrices and get no weight decay."""
        return []

    @classmethod
    def parameter_count(cls, config) -> int:
        """Parameters of one layer. Default: counts a layer on the meta device; a closed form is faster."""
        return sum(parameter.numel() for parameter in _on_meta(cls, config).parameters())

    @classmethod
    def flops_per_token(cls, config, context: int) -> int:
        """Forward FLOPs of the matrix products of one layer, for one token of `context`.

        Default: PyTorch counts them in a forward pass on the meta device. It knows matrix products,
        convolutions and fused attention.
        """
        return _flops_on_meta(_on_meta(cls, config), context, config)

    @classmethod
    def try_out(cls, config):
        """Raises ValueError where a layer cannot be built on the meta device, or the default counts fail:
        with the class, the line and what to do.
        """
        layer = _on_meta(cls, config)
        if cls.counts_flops():
            _forward_on_meta(layer, config.block_size, config)

    @classmethod
    def counts_itself(cls) -> bool:
        """Whether it has a parameter_count of its own."""
        return cls.parameter_count.__func__ is not Mixer.parameter_count.__func__

    @classmethod
    def counts_flops(cls) -> bool:
        """Whether its FLOPs are counted by PyTorch, because it has no flops_per_token of its own."""
        return cls.flops_per_token.__func__ is Mixer.flops_per_token.__func__


class TokenMixer(Mixer):
    """A token mixer is built from (config, layer), where layer is the number of its block.

    If `queries_and_keys` is true, forward and decode also get the model's positional encoding as
    `position`, and `layer`. forward also gets `pos` ([T] int64), the positions of the tokens. See
    layers/attention.py.
    """

    any_length = False  # whether it takes more tokens than block_size
    bidirectional = False  # whether an encoder can have it: encode() then lets all tokens see each other
    queries_and_keys = False  # whether a positional encoding may act on its queries and keys
    takes_values = False  # whether `forward` and `decode` take `values`, to be added to its own
    cache_rows: int | None = None  # tensors of its cache with rows per token, others are a state; None: all
    same_weights: tuple[str, ...] = ()  # names of token mixers whose weights it can load

    def __init__(self, config, layer: int = 0):
        super().__init__(config, layer)
        self.n_embd = config.n_embd

    def new_cache(self, batch: int, length: int, device, dtype) -> tuple[torch.Tensor, ...]:
        """The cache of `batch` sequences of up to `length` tokens: tensors [B, .., length, width], and a
        state. layers/cache.py describes them. Default: the inputs, [B, length, C].
        """
        return (torch.empty(batch, length, self.n_embd, device=device, dtype=dtype),)

    def decode(self, x: torch.Tensor, pos: torch.Tensor, cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """x: [B, T, C] at pos ([T] int64), following the tokens in the cache -> [B, T, C].

        Default: every step recomputes the whole past.
        """
        return self(update_cache(*cache, x, pos).to(x.dtype))[:, pos]

    @classmethod
    def cached_values(cls, config) -> int:
        """Numbers per past token in the cache of one layer."""
        return config.n_embd


class ChannelMixer(Mixer):
    """A channel mixer is built from the config."""

    def __init__(self, config):
        super().__init__(config)


class Layers:
    """The layers of a kind of mixer that have these numbers, to be counted: as the class says, or where it
    has the default, each as it is built, because it may depend on its number.
    """

    def __init__(self, cls: type[Mixer], config, numbers: list[int]):
        self.cls, self.config, self.numbers = cls, config, numbers

    def parameters(self) -> int:
        if self.cls.counts_itself():
            return len(self.numbers) * self.cls.parameter_count(self.config)
        return sum(n * sum(p.numel() for p in layer.parameters()) for layer, n in self._built())

    def flops(self, context: int) -> int:
        """Forward FLOPs of a token of `context`."""
        if not self.cls.counts_flops():
            return len(self.numbers) * self.cls.flops_per_token(self.config, context)
        return sum(n * _flops_on_meta(layer, context, self.config) for layer, n in self._built())

    def cached_values(self) -> int:
        """Numbers per past token in their caches."""
        if self.cls.cached_values.__func__ is not TokenMixer.cached_values.__func__:
            return len(self.numbers) * self.cls.cached_values(self.config)

        def numbers(layer, length):
            return sum(t.numel() for t in layer.new_cache(1, length, torch.device("meta"), torch.float32))

        return sum(n * (numbers(layer, 2) - numbers(layer, 1)) for layer, n in self._built())

    def _built(self) -> list[tuple[Mixer, int]]:
        """The layers on the meta device, of those made of the same one and their number."""
        if not _is_attention(self.cls):
            return [(_on_meta(self.cls, self.config), len(self.numbers))]
        kinds: dict[tuple, list] = {}
        for number in self.numbers:
            layer = _on_meta(self.cls, self.config, number)
            made_of = (
                repr(layer),
                *((name, p.shape) for name, p in layer.named_parameters()),
                *_plain(layer),
            )
            kinds.setdefault(made_of, []).append(layer)
        return [(layers[0], len(layers)) for layers in kinds.values()]


def _plain(layer: nn.Module) -> list[tuple[str, object]]:
    """Numbers and texts that a layer's modules keep: a count may depend on them."""
    modules = layer.named_modules()
    values = ((f"{name}.{key}", value) for name, module in modules for key, value in vars(module).items())
    return [(key, value) for key, value in values if isinstance(value, int | float | str)]


def has_nan(tensor: torch.Tensor) -> bool:
    """min() passes NaN on, and needs no memory; isnan() needs a quarter of the tensor's."""
    return tensor.numel() > 0 and bool(tensor.min().isnan())


def keep_constructor_values(part: Part):
    """Restores constructor values: of parameters that are NaN, and of buffers that no `init_weights` fills.

    A model is built on the meta device, so the values of its constructors are lost. They are taken from a
    newly built module. part: a mixer or a positional encoding. A parameter that its constructor leaves
    uninitialised stays NaN.
    """
    lost = {name: parameter for name, parameter in part.named_parameters() if has_nan(parameter)}
    for prefix, module in part.named_modules():
        if not (isinstance(module, Drawn) and module.draws()):
            lost |= {f"{prefix}.{name}".lstrip("."): b for name, b in module.named_buffers(recurse=False)}
    if not lost:
        return
    with _empty_is_nan(), torch.no_grad():
        new = type(part)(*part.built_from)
        values = dict(new.named_parameters()) | dict(new.named_buffers())
        for name, tensor in lost.items():
            tensor.copy_(values[name])


@contextlib.contextmanager
def _empty_is_nan():
    """Fills newly allocated, uninitialised memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def built(cls: type[Part], *built_from) -> Part:
    """cls(*built_from). Raises ValueError, naming the class and the line, where its __init__ fails or never
    calls that of its base class.
    """
    arguments = "config, layer" if _is_attention(cls) else "config"
    begin = f"begin its __init__ with super().__init__({arguments})"
    try:
        part = cls(*built_from)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        said, advice = str(error), ""
        if re.search(r"Module.__init__\(\) call|__init__\(\) (missing|takes)", said):
            advice = f": {begin}"
        elif "meta tensor" in said:
            advice = (
                ": the constructor runs on the meta device, where tensors have no values; compute with "
                "math or numpy there, or draw them in init_weights"
            )
        if isinstance(error, AttributeError) and error.obj is built_from[0]:
            advice = DECLARE
        raise ValueError(f"{cls.__name__} cannot be built ({_at_fault(cls, error)}){advice}") from error
    if not hasattr(part, "built_from"):
        raise ValueError(f"{cls.__name__} cannot be built: {begin}")
    for module in part.modules():
        _check_attributes(cls, module)
    for method in ("residual_outputs", "undecayed"):
        if hasattr(part, method) and not isinstance(found := getattr(part, method)(), list | tuple):
            what = type(found).__name__
            raise ValueError(f"{cls.__name__}.{method} must return a list, such as [self.down], not {what}")
    return part


def _check_attributes(cls: type[Part], module: nn.Module):
    """Raises ValueError, naming the attribute, for tensors and modules that PyTorch does not know of."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            raise ValueError(
                f"{cls.__name__}: self.{name} is a tensor that PyTorch would neither train, save nor move: "
                f'make it nn.Parameter(...), or self.register_buffer("{name}", ...)'
            )
        inside = value.values() if isinstance(value, dict) else value
        if name.startswith("_") or not isinstance(value, list | tuple | dict):
            continue
        if any(isinstance(one, nn.Module | nn.Parameter) for one in inside):
            raise ValueError(
                f"{cls.__name__}: self.{name} is a {type(value).__name__} of modules or parameters, which "
                "PyTorch would neither train, save nor move: use nn.ModuleList, nn.ModuleDict or "
                "nn.ParameterList"
            )


def _is_attention(cls: type[Part]) -> bool:
    return issubclass(cls, TokenMixer)


def _on_meta(cls, config, block: int = 0):
    with torch.device("meta"):
        return built(cls, config, block) if _is_attention(cls) else built(cls, config)


def _flops_on_meta(layer: Mixer, context: int, config) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    with FlopCounterMode(display=False) as counter:
        _forward_on_meta(layer, context, config)
    return counter.get_total_flops() // context


def _forward_on_meta(layer: Mixer, context: int, config):
    """Raises ValueError, naming the class and the line, where forward fails or returns another shape."""
    cls, x = type(layer), torch.empty(1, context, config.n_embd, device="meta")
    try:
        y = layer.eval()(x)
    except Exception as error:
        advice = "mend it, or, where it needs a GPU, define flops_per_token"
        if "meta" in str(error).lower():
            advice = (
                "read no value (no .item(), int(), if or mask of a tensor) and make new tensors on "
                "x.device, or define flops_per_token"
            )
        raise ValueError(
            f"{cls.__name__}.forward fails ({_at_fault(cls, error)}) on the meta device, where its FLOPs "
            f"are counted and tensors have no values: {advice}"
        ) from error
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        found = list(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
        raise ValueError(
            f"{cls.__name__}.forward must return the shape of its input, [B, T, C]: for {list(x.shape)} it "
            f"returns {found}"
        )


def _at_fault(cls: type, error: Exception) -> str:
    """The line of the class's file that an error comes from, and the error, for a message."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"{cls.__module__.replace('.', '/')}.py, line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {textwrap.shorten(str(error), 160)}"
