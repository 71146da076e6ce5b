"""What can be said of the Triton kernels without a GPU: they compute the right numbers in Triton's
interpreter, they compile for several GPUs, and torch.compile sees them without a break.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from architecture import ModelConfig
from kernels import backend

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow
needs_triton = pytest.mark.skipif(not backend.INSTALLED, reason="needs triton")


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested here")
def test_the_kernels_in_the_interpreter():
    """In a process of its own: Triton decides on import whether it interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--durations=0", "-p", "no:cacheprovider", HERE],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 150


def test_the_backend_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.setattr(backend, "INSTALLED", True)
    monkeypatch.setattr(backend, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = ModelConfig(cf_backend="triton")
    assert config.check() == [
        "cf_backend=triton needs a GPU; for tests without one, set TRITON_INTERPRET=1 in the environment "
        "(slow)"
    ]
    with pytest.raises(ValueError, match="cf_backend=triton needs a GPU"):
        backend.use_triton("triton", torch.ones(1))
    monkeypatch.setattr(backend, "INTERPRETED", True)
    assert config.check() == []
    assert backend.use_triton("triton", torch.ones(1))
    assert not backend.use_triton("auto", torch.ones(1))
    monkeypatch.setattr(backend, "INSTALLED", False)
    assert "needs the package triton" in config.check()[0]


def test_on_the_cpu_nothing_imports_triton():
    if backend.AVAILABLE:
        pytest.skip("a PyTorch for GPUs")
    code = "import model, sys; sys.exit('triton' in sys.modules)"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[1], env=environment).returncode == 0
    )


# --- compiled for GPUs that are not here ---


def binary(kernel, types, constants, capability, warps=4):
    """types: {argument: "*fp32" or the like}, integers where nothing is said."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    # sixteen divides what it divides in a model: addresses, and the width and strides of the values
    even = [n for n in names if n.endswith("_ptr") or n.startswith(("v_", "out_", "grad_", "width"))]
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in even and n not in constants
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": warps})


def spilled(compiled):
    """Bytes of a thread's registers that went to memory."""
    import triton

    (tool,) = glob.glob(f"{Path(triton.__file__).parent}/backends/nvidia/bin/cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", said.stdout)[1])


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize(("depth", "kind"), [(3, "*fp32"), (7, "*bf16")])
def test_the_continued_fraction_compiles(depth, kind, capability):
    import kernels.continued_fraction_triton as code

    types = dict.fromkeys(("a_ptr", "z_ptr", "grad_z_ptr", "grad_ptr"), kind)
    types |= {"low_ptr": "*fp32", "high_ptr": "*fp32", "constant": "fp32"}
    block = code._block(depth, 2**20)
    for positive in (False, True):
        sizes = {"D": depth, "POSITIVE": positive, "BLOCK": block}
        forward = binary(code._forward_kernel, types, {**sizes, "RANGE": True}, capability)
        backward = binary(code._backward_kernel, types, sizes, capability)
        assert spilled(forward) == spilled(backward) == 0


@needs_triton
@pytest.mark.parametrize(
    ("half", "rank", "relative"),
    [(True, 16, False), (False, 16, False), (True, 64, False), (True, 16, True)],
)
@pytest.mark.parametrize("capability", [80, 86, 90, 120])
def test_shared_attention_compiles(half, rank, relative, capability):
    """Into the shared memory that there is, and without spilling what would be felt."""
    import kernels.shared_attention_triton as code

    roomy = capability == 90
    (rows, columns, chunk), warps, side, side_warps = code._sizes(half, roomy, 1600, rank, relative)
    wide = "*bf16" if half else "*fp32"
    narrow = ("y_ptr", "f_ptr", "k_ptr", "lse_ptr", "delta_ptr", "grad_y_ptr", "grad_j_ptr", "grad_d_ptr")
    types = dict.fromkeys(narrow, "*fp32")
    types |= dict.fromkeys(("v_ptr", "out_ptr", "grad_ptr", "grad_v_ptr"), wide)
    common = {"R": 7, "RANK": rank, "SHIFT": 1, "WIDE": False, "RELATIVE": relative, "KEYS": relative}
    tile = {**common, "ROWS": rows, "COLUMNS": columns, "CHUNK": chunk}
    square = {**common, "TILE": side, "CHUNK": min(chunk, side // 2)}
    for kernel, constants, threads in (
        (code._forward_kernel, tile, warps),
        (code._values_backward_kernel, tile, warps),
        (code._scores_backward_kernel, square, side_warps),
        (code._delta_kernel, {"ROWS": 16, "CHUNK": chunk, "SHIFT": 1}, 4),
    ):
        compiled = binary(kernel, types, constants, capability, threads)
        assert compiled.metadata.shared <= (227 if roomy else 99) * 1024, kernel.__name__
        assert spilled(compiled) <= 128, kernel.__name__
        assert (
            "delta" in kernel.__name__
            or ("wgmma" if roomy and rank == 16 else "mma") in compiled.asm["ptx"]
        )


# --- seen by torch.compile ---


class _NoGPU:
    """Enough of a driver for torch.compile to find out what a kernel writes."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def traced(function, *inputs):
    """The graphs, forward and backward, of one compilation without breaks; nothing is computed."""
    from triton.runtime.driver import driver

    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        (outputs,) = next(n for n in graph.graph.nodes if n.op == "output").args
        shapes = [None if o is None else o.meta["val"] for o in outputs]
        return make_boxed_func(
            lambda *_: [None if s is None else torch.zeros(s.shape, dtype=s.dtype) for s in shapes]
        )

    torch._dynamo.reset()
    before = driver._active
    driver.set_active(_NoGPU())
    try:
        compiler = aot_autograd(fw_compiler=keep, bw_compiler=keep)
        compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=compiler)
        torch.autograd.grad(compiled(*inputs).sum(), inputs)
    finally:
        driver._active = before
    return graphs


def written(graph):
    """What each Triton kernel of a graph writes."""
    return [node.kwargs["tensors_to_clone"] for node in graph.graph.nodes if "triton" in str(node.target)]


@needs_triton
def test_the_continued_fraction_is_one_graph():
    from kernels.continued_fraction_triton import continued_fraction_triton

    def function(a):
        z, low, high = continued_fraction_triton(a, True, 0.1, ranged=True)
        return z.sum() + low.sum() + high.sum()

    forward, backward = traced(function, torch.rand(5, 3, 7, requires_grad=True))
    assert written(forward) == [["z_ptr", "low_ptr", "high_ptr"]]
    assert written(backward) == [["grad_ptr"]]


@needs_triton
@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"strict": False}, ["grad_j_ptr"]),
        ({"strict": True}, ["grad_j_ptr"]),
        ({"strict": True, "relative": True}, ["grad_d_ptr"]),
        ({"strict": False, "relative": True, "keys": True}, ["grad_j_ptr", "grad_d_ptr"]),
    ],
)
def test_shared_attention_is_one_graph(options, columns):
    from kernels.shared_attention_triton import shared_attention_triton

    shapes = [(2, 1, 17, 7), (1, 7, 17), (2, 1, 17, 24)]
    inputs = [torch.rand(shape, requires_grad=True) for shape in shapes]
    if with_keys := options.get("keys", False):
        inputs.append(torch.rand(shapes[0], requires_grad=True))

    def function(y, F, v, keys=None):
        return shared_attention_triton(y, F, v, **{**options, "keys": keys if with_keys else None})

    forward, backward = traced(function, *inputs)
    assert written(forward) == [["out_ptr", "lse_ptr"]]
    assert sorted(written(backward)) == [["delta_ptr"], ["grad_v_ptr"], ["grad_y_ptr", *columns]]
