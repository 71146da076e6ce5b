"""Whether the parts of a model see tokens that they must not, and decode what they compute, tried before
every training run.

A token mixer that sees later tokens reaches a low loss, in validation too, and has learned nothing. One
whose cached steps differ from its forward pass would write the text of another model.
"""

from collections.abc import Callable

import torch

from layers.cache import in_use
from layers.protocol import Drawn, Part, built
from models.architecture import REGISTRIES, ModelConfig
from training.endings import TrainingError

WINDOW = 64  # tokens, if the model has so many
SCALE = 0.3  # of the inputs: large scores would hide all but one token from a softmax
NOISE = 0.02  # added to constant weights: those of 0 could hide what a module sees
ROUNDING = 1e-5  # of the largest output: causal convolutions by Fourier transforms change that much
DECODED = 1e-3  # of the largest output: what a cached step may differ from the forward pass
PROMPT, STEPS = 7, 3  # tokens at once, and then one by one
BATCH = PROMPT + 1  # more than the prompt: a state is found out that is cut as if it had rows for tokens


CPU = torch.device("cpu")


def check(config: ModelConfig, device: torch.device = CPU) -> list[str]:
    """Runs each part of the model by itself, with random weights, twice with one token changed: on the CPU,
    or where it does not run there, on this device.

    Returns a warning for each part that runs on neither. Raises TrainingError, naming the part, where
    an output changes that must not (one before the changed token, in a channel mixer any but its own), and
    where an attention's `decode` differs from its `forward`. The random numbers of the process stay as they
    were.
    """
    warnings = []
    kinds = [(key, name) for key in config.parts() for name in dict.fromkeys(config.names(key))]
    for key, name in kinds:
        cls = REGISTRIES[key][name]
        name = f"{key}={name} ({cls.__name__})"
        if key == "attention" and cls.queries_and_keys:
            name += f" with position={config.position}"
        for place in dict.fromkeys((CPU, device)):
            try:
                seen = _seen(config, key, cls, place)
                break
            except Exception as error:  # of a module's own code: whatever it is, nothing is known of it
                reason = (str(error).splitlines() or [""])[0]
                failed = f"it does not run on {place} ({type(error).__name__}: {reason})"
        else:
            warnings.append(f"warning: {name} was not checked for causality: {failed}")
            continue
        if seen and key == "ffn":
            raise TrainingError(
                f"{name} mixes tokens: the output of token {seen[0]} changes with token {seen[1]}, and a "
                "channel mixer must compute each output from its own token alone, in training and in "
                "decoding; mend its forward"
            )
        if seen:
            raise TrainingError(
                f"{name} is not causal: the output of token {seen[0]} changes with token {seen[1]}, which "
                "comes later, so that its loss would mean nothing; mend its forward (a mask, a shift, a "
                "mean over all tokens)"
            )
        if key == "attention" and (differs := _decodes_otherwise(config, cls, place)):
            raise TrainingError(
                f"{name}: steps with a cache {differs}, so that it would write the text of another model, "
                "or none; mend its decode, new_cache or cache_rows (a cache may hold the numbers of an "
                "earlier text)"
            )
    return warnings


@torch.no_grad()
def _seen(config: ModelConfig, key: str, cls: type[Part], device: torch.device) -> tuple[int, int] | None:
    """(a token, one that its output must not depend on and does) of a part, or None."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        compute = _computation(config, key, cls, device)
        try:
            return _compare(compute, key, min(WINDOW, config.block_size), config.n_embd, device)
        except Exception:  # some modules take block_size tokens and no other number
            return _compare(compute, key, config.block_size, config.n_embd, device)


@torch.no_grad()
def _decodes_otherwise(config: ModelConfig, cls: type[Part], device: torch.device) -> str:
    """How an attention's outputs with a cache, which holds what another text left, are not those of its
    forward pass; "" where they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        attention, hooks = _attention(config, cls, device)
        length = min(PROMPT + STEPS, config.block_size)
        x = (SCALE * torch.randn(BATCH, length, config.n_embd)).to(device)
        try:
            expected = _computation(config, "attention", cls, device, (attention, hooks))(x)
        except Exception:  # some modules take block_size tokens and no other number
            return ""
        cache = attention.new_cache(BATCH, length, x.device, x.dtype)
        for held in cache:
            held.fill_(3.0)
        found, first = [], 0
        for piece in x.split([length - STEPS, *[1] * STEPS] if length > STEPS else [length], dim=1):
            pos = torch.arange(first, first := first + piece.shape[1], device=device)
            rows = in_use(cache, first, attention.cache_rows)
            try:
                found.append(attention.decode(piece, pos, rows, **hooks(pos)))
            except Exception as error:
                return f"fail ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        largest = DECODED * expected.nan_to_num().abs().max()
        if (whole := torch.cat(found, 1)).shape == expected.shape and torch.isclose(
            whole, expected, rtol=0, atol=largest, equal_nan=True
        ).all():
            return ""
        return "do not give what forward gives"


def _attention(config: ModelConfig, cls: type[Part], device: torch.device) -> tuple[Part, Callable]:
    """(an attention with random weights, pos -> what its forward and decode get of the position)"""
    layer = next(n for n in range(config.n_layer) if config.of_layer("attention", n) is cls)
    attention = _drawn(cls, config, layer).to(device)
    if not attention.queries_and_keys:
        return attention, lambda pos: {}
    position = _drawn(*config.parts()["position"], config).to(device)
    return attention, lambda pos: {"position": position.at(pos), "layer": layer}


def _computation(
    config: ModelConfig, key: str, cls: type[Part], device: torch.device, made: tuple | None = None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """x: [1, T, C] -> [1, T, C], as the part computes it; an attention, `made` by `_attention`, with the
    hooks of the position.
    """
    if key == "ffn":
        return _drawn(cls, config).to(device)
    if key == "position":
        position = _drawn(cls, config).to(device)
        return lambda x: position.embed(x, torch.arange(x.shape[1], device=device))
    attention, hooks = made or _attention(config, cls, device)

    def compute(x):
        pos = torch.arange(x.shape[1], device=device)
        given = hooks(pos)
        return attention(x, pos=pos, **given) if given else attention(x)

    return compute


def _drawn(cls: type[Part], *built_from) -> Part:
    """A part on the CPU, in evaluation mode, no weights of which are all alike."""
    part = built(cls, *built_from).eval()
    for module in part.modules():
        if isinstance(module, Drawn) and module.draws():
            module.init_weights()
    for parameter in part.parameters():
        if (parameter == parameter.flatten()[0]).all():
            parameter.add_(torch.randn_like(parameter), alpha=NOISE)
    return part


def _compare(
    compute: Callable, key: str, length: int, width: int, device: torch.device
) -> tuple[int, int] | None:
    """As `_seen`, for an input of [1, length, width]."""
    place = length // 2 if key == "ffn" else length - 1
    x = SCALE * torch.randn(1, length, width)
    changed = x.clone()
    changed[:, place] = SCALE * torch.randn(width)
    x, changed = x.to(device), changed.to(device)
    before, after = compute(x), compute(changed)
    rounding = ROUNDING * before.nan_to_num().abs().max().item()
    moved = ~torch.isclose(after, before, rtol=0, atol=rounding, equal_nan=True).all(-1)[0]
    moved[place] = False
    return (int(moved.nonzero()[-1]), place) if moved.any() else None
