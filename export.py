"""Write a model folder: config.json and model.safetensors.

    python export.py out/gpt2 out/gpt2_hf
    python export.py out/cofrgenet_f/ckpt/step_00002000.pt exported/cofrgenet_f

Hugging Face's transformers loads the folder: GPT-2 and Llama as its own, every other architecture with the
model's code, which the folder then holds, and trust_remote_code=True. So do `train.py --init_from=FOLDER`,
`sample.py FOLDER` and `evaluate.py FOLDER`.
"""

from host import interruption  # noqa: F401 (first)

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import configurator
from corpus import DataError
from remote_code import trial
from remote_code.packing import PackingError
from training import pretrained
from training.checkpoint import CheckpointError


@dataclass
class ExportConfig:
    """Write a run's model as a folder of config.json and model.safetensors."""

    folders: list[str]  # two: a run folder or checkpoint of train.py, and the new folder
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest
    load: bool = True  # load the folder with transformers, if that is installed, and compare the loss

    def check(self) -> list[str]:
        if len(self.folders) != 2:
            return [f"name two folders, a run and a new one (out/gpt2 exported), not {len(self.folders)}"]
        return []


def main(argv: list[str]):
    config = configurator.parse(ExportConfig, argv, positional="folders")
    run, folder = config.folders
    try:
        source = pretrained.open_source(run, config.which)
        written = pretrained.export(source, Path(folder), config.load and trial.is_possible())
    except (CheckpointError, DataError, PackingError, OSError) as error:
        sys.exit(f"export.py: {error}")
    except trial.TrialError as error:
        sys.exit(
            f"export.py: {folder} was not written: {error}. Mend the model's code, or leave the check out "
            "with --load=False: our own scripts do not need transformers"
        )
    print(f"{source.path} -> {folder}, for transformers ({written.architecture}) and our scripts")
    if config.load and not trial.is_possible():
        print("not checked with transformers, which is not installed here")
    if written.packages is not None:
        print(
            "the folder holds the model's code: load it with trust_remote_code=True, where there are "
            + ", ".join(sorted(written.packages))
        )
    elif source.config.norm == "layernorm" and not source.config.bias:
        print("GPT-2 has biases: zeros were written for them, which training from this folder will change")


if __name__ == "__main__":
    main(sys.argv[1:])
