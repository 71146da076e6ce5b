"""Loads an exported folder with transformers in a process of its own, as its users will.

`python -P trial.py FOLDER TOKENS` is that process, where TOKENS is a number.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

TOKENS = 64  # of the text that both models read, if they can
ROUNDING = 1e-3  # of a loss, in nats


class TrialError(RuntimeError):
    """transformers cannot load what was written, or computes something else with it."""


def is_possible() -> bool:
    return importlib.util.find_spec("transformers") is not None


def loss(model, vocab_size: int, length: int) -> float:
    """The mean cross-entropy of made-up targets, in nats. model: [1, T] int64 -> [1, T, vocab_size]"""
    tokens = 7 * torch.arange(length) % vocab_size
    with torch.no_grad():
        return F.cross_entropy(model(tokens[None])[0].float(), tokens).item()


def load(folder: Path, model, vocab_size: int, length: int):
    """Raises TrialError where transformers does not load the folder, or finds another loss than `model`.

    length: tokens that both read. A model that does not run on a CPU is loaded only.
    """
    try:
        expected = loss(model, vocab_size, length)
    except Exception:  # of a module that needs a GPU
        length, expected = 0, math.nan
    with tempfile.TemporaryDirectory() as scratch:
        # code of the folder is copied to the cache of modules; nothing comes from the hub
        where = {"HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        command = [sys.executable, "-P", str(Path(__file__)), str(folder.absolute()), str(length)]
        ended = subprocess.run(
            command, cwd=scratch, env=os.environ | where, capture_output=True, text=True, errors="replace"
        )
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        raise TrialError(f"the process that loads it with transformers ended: {last}") from None
    name = f"transformers {found['version']}"
    if "error" in found:
        raise TrialError(f"{name} cannot load it ({found['error']})")
    if length and not abs(found["loss"] - expected) <= ROUNDING:
        raise TrialError(f"{name} finds the loss {found['loss']:.4f} where ours is {expected:.4f}")


def main(folder: str, length: int):
    """Prints {version, and loss or error} as JSON."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = {"version": transformers.__version__}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
        if (Path(folder) / "tokenizer_config.json").is_file():
            AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        if length:
            found["loss"] = loss(lambda tokens: model(tokens).logits, model.config.vocab_size, length)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
