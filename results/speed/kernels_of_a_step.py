"""How many kernels a block of a one-token step takes on an H200, counted in Inductor's generated code.

    python results/speed/kernels_of_a_step.py > results/speed/kernels_of_a_step.csv

No GPU is needed: PyTorch is told that there is one, tensors have shapes and no numbers, and the generated
code is read before anything is compiled. That takes private parts of PyTorch: written for 2.13, it may not
run with another version. GPT2-xl's width, one sequence, bfloat16 weights.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)

import torch  # noqa: E402
import triton  # noqa: E402
from torch._dynamo.device_interface import CudaInterface  # noqa: E402
from torch._functorch import config as functorch  # noqa: E402
from torch._inductor import config as inductor  # noqa: E402
from torch._inductor.fx_passes import joint_graph, post_grad  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch._subclasses.functional_tensor import FunctionalTensor  # noqa: E402

import configurator  # noqa: E402
from decoding.decoder import TUNED  # noqa: E402
from decoding.fused import unfit  # noqa: E402
from decoding.prepared import prepared  # noqa: E402
from model import GPT, Block  # noqa: E402
from models.architecture import ModelConfig  # noqa: E402

MODELS = {
    "dense": "config/gpt2_xl.py",
    "F": "config/cofrgenet_f.py",
    "A": "config/cofrgenet_a.py",
    "full": "config/cofrgenet.py",
    "ours": "config/ours/ladder_full.py",
}
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=141 << 30,
    gcnArchName="", L2_cache_size=50 << 20, shared_memory_per_block=49152, is_integrated=0,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, is_multi_gpu_board=0,
)  # fmt: skip
OF_CUDA = {
    "get_device_properties": lambda device=None: H200,
    "_get_device_properties": lambda device=None: H200,
    "get_device_capability": lambda device=None: (9, 0),
    "current_device": lambda: 0,
    "device_count": lambda: 1,
    "is_available": lambda: True,
    "_lazy_init": lambda: None,
    "is_initialized": lambda: False,
    "get_rng_state": lambda *_: torch.zeros(8, dtype=torch.uint8),
    "set_rng_state": lambda *_: None,
    "_exchange_device": lambda device: 0,
    "_maybe_exchange_device": lambda device: 0,
}
OF_INTERFACE = {
    "get_compute_capability": lambda device=None: 90,
    "is_available": lambda: True,
    "is_triton_capable": lambda device=None: True,
    "raise_if_triton_unavailable": lambda device=None: None,
    "current_device": lambda: 0,
    "is_bf16_supported": lambda *_, **__: True,
    "get_device_properties": lambda device=None: H200,
}


class Driver:
    """Of Triton, for a GPU that is not there."""

    get_current_target = staticmethod(lambda: triton.backends.compiler.GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cuda"))
    get_current_stream = staticmethod(lambda device=0: 0)
    get_benchmarker = staticmethod(lambda: None)


class Read(Exception):
    """The generated code, in place of a compiled module."""


def pretend():
    """From now on there is an H200, as far as the compiler asks."""
    for name, value in OF_CUDA.items():
        setattr(torch.cuda, name, value)
    for name, value in OF_INTERFACE.items():
        setattr(CudaInterface, name, staticmethod(value))
    CudaInterface.Worker.get_device_properties = staticmethod(lambda device=None: H200)
    CudaInterface.Worker.current_device = staticmethod(lambda: 0)
    triton.runtime.driver.set_active(Driver())
    for passes in (joint_graph, post_grad):  # patterns that are traced with real tensors
        passes.lazy_init = lambda *_, **__: None
    inductor.joint_graph_constant_folding = inductor.fx_graph_cache = functorch.enable_autograd_cache = (
        False
    )
    inductor.compile_threads = 1
    for kind in (FakeTensor, FunctionalTensor):  # these reach CUDA's own code otherwise
        kind.__getitem__ = selected
        kind.copy_ = lambda to, other, *_: torch.ops.aten.copy_.default(to, other)
        kind.__invert__ = lambda of: torch.bitwise_not(of)
        kind.contiguous = contiguous

    def read(lowering):
        code = lowering.codegen()[0]
        raise Read(getattr(code, "value", code))

    GraphLowering._compile_to_module = read


def contiguous(of, **_):
    if of.is_contiguous():
        return of
    return torch.ops.aten.clone(of, memory_format=torch.contiguous_format)


def selected(of, key):
    """of[key], by operators."""
    key = key if isinstance(key, tuple) else (key,)
    if not any(one is Ellipsis for one in key):
        key = (*key, Ellipsis)
    left, dim = of.dim() - sum(one is not None and one is not Ellipsis for one in key), 0
    for one in key:
        if one is Ellipsis:
            dim += left
        elif isinstance(one, int):
            of = of.select(dim, one)
        else:
            if one is None:
                of = of.unsqueeze(dim)
            elif isinstance(one, slice):
                start, end, step = one.indices(of.shape[dim])
                of = torch.ops.aten.slice.Tensor(of, dim, start, end, step)
            else:
                of = torch.ops.aten.index_select(of, dim, one)
            dim += 1
    return of


def kernels(config: ModelConfig, tuned: bool) -> int:
    """Launches in the generated code of a block."""
    torch._dynamo.reset()
    with torch.device("meta"):
        model = GPT(config).eval().bfloat16()
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    with mode, torch.no_grad():
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(fake(parameter), requires_grad=False)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else fake(buffer)
        mixer, meta = model.blocks[0].attention, torch.device("meta")
        cache = tuple(map(fake, mixer.new_cache(1, config.block_size, meta, torch.bfloat16)))
        x = torch.empty(1, 1, config.n_embd, device="cuda", dtype=torch.bfloat16)
        pos = torch.empty(1, device="cuda", dtype=torch.int64)
        copy = prepared(model, 1)
        compiled = torch.compile(
            Block.forward, fullgraph=True, dynamic=False, options=TUNED if tuned else {}
        )
        try:
            compiled(copy.blocks[0], x, copy.position.at(pos), pos, cache)
        except Exception as error:  # the compiler wraps it in one of its own
            if not isinstance(getattr(error, "inner_exception", error), Read):
                raise
            body = str(getattr(error, "inner_exception", error)).partition("def call(")[2]
    return len(re.findall(r"triton_\w+\.run\(|extern_kernels\.\w+\(|torch\.ops\.[\w.]+\(", body))


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    pretend()
    print("model,inductor,tuned,fused")
    for name, path in MODELS.items():
        config = configurator.resolve(ModelConfig, [path])
        config.vocab_size, config.n_layer = 50257, 1
        counts = [kernels(config, tuned) for tuned in (False, True)]
        print(name, *counts, "" if unfit(config) else 5, sep=",", flush=True)


if __name__ == "__main__":
    main()
