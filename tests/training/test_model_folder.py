"""Model folders on disk: their checksums, damage, a full disk."""

import errno
import json
import os
import shutil
import subprocess

import pytest
import torch

from training import model_folder
from training.checkpoint import CheckpointError

TENSORS = {"w": torch.arange(1000.0)}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    model_folder.write(folder, {"a": 1}, TENSORS, {"tokenizer.json": "{}"})
    return folder


def read(folder):
    return model_folder.read_tensors(folder)


def test_the_checksum_is_that_of_sha256sum(folder):
    assert torch.equal(read(folder)["w"], TENSORS["w"])
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)


def test_a_flipped_bit_is_found(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"model\.safetensors .*SHA-256"):
        read(folder)
    (folder / "SHA256SUMS").unlink()  # as the message says, for weights that were changed on purpose
    assert not torch.equal(read(folder)["w"], TENSORS["w"])


@pytest.mark.parametrize("content", [b"no sums\n", b"\xff\xfe\n", b"0" * 64 + b"\n"])
def test_a_damaged_list_of_checksums(folder, content):
    (folder / "SHA256SUMS").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"SHA256SUMS (holds|cannot be read)"):
        read(folder)


def test_sums_of_shards_and_of_other_files(folder):
    """Several files of weights, in the two notations of sha256sum; other lines are not looked at."""
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {"config.json", "tokenizer.json", "model.safetensors"}
    digest = sums["model.safetensors"]
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    (folder / model_folder.INDEX).write_text(json.dumps({"weight_map": {"w": "shard.safetensors"}}))
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  README.md\n{digest} *shard.safetensors\n")
    assert torch.equal(read(folder)["w"], TENSORS["w"])
    (folder / "SHA256SUMS").write_text(f"{'0' * 64} *shard.safetensors\n")
    with pytest.raises(CheckpointError, match=r"shard\.safetensors is damaged"):
        read(folder)
    (folder / model_folder.INDEX).write_text(json.dumps({"weight_map": {"w": 1}}))
    with pytest.raises(CheckpointError, match="no weight_map"):
        read(folder)


@pytest.mark.parametrize("kept", ["", "config.json", "tokenizer.json"])
def test_a_list_of_checksums_without_the_weights_is_refused(folder, kept):
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    (folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines if kept and kept in line))
    with pytest.raises(CheckpointError, match=r"SHA256SUMS does not list model\.safetensors"):
        read(folder)


def test_sums_of_names_with_their_folder(folder):
    """As `sha256sum ./*` writes them."""
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("  ", "  ./"))
    assert torch.equal(read(folder)["w"], TENSORS["w"])
    sums.write_text(sums.read_text().translate(str.maketrans("0123456789", "1234567890")))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read(folder)


@pytest.mark.parametrize("outside", ["../model/model.safetensors", "a/../../model/model.safetensors", "/"])
def test_an_index_names_files_of_its_folder_only(folder, outside):
    outside = str(folder / "model.safetensors") if outside == "/" else outside
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / model_folder.INDEX).write_text(json.dumps({"weight_map": {"w": outside}}))
    with pytest.raises(CheckpointError, match=f"names {outside},"):
        read(folder.parent / "other")


def test_pipes_in_the_place_of_files_do_not_hang(folder):
    (folder / "SHA256SUMS").unlink()
    os.mkfifo(folder / "SHA256SUMS")
    with pytest.raises(CheckpointError, match=r"SHA256SUMS.*named pipe"):
        read(folder)
    (folder / "SHA256SUMS").unlink()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*named pipe"):
        read(folder)


def test_a_full_disk_is_called_full_and_leaves_nothing(tmp_path, monkeypatch):
    import safetensors.torch
    from safetensors import SafetensorError

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match=r"/model .*the disk is full"):
        model_folder.write(tmp_path / "model", {}, TENSORS, {})
    monkeypatch.undo()

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="the disk is full"):
        model_folder.write(tmp_path / "model", {}, TENSORS, {})
    assert list(tmp_path.iterdir()) == []
