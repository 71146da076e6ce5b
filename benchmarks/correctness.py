"""Every kernel against its oracle at awkward shapes: lengths that no tile divides, single tokens, ranks and
widths from the smallest to the largest.

A kernel that is wrong anywhere here is not timed, and models that would use it take another backend.
"""

import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks import operators
from benchmarks.forms import GATE, Forms
from benchmarks.operators import Case, attention, fraction, loss, randoms, triangular
from benchmarks.worker import told
from kernels.continued_fraction import continued_fraction, denominator
from kernels.embedding import embedding
from kernels.triangular import packed_size, unpack_lower, unpack_lower_naive

EPS = 0.3
# batch, heads, length, rank, width of all heads
NARROW = [
    *((2, 1, 37, 7, 32), (1, 2, 1, 3, 64), (1, 3, 130, 1, 48), (2, 2, 257, 32, 96)),
    *((1, 1, 300, 7, 1600), (1, 12, 1000, 7, 768)),
]
WIDE = [
    (2, 1, 37, 19, 8),
    (1, 3, 130, 33, 48),
    (1, 1, 1, 9, 16),
    (1, 1, 300, 775, 768),
    (2, 1, 257, 167, 160),
]
KINDS = {
    "by position": {},
    "by position, strict": {"strict": True},
    "by distance": {"relative": True},
    "by distance, strict": {"relative": True, "strict": True},
    "by position with content": {"content": True},
    "by distance with content": {"relative": True, "content": True},
}
FRACTIONS = [(1, 1, 1), (130, 2, 7), (33, 3, 70), (1025, 3, 7), (517, 7, 7), (64, 8, 1), (65, 16, 3)]
FEW = 2  # shapes of each kernel in a quick check


def awkward(device: torch.device, quick: bool) -> dict[str, dict[str, Callable[[], Case]]]:
    """{kernel: {what is compared: function that makes the case}}"""
    code = operators.Code.on(device)
    many = slice(FEW if quick else None)

    def size(shape):
        return "x".join(map(str, shape))

    def all_of(build, shapes, kinds):
        return {
            ", ".join(filter(None, (kind, size(shape)))): functools.partial(build, shape, **keys)
            for shape in shapes[many]
            for kind, keys in kinds.items()
        }

    def by_rank(shape, **keys):
        return attention(device, code, *shape, **keys)

    def fractions(shape, pole):
        if pole is None:
            return clamped(device, code, shape)
        return in_half_precision(fraction(device, code, shape, pole))

    poles = {"clamp": {"pole": "clamp"}, "clamped": {"pole": None}, "positive": {"pole": "positive"}}
    wide = {"not strict": {"wide": True}, "strict": {"wide": True, "strict": True}}
    products = [(2, 5, 1), (2, 3, 37), (1, 17, 300), (1, 9, 2050)]
    losses = [(2, 37, 24, 320, 257), (1, 1, 8, 64, 60), (3, 130, 40, 1088, 1030)]
    return {
        "continued_fraction": all_of(fractions, FRACTIONS, poles),
        "shared_attention": all_of(by_rank, NARROW, KINDS),
        "wide_attention": all_of(by_rank, WIDE, wide),
        "causal_linear": all_of(lambda shape: triangular(device, *shape), products, {"": {}}),
        "unpack_lower": all_of(lambda shape: packed(device, *shape), [(2, 37, 30), (1, 1, 1)], {"": {}}),
        "linear_cross_entropy": all_of(
            lambda s: loss(device, s[:2], *s[2:], ignored=s[1] // 3, chunk_bytes=40_000), losses, {"": {}}
        ),
        "embedding": all_of(lambda s: lookup(device, *s), [(100, 3, 37), (7, 8, 5000)], {"": {}}),
    }


def clamped(device, code, shape):
    """Many clamped fractions, and none where rounding decides; the oracle is PyTorch in float64."""
    depth = shape[1]
    a = randoms(torch.device("cpu"), *shape).detach()
    a = (a if depth <= 8 else 1 + 0.3 * a).bfloat16().float()
    size = denominator(a.double()).abs()
    unclear = ((size - EPS).abs() < 1e-2) | (size < 1e-2)
    a = torch.where(unclear.unsqueeze(-2), 1.0, a).to(device)

    def exact(a):
        return continued_fraction(a.double(), eps=EPS, backend="torch")

    functions = {
        f"continuants, {backend}": functools.partial(continued_fraction, eps=EPS, backend=backend)
        for backend in code.backends
    }
    return in_half_precision(Case("clamped", [a], {"float64": exact} | functions))


def in_half_precision(case: Case) -> Case:
    """The case with inputs that bfloat16 holds exactly, and that come in bfloat16 under autocast."""

    def cast(function, *inputs):
        return function(*(tensor.to(operators.precision(tensor.device)) for tensor in inputs))

    case.inputs = [tensor.detach().bfloat16().float().requires_grad_() for tensor in case.inputs]
    functions = case.implementations.items()
    case.implementations = {name: functools.partial(cast, function) for name, function in functions}
    return case


def packed(device, batch, size, used):
    entries = randoms(device, batch, packed_size(size))
    forms = {"naive": unpack_lower_naive, "unpack_lower": unpack_lower}
    return Case("unpack", [entries], {name: functools.partial(f, size=used) for name, f in forms.items()})


def lookup(device, rows, width, tokens):
    which = torch.randint(rows, (tokens,), generator=torch.Generator().manual_seed(0)).to(device)
    forms = {
        "naive": lambda weight: F.one_hot(which, rows).to(weight.dtype) @ weight,
        "embedding": lambda weight: embedding(weight, which),
    }
    return Case("lookup", [randoms(device, rows, width)], forms)


def gate(kernel: str, dtype: str, quick: bool, device: torch.device) -> dict[str, Callable[[], dict]]:
    """{what is compared: function that returns {distances: {form: largest one}, wrong: {form: why}}}"""

    def compare(build):
        forms = Forms(build(), dtype, False, device)
        distances, wrong = {}, {}
        for form in list(forms.functions)[1:]:
            try:
                distances[form] = max(forms.distances(form))
                if not distances[form] <= GATE[dtype]:
                    wrong[form] = f"{distances[form]:.2g} away from the oracle, at most {GATE[dtype]}"
            except Exception as error:  # a kernel that does not compile or run is wrong too
                wrong[form] = told(error)
        return {"kernel": kernel, "distances": distances, "wrong": wrong}

    cases = awkward(device, quick)[kernel]
    return {name: functools.partial(compare, build) for name, build in cases.items()}
