"""What can be said of the Triton kernels without a GPU: they compute the right numbers in Triton's
interpreter, they compile for several GPUs, and torch.compile sees them without a break.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from kernels import backend
from models.architecture import ModelConfig

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
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 140


def test_the_backend_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.setattr(backend, "INSTALLED", True)
    monkeypatch.setattr(backend, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = ModelConfig(cf_backend="triton")
    (told,) = config.check()
    assert told.startswith("cf_backend=triton needs a GPU")
    assert "TRITON_INTERPRET=1" in told
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


def binary(kernel, types, constants, capability, **options):
    """types: {argument: "*fp32" or the like}, integers where nothing is said."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    # sixteen divides what it divides in a model: addresses, the width and strides of the values and of
    # prepared operands
    divisible = ("v_", "k_", "f_", "out_", "grad_", "width", "padded")
    even = [n for n in names if n.endswith("_ptr") or n.startswith(divisible)]
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in even and n not in constants
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def used(compiled):
    """(registers of a thread, bytes of its stack): what is spilled lies on the stack."""
    import triton

    (tool,) = glob.glob(f"{Path(triton.__file__).parent}/backends/nvidia/bin/cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return tuple(int(re.search(rf"{what}:(\d+)", said.stdout)[1]) for what in ("REG", "STACK"))


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize(("depth", "kind"), [(3, "*fp32"), (7, "*bf16")])
def test_the_continued_fraction_compiles(depth, kind, capability):
    import kernels.continued_fraction_triton as code

    types = dict.fromkeys(("a_ptr", "z_ptr", "grad_z_ptr", "grad_ptr"), kind)
    types |= {"low_ptr": "*fp32", "high_ptr": "*fp32", "constant": "fp32"}
    block = code._block(depth, 2**20)
    for positive in (False, True):
        sizes = {"D": depth, "POSITIVE": positive, "FAST": True, "BLOCK": block}
        forward = binary(code._forward_kernel, types, {**sizes, "RANGE": True}, capability)
        backward = binary(code._backward_kernel, types, sizes, capability)
        assert used(forward)[1] == used(backward)[1] == 0


# of a fused step at GPT2-xl's width: what a kernel reads and how its rows are finished
NOTHING = {"SPLITS": 1, "HEAD": 1600, "HEADS": 1, "D": 0, "L": 1, "PADDED": 1, "PARTS": 1, "POSITIVE": True}
NOTHING |= {
    "FAST": True,
    "CLIP": False,
    "NORM": "none",
    "NORM_BIAS": False,
    "KEEP_X": False,
    "KEEP_H": False,
}
NOTHING |= {"BIAS": False, "ACTIVATION": "none", "RESIDUAL": False, "OUT": 1600, "WRITTEN": 0, "WIDTH": 1}
NOTHING |= {"ADDED": "none", "SCORES": False, "K": 1600, "batch": 1}
SEVEN = {"D": 7, "L": 7, "PADDED": 8, "CLIP": True}
STEPS = {
    "V z, norm, q, k, v": {"ADDED": "ladders", **SEVEN, "KEEP_X": True, "NORM": "layernorm", "WRITTEN": 64}
    | {"WIDTH": 1600},
    "heads, projection": {"ADDED": "heads", "SPLITS": 8, "HEAD": 64, "HEADS": 32, "RESIDUAL": True},
    "parts, norm, gate": {"ADDED": "parts", "SPLITS": 8, "KEEP_X": True, "NORM": "layernorm"}
    | {"ACTIVATION": "gate"},
    "W_2": {"K": 6400, "RESIDUAL": True},
    "scores": {"SCORES": True, "BIAS": True, **SEVEN},
}


@needs_triton
@pytest.mark.parametrize(
    ("capability", "kind"), [(80, "*bf16"), (90, "*bf16"), (90, "*fp32"), (100, "*bf16")]
)
@pytest.mark.parametrize("step", STEPS)
def test_products_of_a_fused_step_compile(step, capability, kind):
    """Nothing spills, and from Hopper on the weights are read before the wait for the kernel before."""
    import triton

    import kernels.gemv_triton as code

    constants = NOTHING | STEPS[step]
    rows, warps = code.launch_of(constants["K"], 2 if kind == "*bf16" else 4)
    constants |= {"BLOCK": triton.next_power_of_2(constants["K"]), "ROWS": rows, "PDL": capability >= 90}
    types = {n: "*fp32" for n in code.gemv_kernel.arg_names if n.endswith("_ptr")}
    types |= dict.fromkeys(("W_ptr", "V_ptr", "norm_ptr", "norm_bias_ptr", "first_ptr", "second_ptr"), kind)
    types |= {"filled_ptr": "*i64", "eps": "fp32", "constant": "fp32"}
    compiled = binary(code.gemv_kernel, types, constants, capability, num_warps=warps)
    registers, stack = used(compiled)
    assert stack == 0
    assert registers <= 128
    if capability >= 90:
        before = compiled.asm["ptx"].partition("griddepcontrol.wait")[0]
        assert len(re.findall(r"ld\.global[^;]*\.v4", before)) == (0 if step == "scores" else 8)


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_attention_of_a_fused_step_compiles(capability):
    import kernels.decode_attention_triton as code

    sizes = {"SPLITS": 8, "PDL": capability >= 90}
    softmax = {"GROUP": 1, "D": 64, "PADDED": 64, "BLOCK": 32, **sizes}
    values = {"STRICT": True, "SCORES": 1024, "ROWS": 32, "CHUNK": 64, **sizes}
    for kernel, constants in (
        (code.split_attention_kernel, softmax),
        (code.weighted_values_kernel, values),
    ):
        types = {n: "*fp32" for n in kernel.arg_names if n.endswith("_ptr")}
        types |= {"k_ptr": "*bf16", "v_ptr": "*bf16", "filled_ptr": "*i64", "scale": "fp32"}
        registers, stack = used(binary(kernel, types, constants, capability, num_warps=4))
        assert stack == 0
        assert registers <= 64


# values 64 wide in heads, or as wide as a model
FORMS = {
    "distance and content, bfloat16": {"by": "both", "rank": 7, "width": 64},
    "distance, bfloat16": {"by": "distance", "rank": 7, "width": 64},
    "position, bfloat16": {"by": "position", "rank": 7, "width": 1600},
    "distance and content, bfloat16, rank 16": {"by": "both", "rank": 16, "width": 64},
    "distance and content, float32": {"by": "both", "rank": 7, "width": 64, "half": False},
}

# Bytes on the stack of forward_kernel, two numbers of a thread, where Triton 3.6 compiles for Hopper. By
# distance, no number of stages up to 4 avoids them. By distance and content three do, but then an SM has
# room for three programs, not four.
SPILLED = {(90, "distance and content, bfloat16"): 8, (90, "distance, bfloat16"): 8}
if not backend.INSTALLED or not version("triton").startswith("3.6."):
    SPILLED = {}


@needs_triton
@pytest.mark.parametrize(
    ("capability", "form"),
    [*((90, form) for form in FORMS), (80, "distance and content, bfloat16"), (100, "distance, bfloat16")],
)
def test_shared_attention_compiles(form, capability):
    """Into the registers and the shared memory that there are; -s prints them."""
    import kernels.attention_tiles_triton as code
    from kernels.shared_attention_triton import launches, operand_width

    by, rank, width, half = (FORMS[form].get(key, True) for key in ("by", "rank", "width", "half"))
    hopper = capability == 90
    kinds = {"BY_POSITION": by != "distance", "BY_DISTANCE": by != "position"}
    first, of_values, backward = launches(half, hopper, width, rank, *kinds.values())
    size, operands = operand_width(rank, half), "*bf16" if half else "*fp32"
    common = {"S": size, "SHIFT": 0, "WIDE": False, "PARTS": 4 if half else 1, **kinds}
    columns = [(of_values, {"OF_V": True, "OF_S": False}), (backward, {"OF_V": False, "OF_S": True})]
    if width <= backward.chunk:
        columns = [(backward, {"OF_V": True, "OF_S": True})]
    kernels = [(code.forward_kernel, first, {}), (code.rows_kernel, backward, {})]
    kernels += [(code.columns_kernel, launch, more) for launch, more in columns]
    if by != "position":
        kernels += [(code.diagonals_kernel, backward, {})]
    elif half:
        kernels += [(code.delta_kernel, backward, {"ROWS": 16})]
    for kernel, launch, more in kernels:
        tile = {"ROWS": launch.rows, "COLUMNS": launch.columns, "TILE": launch.rows, "CHUNK": launch.chunk}
        constants = {**common, **tile, **more}
        constants = {name: x for name, x in constants.items() if name in kernel.arg_names}
        sums = ("lse_ptr", "delta_ptr", "grad_y_ptr", "grad_k_ptr", "grad_f_ptr")
        types = {name: operands for name in kernel.arg_names if name.endswith("_ptr")}
        types |= {name: "*fp32" for name in sums if name in types}
        compiled = binary(kernel, types, constants, capability, **launch.options)
        registers, stack = used(compiled)
        shared = compiled.metadata.shared
        print(f"sm_{capability} {form}, {kernel.__name__}: ", end="")
        print(f"{registers} registers, {stack} bytes of stack, {shared} of shared memory")
        assert shared <= (227 if capability in (90, 100) else 99) * 1024
        if half and rank <= 8 and kernel is code.forward_kernel:
            assert registers <= 128
            assert stack <= SPILLED.get((capability, form), 0)
        assert stack <= 128, kernel.__name__
        # eight columns at a time would leave most of a tensor core idle
        assert "m64n8k" not in compiled.asm["ptx"]
        if hopper and half and kernel is not code.delta_kernel:
            assert ("wgmma." if launch.rows >= 64 else "\tmma.") in compiled.asm["ptx"]


class _Grids:
    """In place of a kernel: keeps the grids that it is launched with."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *_, **__: None


@needs_triton
@pytest.mark.parametrize("by", ["position", "distance", "both"])
def test_only_the_first_dimension_of_a_grid_grows_with_the_batch(monkeypatch, by):
    """CUDA launches at most 65,535 programs in the second and in the third."""
    import kernels.attention_tiles_triton as tiles
    import kernels.continued_fraction_triton as fractions
    import kernels.embedding_triton as embedding
    import kernels.shared_attention_triton as attention

    launched = _Grids()
    for name in ("forward", "delta", "columns", "rows", "diagonals"):
        monkeypatch.setattr(tiles, f"{name}_kernel", launched)
    monkeypatch.setattr(embedding, "_sum_kernel", launched)
    monkeypatch.setattr(fractions, "_launched", lambda kernel: launched)
    batch, heads, length, rank = 40_000, 3, 70, 7
    with torch.device("meta"):
        v, y = torch.empty(batch, heads, length, 200), torch.empty(batch, heads, length, rank)
        F = torch.empty(heads, rank, length)
        operands = attention._operands(y, F, v, None if by != "both" else y, False, by != "position")
        out, lse = attention._forward._init_fn(*operands, v, rank, False)
        attention._backward._init_fn(*operands, v, rank, False, out, out, lse)
        assert len(launched.grids) >= 5
        embedding.embedding_backward(torch.empty(batch * heads, 300), torch.empty(batch * heads).long(), 9)
        a = torch.empty(3, 70_000, batch * length)  # many ladders: those of CAttnU are (2, T)
        z, *_ = fractions._forward._init_fn(a, True, 0.1, True)
        fractions._backward._init_fn(a, z, True, 0.1)
    for first, *others in launched.grids:
        assert 0 < first < 2**31
        assert all(0 < other <= 65_535 for other in others)


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
    "options",
    [
        {"strict": False},
        {"strict": True},
        {"strict": True, "relative": True},
        {"strict": False, "relative": True, "keys": True},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shared_attention_is_one_graph(options, dtype):
    from kernels.shared_attention_triton import shared_attention_triton

    shapes = [(2, 1, 17, 7), (1, 7, 17), (2, 1, 17, 24)]
    inputs = [torch.rand(shape, requires_grad=True) for shape in shapes]
    inputs[2] = inputs[2].detach().to(dtype).requires_grad_()
    if with_keys := options.get("keys", False):
        inputs.append(torch.rand(shapes[0], requires_grad=True))

    def function(y, F, v, keys=None):
        return shared_attention_triton(y, F, v, **{**options, "keys": keys if with_keys else None})

    names = [[str(node.target) for node in graph.graph.nodes] for graph in traced(function, *inputs)]
    forward, backward = ([name for name in one if "cofrgenet" in name] for one in names)
    assert forward == ["cofrgenet.shared_attention_triton.default"]
    assert backward == ["cofrgenet.shared_attention_triton_backward.default"]
