"""A checkpoint that was changed on the disk never loads in silence."""

import zipfile
from pathlib import Path

import pytest
import torch

import export
import sample
import train
from training import archive, checkpoint, pretrained
from training.checkpoint import CheckpointError

CONTENT = {
    **{"step": 1, "config": {"a": 1}, "tokenizer": {}, "data": {}, "best_val_loss": 1.0, "seconds": 0.0},
    **{
        "tracker_id": None,
        "scaler": {},
        "samples": 8,
        "tokens": 64,
        "ranks": 1,
        "records": 0,
        "commit": "abc",
    },
    "model": {"w": torch.arange(90.0), "v": torch.arange(90.0), "empty": torch.empty(0)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(50.0)}}},
}


def flip(path: Path, place: int, bit: int = 4):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def place_of(path: Path, tensor: torch.Tensor) -> int:
    """Where in the file the bytes of a tensor begin."""
    return path.read_bytes().index(tensor.numpy().tobytes())


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.parametrize("mmap", [False, True])
def test_a_flipped_bit_anywhere_is_noticed_or_means_nothing(tmp_path, mmap):
    """In the tensors, the pickle, the directory of the archive and the padding."""
    path = checkpoint.save(tmp_path, 1, CONTENT, 2, False)
    whole, content = path.read_bytes(), checkpoint.load(path)
    content.pop("checksums")
    noticed = 0
    for place in range(0, len(whole), 13):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        other = tmp_path / f"{place}.pt"  # pages of the file may still be held
        other.write_bytes(data)
        try:
            found = checkpoint.load(other, mmap)
        except CheckpointError as error:
            noticed += str(other) in str(error)
        else:
            found.pop("checksums")
            assert same(found, content), place
        other.unlink()
    assert noticed > 0.3 * len(range(0, len(whole), 13))


@pytest.mark.parametrize(
    ("part", "name"), [("model", "model.w"), ("optimizer", "optimizer.state.0.exp_avg")]
)
def test_the_tensor_is_named(tmp_path, part, name):
    content = {**CONTENT, "model": {"w": torch.rand(90)}}
    content["optimizer"] = {"state": {0: {"exp_avg": torch.rand(50)}}}
    path = checkpoint.save(tmp_path, 1, content, 2, False)
    tensor = content["model"]["w"] if part == "model" else content["optimizer"]["state"][0]["exp_avg"]
    flip(path, place_of(path, tensor))
    with pytest.raises(CheckpointError, match=rf"damaged: .*checksum of {name} "):
        checkpoint.load(path)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(path, mmap=True)
    found = checkpoint.load(path, mmap=True, check=False)  # on ranks that share pages with one that checks
    if part == "model":
        with pytest.raises(CheckpointError, match=name):
            pretrained.weights_of_run(path, found)
    else:  # what is not read need not be whole
        assert torch.equal(pretrained.weights_of_run(path, found)["w"], content["model"]["w"])


def test_two_tensors_of_one_record_are_noticed(tmp_path):
    """One of them would be another's bytes, and so of a known checksum."""
    path = checkpoint.save(
        tmp_path, 1, {**CONTENT, "model": {"w": torch.rand(9), "v": torch.rand(9)}}, 2, False
    )
    content = checkpoint.load(path)
    content["model"]["w"] = content["model"]["v"].clone()
    with pytest.raises(archive.DamagedError, match=r"checksum of model\.v "):
        archive.check_tensors({"model": content["model"]}, content["checksums"])


def test_files_without_checksums_still_load(tmp_path):
    path = tmp_path / "old.pt"
    torch.save({**CONTENT, "format": checkpoint.FORMAT}, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    content = checkpoint.load(path)
    assert torch.equal(pretrained.weights_of_run(path, content)["w"], CONTENT["model"]["w"])


def test_every_script_refuses_a_damaged_checkpoint(run, arguments, tmp_path):
    folder, _ = run("a", "--max_iters=10")
    last, best = checkpoint.numbered(folder / "ckpt")[-1], folder / "ckpt" / "best.pt"
    assert last.samefile(best)
    flip(last, place_of(last, checkpoint.load(last)["model"]["blocks.0.ffn.up.weight"]) + 17)
    named = r"damaged: .*model\.blocks\.0\.ffn\.up\.weight"
    with pytest.raises(CheckpointError, match=named):
        pretrained.load(folder)
    with pytest.raises(SystemExit, match=named):
        sample.main([str(folder), "--max_new_tokens=1"])
    with pytest.raises(SystemExit, match=named):
        export.main([str(last), str(tmp_path / "exported")])
    assert not (tmp_path / "exported").exists()
    with pytest.raises(SystemExit, match=named):
        train.main([*arguments, f"--init_from={folder}", f"--out_dir={tmp_path / 'b'}"])
    advice = r"best\.pt.* step_00000005\.pt"
    with pytest.raises(SystemExit, match=named + ".*" + advice):
        train.main([f"--out_dir={folder}", "--resume=True"])
    last.unlink()
    best.unlink()
    train.main([f"--out_dir={folder}", "--resume=True"])
    assert checkpoint.step_of(checkpoint.find(folder)) == 10


def test_a_part_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb") as file:
        part = archive.Part(file, 2, 5)
        assert part.read() == b"23456"
        assert part.seek(-2, 2) == 3
        assert part.read(9) == b"56"
        assert part.seek(1) == 1
        assert (part.read(2), part.tell()) == (b"34", 3)
        assert part.seek(7) == 7
        assert part.read() == b""
        with pytest.raises(OSError, match="before the beginning"):
            part.seek(-6, 2)
