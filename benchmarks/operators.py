"""Each kernel next to its naive reference and to PyTorch's own operators.

A case has one input and several implementations of the same function. The first one is the naive one, with
which benchmarks/forms.py compares the others, forward and backward.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.backend import why_not_triton
from kernels.continued_fraction import (
    POLES,
    continued_fraction,
    continued_fraction_ladder,
    continued_fraction_naive,
)
from kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_naive
from kernels.sdpa import attention_by_position
from kernels.shared_attention import shared_attention, shared_attention_naive
from kernels.triangular import causal_linear
from kernels.wide_attention import wide_attention


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the kernels of a model work on, and the sizes of the upper limits."""

    batch_size: int = 8
    length: int = 1024
    width: int = 768
    heads: int = 12
    ladders: int = 7
    vocabulary: int = 50304  # rows of the head, padding included
    columns: int = 50257
    copy_bytes: int = 2**29  # read and written
    gemm: int = 4096  # rows and columns of the matrices

    @property
    def gemm_flops(self) -> int:
        return 2 * self.gemm**3


def sizes(batch_size: int, tiny: bool, device: torch.device) -> Sizes:
    """Those of GPT-2 small's width; tiny: for a trial."""
    if tiny:
        return Sizes(batch_size, 40, 24, 3, 3, vocabulary=64, columns=60, copy_bytes=2**20, gemm=64)
    # a GPU needs large ones: a copy of 8 GB reads and writes 16
    return Sizes(batch_size, **({"copy_bytes": 16 * 10**9, "gemm": 8192} if device.type == "cuda" else {}))


@dataclasses.dataclass
class Case:
    """One function with its inputs and implementations.

    - inputs: tensors; the floating ones require gradients.
    - implementations: {name: function of the inputs}, which compute the same.
    - others: the same for functions that compute something else, for comparison of speed.
    - layouts: {name: function that changes the memory layout of an input}.
    - bytes, flops: the least that forward and backward must move (in float32) and compute.
    - limit: which of the two is its upper limit, the bandwidth of a copy or the rate of a matrix product.
    """

    what: str
    inputs: list[torch.Tensor]
    implementations: dict[str, Callable]
    others: dict[str, Callable] = dataclasses.field(default_factory=dict)
    layouts: dict[str, Callable] = dataclasses.field(default_factory=dict)
    bytes: int = 0
    flops: int = 0
    limit: str = "flops"

    def amount(self) -> int:
        """Of what `limit` names."""
        return getattr(self, self.limit)


@dataclasses.dataclass(frozen=True)
class Code:
    """What can compute on a device: values of cf_backend, and backends of PyTorch's SDPA to choose from."""

    backends: tuple[str, ...]
    sdpa: tuple[str, ...]

    @classmethod
    def on(cls, device: torch.device) -> "Code":
        triton = () if why_not_triton(device.type) else ("triton",)
        return cls(("torch", *triton), tuple(SDPA) if device.type == "cuda" else ())


SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def cases(device: torch.device, sizes: Sizes, code: Code | None = None) -> dict[str, Callable[[], Case]]:
    """{name: function that makes the case}; code: None for what can compute on the device."""
    code = code or Code.on(device)
    batch, length, width, ladders = sizes.batch_size, sizes.length, sizes.width, sizes.ladders
    # as many fractions as twelve layers of a small model have, so that overhead does not dominate
    depths = {
        f"continued fraction, d={depth}, {pole}": functools.partial(
            fraction, device, code, (12 * batch * length, depth, ladders), pole
        )
        for pole in POLES
        for depth in (3, 7)
    }
    shape = {"batch": batch, "length": length, "width": width, "softmax_heads": sizes.heads}
    attentions = {
        "": {"heads": 1, "rank": ladders},
        ", collapsed": {"heads": 1, "rank": ladders + width, "wide": True},
        " by distance with content": {
            "heads": sizes.heads,
            "rank": ladders,
            "relative": True,
            "content": True,
        },
    }
    mixers = {
        f"attention of CAttnM{what}": functools.partial(attention, device, code, **shape, **keys)
        for what, keys in attentions.items()
    }
    return {
        **depths,
        **mixers,
        "triangular product of CAttnU": functools.partial(triangular, device, batch, width, length),
        "head and loss": functools.partial(
            loss, device, (batch, length), width, sizes.vocabulary, sizes.columns
        ),
    }


def randoms(device, *shape, seed=0):
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + seed))
    return drawn.to(device).requires_grad_()


def fraction(device, code, shape, pole):
    """shape: tokens, d, L. Partial denominators are above 0, so that nothing is clamped and all forms
    compute the same.
    """
    tokens, depth, ladders = shape
    a = (randoms(device, *shape).detach().abs() + 1).requires_grad_()
    functions = {
        "naive ladder, no clamp": functools.partial(continued_fraction_naive, pole=pole),
        "ladder, d divisions (CoFrGeNet_B)": functools.partial(continued_fraction_ladder, pole=pole),
    }
    layouts = {}
    for backend in code.backends:
        name = f"continuants, {backend}"
        functions[name] = functools.partial(continued_fraction, pole=pole, backend=backend)
        layouts[name] = depth_first
    # continuants twice (a multiply-add for all but the first), then one division or d squares and products
    flops = (4 * (depth - 1) + 2 + 3 * depth) * ladders * tokens
    return Case(
        f"{tokens:,} tokens, L = {ladders}, cf_pole={pole}",
        [a],
        functions,
        layouts=layouts,
        bytes=least_traffic([a], ladders * tokens),
        flops=flops,
        limit="bytes",
    )


def depth_first(a):
    """[tokens, d, L] in the layout of `LadderEnsemble`. Other forms are fastest with tokens first."""
    return a.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def attention(
    device, code, batch, heads, length, rank, width,
    softmax_heads=None, relative=False, content=False, strict=False, wide=False,
):  # fmt: skip
    """Attention by rank: `width` columns of values in `heads` heads; by distance (relative), with keys
    (content), or with rows as wide as the model (wide).
    """
    y, columns = randoms(device, batch, heads, length, rank), randoms(device, heads, rank, length)
    if wide:  # scaled so that scores are as small as those of ladders
        columns = (columns.detach() * (7 / rank) ** 0.5).requires_grad_()
    v = randoms(device, batch, heads, length, width // heads, seed=1)
    keys = [randoms(device, batch, heads, length, rank, seed=2)] if content else []
    options = {"strict": strict} if wide else {"strict": strict, "relative": relative}

    def like_a_layer(function, y, columns, v, *keys):
        v = v.to(precision(v.device))
        given = {"keys": keys[0]} if keys else {}
        return function(y, columns, v, **given)

    kernels = {"naive": functools.partial(shared_attention_naive, strict=strict, relative=relative)}
    if wide:
        kernels["wide_attention"] = functools.partial(wide_attention, **options)
    else:
        for backend in code.backends:
            name = f"shared_attention, {backend}"
            kernels[name] = functools.partial(shared_attention, backend=backend, **options)
    if not (relative or content or strict or wide):
        kernels["SDPA, in parts"] = attention_by_position
    flops = 3 * 2 * heads * ((1 + content) * rank + width // heads) * length**2 * batch
    inputs = [y, columns, v, *keys]
    return Case(
        f"{batch} x {length} tokens, {width} columns, R = {rank}, heads: {heads}",
        inputs,
        {name: functools.partial(like_a_layer, function) for name, function in kernels.items()},
        dense_attention(code, softmax_heads) if softmax_heads else {},
        bytes=least_traffic(inputs, v.numel()),
        flops=flops,
    )


def dense_attention(code, heads):
    """{name: softmax attention of the same width}; one tensor serves as queries, keys and values."""

    def softmax(y, columns, v, *_):
        v = v.transpose(1, 2)
        one = v.reshape(*v.shape[:2], heads, -1).transpose(1, 2).to(precision(v.device))
        return F.scaled_dot_product_attention(one, one, one, is_causal=True)

    def by(kind, *inputs):
        with sdpa_kernel(kind):
            return softmax(*inputs)

    found = {f"softmax attention, {heads} heads": softmax}
    for name in code.sdpa:
        found[f"softmax attention, {heads} heads, {name}"] = functools.partial(by, SDPA[name])
    return found


def triangular(device, batch, width, length):
    y = randoms(device, batch, width, length)
    matrix = randoms(device, length, length).detach().tril().requires_grad_()

    def dense(y, matrix):
        return F.linear(y, matrix.tril())

    def by_strips(y, matrix):
        return causal_linear(y, matrix.tril())

    return Case(
        f"{batch} x {length} tokens, {width} features",
        [y, matrix],
        {"dense product": dense, "causal_linear": by_strips},
        bytes=least_traffic([y, matrix], y.numel()),
        flops=3 * 2 * width * length**2 * batch,
    )


def loss(device, tokens, width, vocabulary, columns, ignored=0, chunk_bytes=None):
    """tokens: batch, length; the first `ignored` targets of each sequence are not scored."""
    h = randoms(device, *tokens, width)
    weight = (0.02 * randoms(device, vocabulary, width)).detach().requires_grad_()
    targets = torch.randint(columns, tokens, generator=torch.Generator().manual_seed(0))
    targets[:, :ignored] = -100
    targets = targets.to(device)
    chunks = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    functions = {
        "naive": linear_cross_entropy_naive,
        "linear_cross_entropy": functools.partial(linear_cross_entropy, **chunks),
    }
    return Case(
        f"{tokens[0]} x {tokens[1]} tokens, {vocabulary:,} columns",
        [h, weight],
        {
            name: functools.partial(function, targets=targets, columns=columns)
            for name, function in functions.items()
        },
        bytes=least_traffic([h, weight], 0),
        flops=3 * 2 * width * vocabulary * tokens[0] * tokens[1],
    )


def least_traffic(inputs, outputs: int) -> int:
    """Bytes in float32: forward reads the inputs and writes the outputs, backward reads inputs and the
    outputs' gradients and writes the inputs' gradients.
    """
    return 4 * (3 * sum(tensor.numel() for tensor in inputs) + 2 * outputs)


def precision(device):
    """The dtype that autocast casts to, else float32: attention follows the dtype of its values."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else torch.float32


def describe(name: str, sizes: Sizes, device: torch.device) -> Case:
    """The case without its data, with the implementations of a device."""
    with torch.device("meta"):
        return cases(torch.device("meta"), sizes, Code.on(device))[name]()


def ceilings(dtype: str, device: torch.device, sizes: Sizes) -> dict[str, Callable]:
    """{upper limit: function of one iteration}, which moves copy_bytes or computes gemm_flops."""
    source = torch.empty(sizes.copy_bytes // 8, device=device).fill_(1.0)
    target = torch.empty_like(source)
    drawn = torch.randn(2, sizes.gemm, sizes.gemm, device=device)
    a, b = drawn.to(getattr(torch, dtype)).unbind()
    return {"copy": lambda: target.copy_(source), "matrix product": lambda: a @ b}
