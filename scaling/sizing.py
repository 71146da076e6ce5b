"""A family's model of a given size: a config and a number of parameters -> depth, width and heads.

The size counts parameters without token and position embeddings, as scaling laws do. Columns that an
attention has for each position (cattn_m, cattn_u, synthesizer) are parameters of the attention and count.

The rule is the same for every family. A model keeps its config's aspect ratio (width / layers) and its
head width (width / heads), as far as whole numbers allow. Of the shapes within TOLERANCE of the target, it
has the one with the lowest cost: how far the logarithms of aspect ratio and head width are from the
config's, and a little for a width that divides by no large power of two, which computes more slowly.

What is proportional to the width or to the heads scales with them: ffn_hidden, n_kv_head, cattn_heads,
cattn_value_heads. 1 stays 1 (multi-query attention), None stays None. All other keys stay: ladders, depths,
block_size.

The number of parameters is not rounded to the target: fits use the exact count. So a size that is 3 % off
costs nothing but a slightly other place on the curve.
"""

import dataclasses
import functools
import math
import re
from dataclasses import dataclass

from models.architecture import ModelConfig
from models.kinds import parameter_counts, without_embeddings
from reports.plural import counted

TOLERANCE = 0.05  # of the target, for the number of parameters
# widths are multiples of one of these, at a cost; an even head width suits rotations
STEPS = {64: 0.0, 32: 0.02, 16: 0.05, 8: 0.1, 4: 0.2, 2: 0.4}
BENT = 1.5  # factor between the depths that are tried and the one that keeps the aspect ratio
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Size:
    """A target: a number of parameters, and how many of the seeds train there (None: all)."""

    target: int
    seeds: int | None = None

    @property
    def label(self) -> str:
        """0.125M, 1M, 1.5B: the same for all ways to write a number."""
        unit = next((u for u, least in (("B", 1e9), ("M", 1e5), ("K", 1e3)) if self.target >= least), "")
        return f"{self.target / UNITS.get(unit, 1):.6g}{unit}"


@dataclass
class Shape:
    """A family's model at a size, with its number of parameters without embeddings."""

    model: ModelConfig
    body: int


def parse(text: str) -> Size:
    """`0.25M`, `1.5B`, `250000`; `1M:2` trains with the first two seeds. Raises ValueError."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([KMB]?)(?::(\d+))?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is no size: write 250K, 0.25M or 1.5B, or 1M:2 for two of the seeds")
    target = round(float(found[1]) * UNITS.get(found[2].upper(), 1))
    if target < 1 or int(found[3] or 1) < 1:
        raise ValueError(f"{text!r}: sizes and numbers of seeds must be above 0")
    return Size(target, found[3] and int(found[3]))


def body(config: ModelConfig) -> int:
    """Parameters without embeddings; the vocabulary need not be known."""
    return without_embeddings(parameter_counts(dataclasses.replace(config, vocab_size=1)))


def shape(base: ModelConfig, target: int) -> ModelConfig:
    """The family's model with about `target` parameters without embeddings; see the head of this file.

    Raises ValueError where there is no sound one, with the nearest size or the first complaint.
    """
    found = sorted(_shapes(base, target), key=lambda pair: pair[0])
    complaint = None
    for _, model in found[:50]:
        if not (wrong := model.check()):
            return model
        complaint = complaint or "; ".join(wrong)
    if complaint:
        raise ValueError(f"no model of about {target:,} parameters is sound: {complaint}")
    nearest = min((_near(base, layers, target, 2) for layers in range(1, 4)), key=lambda m: _off(m, target))
    raise ValueError(
        f"no model is within {TOLERANCE:.0%} of {target:,} parameters without embeddings: the nearest has "
        f"{body(nearest):,} ({counted(nearest.n_layer, 'layer')} of width {nearest.n_embd})"
    )


def _shapes(base: ModelConfig, target: int) -> list[tuple[tuple, ModelConfig]]:
    """(cost, model) of all shapes that are near enough; of equal costs, the flattest is best."""
    aspect, head = base.n_embd / base.n_layer, base.n_embd / base.n_head
    ranked = []
    for layers in _depths(base, target, aspect):
        for step, cost in STEPS.items():
            model = _near(base, layers, target, step)
            if _off(model, target) > TOLERANCE:
                continue
            cost += abs(math.log(model.n_embd / model.n_layer / aspect))
            cost += abs(math.log(model.n_embd / model.n_head / head))
            ranked.append(((cost, layers), model))
    return ranked


def _depths(base: ModelConfig, target: int, aspect: float) -> range:
    """The depths around the one whose aspect ratio is the config's; multiples of a pattern of mixers."""
    low, high = 1, 2

    def wide(layers):
        return _near(base, layers, target, 2).n_embd / layers > aspect

    while wide(high):
        low, high = high, 2 * high
    while high - low > 1:  # the width falls with the depth
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    first = max(1, round(max(1, int(low / BENT)) / base.period)) * base.period
    return range(first, max(int(high * BENT), first) + 1, base.period)


def _off(model: ModelConfig, target: int) -> float:
    return abs(body(model) / target - 1)


def _near(base: ModelConfig, layers: int, target: int, step: int) -> ModelConfig:
    """The model of so many layers whose width is a multiple of `step` and whose size is nearest."""

    def at(count):
        width = count * step
        return resized(base, layers, width, _heads(width, base.n_embd / base.n_head))

    low, high = 1, 2
    while body(at(high)) < target:
        low, high = high, 2 * high
    while high - low > 1:  # the size grows with the width
        middle = (low + high) // 2
        low, high = (middle, high) if body(at(middle)) < target else (low, middle)
    return min((at(low), at(high)), key=lambda model: _off(model, target))


@functools.cache
def _heads(width: int, head: float) -> int:
    """The number of heads that divides the width into even parts closest to `head` columns."""
    counts = [count for count in range(1, width // 2 + 1) if width % (2 * count) == 0]
    return min(counts, key=lambda count: abs(math.log(width / count / head)))


def resized(base: ModelConfig, layers: int, width: int, heads: int) -> ModelConfig:
    """The config with another depth, width and number of heads, and all that is proportional to them."""
    values = {"n_layer": layers, "n_embd": width, "n_head": heads}
    if base.ffn_hidden is not None:
        values["ffn_hidden"] = max(1, round(base.ffn_hidden * width / base.n_embd))
    for key in ("n_kv_head", "cattn_heads", "cattn_value_heads"):
        value = getattr(base, key)
        if value is not None and value > 1:
            values[key] = _divisor(heads, value * heads / base.n_head)
    return dataclasses.replace(base, **values)


def _divisor(number: int, near: float) -> int:
    """The divisor of a number that is closest to `near`."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))
