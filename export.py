"""Write a model folder: config.json and model.safetensors.

    python export.py out/gpt2 out/gpt2_hf
    python export.py out/cofrgenet_f/ckpt/step_00002000.pt exported/cofrgenet_f

GPT-2 and Llama are written for Hugging Face's transformers, all other architectures in a format of our own.
`train.py --init_from=FOLDER` and `sample.py FOLDER` read both.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import configurator
from training import pretrained
from training.checkpoint import CheckpointError


@dataclass
class ExportConfig:
    """Write a run's model as a folder of config.json and model.safetensors."""

    folders: list[str]  # two: a run folder or checkpoint of train.py, and the new folder
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest

    def check(self) -> list[str]:
        if len(self.folders) != 2:
            return [f"name two folders, a run and a new one (out/gpt2 exported), not {len(self.folders)}"]
        return []


def main(argv: list[str]):
    config = configurator.parse(ExportConfig, argv, positional="folders")
    run, folder = config.folders
    try:
        source = pretrained.open_source(run, config.which)
        known = pretrained.export(source, Path(folder))
    except (CheckpointError, OSError) as error:
        sys.exit(f"export.py: {error}")
    readers = "train.py and sample.py"
    print(f"{source.path} -> {folder}, for {'transformers, ' if known else ''}{readers}")
    if known and source.config.norm == "layernorm" and not source.config.bias:
        print("GPT-2 has biases: zeros were written for them, which training from this folder will change")


if __name__ == "__main__":
    main(sys.argv[1:])
