"""Folders of config.json and model.safetensors (or several files and their index).

data_tokenizer.json, if there is one, is the tokenizer in our form.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from training.checkpoint import CheckpointError
from training.log import write_whole


def read_json(path: Path) -> dict:
    """Raises CheckpointError where the file holds no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no object")
    return content


def read_tensors(file: Callable[[str], Path]) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the files that its index names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = file("model.safetensors.index.json")
    names = ["model.safetensors"]
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise CheckpointError(f"{index} has no weight_map")
        names = sorted(set(shards.values()))
    tensors = {}
    for name in names:
        path = file(name)
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist (weights are read from safetensors files only)")
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or no safetensors file ({error})") from None
    return tensors


def read_tokenizer(folder: Path) -> dict | None:
    """What `write` was given; raises CheckpointError where it cannot be read."""
    path = folder / "data_tokenizer.json"
    return read_json(path) if path.is_file() else None


def write(folder: Path, content: dict, tensors: dict[str, torch.Tensor], tokenizer: dict | None):
    """Write a folder that does not exist yet, whole or not at all. tokenizer: Tokenizer.to_json().

    Raises CheckpointError where something is there already, OSError where the disk does not take it.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise CheckpointError(f"{folder} exists already, and nothing is overwritten: choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir()
        write_whole(beside / "config.json", json.dumps(content, indent=2) + "\n")
        if tokenizer is not None:
            write_whole(beside / "data_tokenizer.json", json.dumps(tokenizer) + "\n")
            if text := tokenizer.get("tokenizer.json"):
                write_whole(beside / "tokenizer.json", text)
        # safetensors refuses tensors that share memory
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        save_file(tensors, beside / "model.safetensors", {"format": "pt"})
        with open(beside / "model.safetensors", "rb") as file:
            os.fsync(file.fileno())
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
