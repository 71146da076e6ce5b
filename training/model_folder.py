"""Folders of config.json and model.safetensors (or several files and their index).

data_tokenizer.json, if there is one, is the tokenizer in our form. SHA256SUMS, if there is one, holds the
checksums of the files as `sha256sum -c` reads them.
"""

from host.disk import absence, make_folder, open_to_read, read_json, refuse_unreadable, why_not_written

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from models.architecture import ModelConfig
from training.checkpoint import CheckpointError, check_layers
from training.log import write_whole

TOKENIZER = "data_tokenizer.json"
CARD = "README.md"  # has no checksum: its reader fills in the licence
INDEX = "model.safetensors.index.json"
CHECKSUMS = "SHA256SUMS"


def check_weights_exist(folder: Path, config: ModelConfig):
    """Raises CheckpointError where a folder with a config.json has no file of weights, or one with fewer
    tensors than `config` has layers. Tensors are not read.
    """
    from safetensors import SafetensorError, safe_open

    weights = folder / "model.safetensors"
    if not weights.is_file() and not (folder / INDEX).is_file():
        raise CheckpointError(
            f"{folder} has a config.json but no weights: {weights} does not exist (weights are read from "
            "safetensors files only); put the file beside config.json, or give another folder"
        )
    if weights.is_file() and not (folder / INDEX).is_file():
        with contextlib.suppress(SafetensorError, OSError), safe_open(weights, "pt") as file:
            check_layers(config, file.keys(), folder)  # of a damaged file, `read_tensors` says more


def check_finite(weights: dict[str, torch.Tensor], path: Path):
    """Raises CheckpointError, naming one, where weights are nan or infinite."""
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise CheckpointError(
                f"{path}: {name} is not finite, so that the model gives no finite loss: take an earlier "
                "checkpoint, or another run"
            )


def read_tensors(folder: Path, file: Callable[[str], Path | None] | None = None) -> dict[str, torch.Tensor]:
    """All tensors of a folder's model.safetensors, or of the files that its index names.

    file: where a file of that name lies, None where there is none; by default, in `folder`. Where there are
    CHECKSUMS, they must list each of these files, and its SHA-256 is compared first, which reads the file
    once more: 0.5 to 1.5 seconds a gigabyte. Raises CheckpointError where a file is missing, damaged or not
    the one of that sum, and where the index names one outside the folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = file or (lambda name: path if (path := folder / name).exists() else None)
    names = ["model.safetensors"]
    if (index := file(INDEX)) is not None:
        shards = read_json(index, CheckpointError).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index} has no weight_map of names of files")
        names = sorted(set(shards.values()))
        if outside := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise CheckpointError(
                f"{index} names {outside[0]}, and weights are read from its own folder only: put the file "
                "there, and its name into weight_map"
            )
        single = file("model.safetensors")
        if single is not None and single.name not in names:
            raise CheckpointError(
                f"{single} and {index} lie in one folder, and may be of two models: remove one of them"
            )
    sums = file(CHECKSUMS)
    recorded = None if sums is None else _checksums(sums)
    tensors = {}
    for name in names:
        path = file(name)
        if path is None:
            raise CheckpointError(
                f"{folder / name} does not exist (weights are read from safetensors files only)"
            )
        try:
            if recorded is not None and str(Path(name)) not in recorded:
                raise CheckpointError(
                    f"{sums} does not list {name}, so it was cut or is of another folder: write the folder "
                    f"again or, if you trust the weights, delete {sums}"
                )
            if recorded is not None and _sha256(path) != recorded[str(Path(name))]:
                raise CheckpointError(
                    f"{path} is damaged, or not the file that was written here: its SHA-256 is not that of "
                    f"{CHECKSUMS}. Put back the file, or write the folder again. If you changed weights "
                    f"on purpose, delete {sums}"
                )
            refuse_unreadable(path)
            more = load_file(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged or no safetensors file ({error})") from None
        if twice := sorted(tensors.keys() & more.keys()):
            raise CheckpointError(f"{path} holds {twice[0]}, and so does another file that {index} names")
        tensors |= more
    return tensors


def _sha256(path: Path) -> str:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(path: Path) -> dict[str, str]:
    """{file: SHA-256} of lines as sha256sum writes them, of names in their shortest form (./a: a)."""
    try:
        with open_to_read(path) as file:
            lines = file.read().decode().splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); delete it, or write the folder again"
        ) from None
    found = {}
    for line in lines:
        if not (parts := re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)):
            raise CheckpointError(f"{path} holds {line[:80]!r}, no checksum; write the folder again")
        found[str(Path(parts[2]))] = parts[1]
    return found


def read_tokenizer(folder: Path) -> dict | None:
    """The tokenizer as Tokenizer.to_json gave it; CheckpointError where it cannot be read."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    content = read_json(path, CheckpointError)
    for key in ("kind", "hash"):
        if not isinstance(content.get(key), str):
            raise CheckpointError(f"{path} holds no tokenizer (it has no {key}): write the folder again")
    return content


def write(
    folder: Path,
    content: dict,
    tensors: dict[str, torch.Tensor],
    files: dict[str, str | bytes],
    trial: Callable[[Path], None] | None = None,
):
    """Write a folder that is new or empty, whole or not at all; content: of config.json, files: what else.

    trial(folder) reads all of it before it gets its name; what it raises leaves no folder. Raises
    CheckpointError where something is there already, OSError where the disk does not take it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(
        os.path.realpath(folder)
    )  # a folder can be renamed to an empty folder, not to a link to one
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise CheckpointError(f"{folder} {what}, and nothing is overwritten: choose another folder")
    if folder.is_symlink():  # a loop
        raise CheckpointError(f"{folder} {absence(folder)}, or choose another folder")
    make_folder(folder.parent)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir()
        write_whole(beside / "config.json", json.dumps(content, indent=2) + "\n")
        for name, data in files.items():
            write_whole(beside / name, data)
        # safetensors refuses tensors that share memory
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        weights = beside / "model.safetensors"
        try:
            save_file(tensors, weights, {"format": "pt"})
            os.chmod(weights, (beside / "config.json").stat().st_mode)  # the library writes 0600
            with open(weights, "rb") as file:
                os.fsync(file.fileno())
        except (SafetensorError, OSError) as error:
            raise OSError(f"{folder} could not be written ({why_not_written(error)})") from error
        written = sorted(path for path in beside.iterdir() if path.name != CARD)
        write_whole(beside / CHECKSUMS, "".join(f"{_sha256(path)}  {path.name}\n" for path in written))
        if trial is not None:
            trial(beside)
        os.rename(beside, folder)  # fails where something has come into the folder since
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
