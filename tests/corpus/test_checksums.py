"""Damage to the files of a data set: what is found at opening, and what by reading them whole."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from corpus import DataError, checksums
from corpus.binary import prepare
from corpus.loader import Dataset
from corpus.mixture import open_dataset
from tests.corpus.test_loader import change_meta


@pytest.fixture
def folder(dataset, tmp_path):
    return Path(shutil.copytree(dataset, tmp_path / "set"))


def read_whole(folder, split="train"):
    return sum(Dataset(folder, split, 32).verified())


def flip_a_bit(path, place=-9):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def write_zeros(path, place=1000):
    content = bytearray(path.read_bytes())
    content[place : place + 512] = bytes(512)
    path.write_bytes(bytes(content))


def forget_checksums(folder):
    """As a data set that was prepared before there were any."""
    meta = json.loads((folder / "meta.json").read_text())
    del meta["files"]
    (folder / "meta.json").write_text(json.dumps(meta))


def test_every_file_is_recorded(tmp_path):
    texts = [f"text number {n} " * 5 for n in range(60)]
    meta = prepare(lambda: iter(texts), {}, "bpe:300", tmp_path / "set", 0.2, workers=1)
    assert meta["files"] == json.loads((tmp_path / "set" / "meta.json").read_text())["files"]
    names = {path.name for path in (tmp_path / "set").iterdir()} - {"meta.json"}
    assert meta["files"].keys() == names == {"train.bin", "val.bin", "token_bytes.npy", "tokenizer.json"}
    for name, recorded in meta["files"].items():
        assert recorded == checksums.of_file(tmp_path / "set" / name)


def test_a_damaged_tokenizer_is_named_with_its_folder(tmp_path):
    texts = [f"text number {n} " * 5 for n in range(60)]
    prepare(lambda: iter(texts), {}, "bpe:300", tmp_path / "set", 0.2, workers=1)
    Dataset(tmp_path / "set", "train", 8).tokenizer()
    flip_a_bit(tmp_path / "set" / "tokenizer.json")
    with pytest.raises(DataError, match=r"set/tokenizer\.json.*SHA-256"):
        Dataset(tmp_path / "set", "train", 8).tokenizer()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_sound_split_is_read_to_its_end(folder, monkeypatch, recorded):
    if not recorded:
        forget_checksums(folder)
    monkeypatch.setattr(checksums, "PORTION", 1000)
    for split in ("train", "val"):
        size = (folder / f"{split}.bin").stat().st_size
        assert [*Dataset(folder, split, 32).verified()] == [1000] * (size // 1000) + [size % 1000]


@pytest.mark.parametrize("damage", [flip_a_bit, write_zeros])
@pytest.mark.parametrize("split", ["train", "val"])
def test_damage_is_found_by_the_checksum(folder, damage, split):
    damage(folder / f"{split}.bin")
    with pytest.raises(DataError, match=rf"{split}\.bin.*SHA-256"):
        read_whole(folder, split)


def test_zeros_are_found_by_the_counts_of_older_data_sets(folder):
    """One token is one byte here, so that zeros change the count of documents alone."""
    forget_checksums(folder)
    write_zeros(folder / "train.bin")
    with pytest.raises(DataError, match=r"train\.bin.*documents 3"):
        read_whole(folder)


def test_tokens_beyond_the_vocabulary_are_found_in_older_data_sets(folder):
    forget_checksums(folder)
    tokens = np.fromfile(folder / "train.bin", dtype="<u2")
    tokens[-1] = 257
    tokens.tofile(folder / "train.bin")
    with pytest.raises(DataError, match=r"train\.bin.*token 257"):
        read_whole(folder)


def test_a_mixture_reads_all_its_data_sets(folder, dataset):
    sound = open_dataset(f"{dataset}:1,{folder}:2", "train", 32)
    assert sum(sound.verified()) == 2 * (folder / "train.bin").stat().st_size
    flip_a_bit(folder / "train.bin")
    with pytest.raises(DataError, match=str(folder)):
        sum(open_dataset(f"{dataset}:1,{folder}:2", "train", 32).verified())


def torch_archive(path):
    import torch

    torch.save({"a": 1}, path)


def huge_header(path):
    """A header that claims more numbers than any memory holds."""
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (257000000000000,), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def torn_header(path):
    path.write_bytes(path.read_bytes().replace(b"{", b"q", 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_text("a,b\n1,2\n"), "cannot be read"),
        (torch_archive, "cannot be read"),
        (lambda path: np.savez(path.open("wb"), a=np.zeros(3)), "cannot be read"),
        (huge_header, "cannot be read"),
        (torn_header, "cannot be read"),
        (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "cannot be read"),
        (lambda path: np.save(path, np.zeros(257)), "holds float64"),
        (lambda path: np.save(path, np.full(257, -1)), "holds -1"),
        (lambda path: np.save(path, np.ones(4, int)), "has shape (4,)"),
    ],
)
def test_token_bytes_that_are_something_else(folder, change, said):
    change(folder / "token_bytes.npy")
    with pytest.raises(DataError, match=r"token_bytes\.npy.*SHA-256"):
        _ = Dataset(folder, "train", 32).token_bytes
    forget_checksums(folder)
    with pytest.raises(DataError) as caught:
        _ = Dataset(folder, "train", 32).token_bytes
    assert said in str(caught.value)
    assert "token_bytes.npy" in str(caught.value)


def test_checksums_that_are_none(folder):
    for files in ([], {"train.bin": 1}, {"train.bin": {"bytes": 3}}):
        change_meta(folder, files=files)
        with pytest.raises(DataError, match=r"meta\.json was edited"):
            Dataset(folder, "train", 32)


def test_an_empty_split(folder):
    (folder / "val.bin").write_bytes(b"")
    change_meta(folder, splits={"val": {"tokens": 0}})
    with pytest.raises(DataError, match=r"val\.bin is empty"):
        Dataset(folder, "val", 32)
