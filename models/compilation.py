"""A model compiled in place: blocks, embedding and loss; one without blocks is compiled as a whole.

All blocks of a model share code and shapes, so that one graph serves all of them: a model of 48 layers
compiles as fast as one of a single layer. Nothing is fused across two blocks. A block of a sharded model
gathers its weights before the compiled code runs, and drops them after it.
"""

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from os import environ
from pathlib import Path

import torch

from models.language_model import LanguageModel


def compile_parts(
    model: LanguageModel, backend: str | Callable = "inductor", shapes: int = 1, options: dict | None = None
):
    """From now on `model.forward` runs compiled code, but for code under `eager`. Parameters, values and
    methods stay what they are. shapes: how many shapes of batches there may be; each compiles anew.
    options: of the backend.
    """
    config = torch._dynamo.config
    # the code of a user's module may depend on its block's number: then each block has a graph of its own
    needed = 8 + len(model.stacks()) * shapes
    config.recompile_limit = max(config.recompile_limit, needed)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, needed)
    # gradients travel after each block anyway: splitting a block's graph at DDP's buckets gains nothing
    config.optimize_ddp = False
    how = {"fullgraph": True, "dynamic": False, "backend": backend, "options": options}
    if not model.blocks:
        return model.compile(**how)
    for block in model.stacks():
        block.compile(**how)
    model.embed, model.loss = torch.compile(model.embed, **how), torch.compile(model.loss, **how)


def eager() -> torch.compiler.set_stance:
    """A context in which compiled models run without the compiler: other shapes must not compile anew."""
    return torch.compiler.set_stance("force_eager")


def missing_for_compile() -> list[str]:
    """What torch.compile lacks on a CPU. Builds an empty program, as a compiler may lack its assembler."""
    missing = []
    compiler = environ.get("CXX") or "g++"  # what PyTorch takes
    if shutil.which(compiler) is None:
        missing.append(f"a C++ compiler: there is no {compiler} (Debian: apt-get install g++)")
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [compiler, "-x", "c++", "-", "-o", str(Path(folder) / "program")]
            built = subprocess.run(command, input="int main() {}", capture_output=True, text=True)
        if built.returncode:
            said = (built.stderr.strip().splitlines() or [f"status {built.returncode}"])[0]
            missing.append(f"a C++ compiler that works: {compiler} says {said!r}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    return missing
