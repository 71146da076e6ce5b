"""Each kernel next to its naive reference and to PyTorch's own operators, forward and backward.

A case has one input and several implementations of the same function. The first is the naive one, with
which the others are compared. The upper limits are the bandwidth of a copy and the FLOP rate of a large
matrix product, measured in the same run.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F

from kernels.continued_fraction import (
    POLES,
    continued_fraction,
    continued_fraction_ladder,
    continued_fraction_naive,
)
from kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_naive
from kernels.shared_attention import shared_attention, shared_attention_naive
from kernels.triangular import causal_linear
from kernels.wide_attention import wide_attention
from training.hardware import autocast

WIDTH, LENGTH, LADDERS, VOCABULARY, COLUMNS = 768, 1024, 7, 50304, 50257
HEADS = 12


@dataclasses.dataclass
class Case:
    """One function with its inputs and implementations.

    - inputs: tensors; the floating ones require gradients.
    - implementations: {name: function of the inputs}, which compute the same.
    - others: the same for functions that compute something else, for comparison of speed.
    - layouts: {name: function that changes the memory layout of an input}.
    - bytes, flops: the least that forward and backward must move and multiply.
    """

    what: str
    inputs: list[torch.Tensor]
    implementations: dict[str, Callable]
    others: dict[str, Callable] = dataclasses.field(default_factory=dict)
    layouts: dict[str, Callable] = dataclasses.field(default_factory=dict)
    bytes: int = 0
    flops: int = 0


def cases(device: torch.device, batch_size: int) -> dict[str, Callable[[], Case]]:
    """{name: function that makes the case}, for `batch_size` sequences of LENGTH tokens."""
    length = LENGTH
    depths = {
        f"continued fraction, d={depth}, {pole}": functools.partial(
            _fraction, device, batch_size * length, depth, pole
        )
        for pole in POLES
        for depth in (3, 7)
    }
    return {
        **depths,
        "attention of CAttnM": functools.partial(_attention, device, batch_size, length),
        "attention of CAttnM, collapsed": functools.partial(
            _attention, device, batch_size, length, wide=True
        ),
        "attention of CAttnM by distance with content": functools.partial(
            _attention, device, batch_size, length, HEADS, by_distance=True
        ),
        "triangular product of CAttnU": functools.partial(_triangular, device, batch_size, length),
        "head and loss": functools.partial(_loss, device, batch_size, length),
    }


def _random(device, *shape):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return drawn.to(device).requires_grad_()


def _fraction(device, tokens, depth, pole):
    """As many fractions as twelve layers of a small model have, so that overhead does not dominate.

    Partial denominators are above 0, so that nothing is clamped and all forms compute the same.
    """
    a = (_random(device, 12 * tokens, depth, LADDERS).detach().abs() + 1).requires_grad_()
    forms = {
        "naive ladder, no clamp": continued_fraction_naive,
        "ladder, d divisions (CoFrGeNet_B)": continued_fraction_ladder,
        "continuants": continued_fraction,
    }
    functions = {name: functools.partial(function, pole=pole) for name, function in forms.items()}
    words = (3 * depth + 2) * LADDERS * 12 * tokens
    what = f"{12 * tokens:,} tokens, L = {LADDERS}, cf_pole={pole}"
    return Case(what, [a], functions, layouts={"continuants": _depth_first}, bytes=4 * words)


def _depth_first(a):
    """[tokens, d, L] in the layout of `LadderEnsemble`. Other forms are fastest with tokens first."""
    return a.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _attention(device, batch_size, length, heads=1, by_distance=False, wide=False):
    rank = LADDERS + wide * WIDTH // heads
    y, columns = (
        _random(device, batch_size, heads, length, rank),
        _random(device, heads, rank, length),
    )
    if wide:  # scaled so that scores are as small as those of ladders
        columns = (columns.detach() * (LADDERS / rank) ** 0.5).requires_grad_()
    v = _random(device, batch_size, heads, length, WIDTH // heads)
    keys = [_random(device, batch_size, heads, length, LADDERS)] if by_distance else []

    def softmax(y, columns, v, *_):
        """Dense attention of the same width; one tensor serves as queries, keys and values."""
        one = v.transpose(1, 2).reshape(batch_size, length, HEADS, -1).transpose(1, 2)
        one = one.to(_precision(v.device))
        return F.scaled_dot_product_attention(one, one, one, is_causal=True)

    def like_a_layer(function, y, columns, v, keys=None):
        v = v.to(_precision(v.device))
        options = {} if wide else {"relative": by_distance, "keys": keys}
        return function(y, columns, v, **options)

    flops = 3 * 2 * heads * ((1 + by_distance) * rank + WIDTH // heads) * length**2 * batch_size
    what = f"{batch_size} x {length} tokens, {WIDTH} columns, R = {rank}, heads: {heads}"
    kernel = wide_attention if wide else shared_attention
    functions = {"naive": shared_attention_naive, kernel.__name__: kernel}
    return Case(
        what,
        [y, columns, v, *keys],
        {name: functools.partial(like_a_layer, function) for name, function in functions.items()},
        {f"softmax attention, {HEADS} heads": softmax},
        flops=flops,
    )


def _triangular(device, batch_size, length):
    y = _random(device, batch_size, WIDTH, length)
    matrix = _random(device, length, length).detach().tril().requires_grad_()
    flops = 3 * 2 * WIDTH * length**2 * batch_size
    what = f"{batch_size} x {length} tokens, {WIDTH} features"

    def dense(y, matrix):
        return F.linear(y, matrix.tril())

    def by_strips(y, matrix):
        return causal_linear(y, matrix.tril())

    return Case(what, [y, matrix], {"dense product": dense, "causal_linear": by_strips}, flops=flops)


def _loss(device, batch_size, length):
    h = _random(device, batch_size, length, WIDTH)
    weight = (0.02 * _random(device, VOCABULARY, WIDTH)).detach().requires_grad_()
    targets = torch.randint(COLUMNS, (batch_size, length), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    functions = {"naive": linear_cross_entropy_naive, "linear_cross_entropy": linear_cross_entropy}
    whole = {
        name: functools.partial(function, targets=targets, columns=COLUMNS)
        for name, function in functions.items()
    }
    flops = 3 * 2 * WIDTH * VOCABULARY * batch_size * length
    return Case(f"{batch_size} x {length} tokens, {VOCABULARY:,} columns", [h, weight], whole, flops=flops)


def _precision(device):
    """The dtype that autocast casts to, else float32: attention follows the dtype of its values."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else torch.float32


# largest relative distance of outputs and gradients from the naive ones in float32
GATE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.05}


def sections(name: str, batch_size: int, dtype: str, compile: bool, device: torch.device):
    """{implementation: function of one iteration}.

    Raises ValueError if an implementation computes something else than the naive one.
    """
    case = cases(device, batch_size)[name]()
    upstream = None

    def iteration(function, precision, inputs):
        nonlocal upstream
        for tensor in inputs:
            tensor.grad = None
        with autocast(device, precision):
            out = function(*inputs)
        if upstream is None or upstream.shape != out.shape:
            drawn = torch.Generator().manual_seed(3)
            upstream = torch.randn(out.shape, generator=drawn).to(device)
        out.backward(upstream.to(out.dtype))
        return out

    def tensors(function, precision, inputs):
        out = iteration(function, precision, inputs)
        return [t.detach().float().clone() for t in (out, *(t.grad for t in inputs))]

    exact = tensors(next(iter(case.implementations.values())), "float32", case.inputs)
    timed = {}
    for label, function in {**case.implementations, **case.others}.items():
        inputs = case.inputs
        if label in case.layouts:
            inputs = [case.layouts[label](tensor.detach()).requires_grad_() for tensor in inputs]
        forms = {f"{label}, eager": function}
        if compile:
            forms[f"{label}, compiled"] = torch.compile(function, fullgraph=True, dynamic=False)
        for form, chosen in forms.items():
            if label in case.implementations:
                _check(form, tensors(chosen, dtype, inputs), exact, dtype)
            timed[form] = functools.partial(iteration, chosen, dtype, inputs)
    return timed


def _check(form, found, exact, dtype):
    for number, (a, b) in enumerate(zip(found, exact, strict=True)):
        distance = float((a - b).norm() / b.norm())
        if not distance <= GATE[dtype]:
            what = "output" if number == 0 else f"gradient of input {number}"
            raise ValueError(
                f"{form}: wrong {what}, {distance:.2g} away from the naive one (relative; at most "
                f"{GATE[dtype]} in {dtype})"
            )


def describe(name: str, batch_size: int) -> Case:
    """The case without its data, for the table."""
    with torch.device("meta"):
        return cases(torch.device("meta"), batch_size)[name]()


def ceilings(dtype: str, device: torch.device) -> dict[str, Callable]:
    """{upper limit: function of one iteration}, which moves COPY_BYTES or computes GEMM_FLOPS."""
    source = torch.empty(COPY_BYTES // 8, device=device).fill_(1.0)
    target = torch.empty_like(source)
    a, b = (torch.randn(GEMM, GEMM, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return {"copy": lambda: target.copy_(source), "matrix product": lambda: a @ b}


COPY_BYTES = 2**29  # read and written
GEMM = 4096
GEMM_FLOPS = 2 * GEMM**3
