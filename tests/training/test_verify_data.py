"""When a run reads all of its training data before it starts, and what it says of damage."""

import shutil
from pathlib import Path

import pytest

from tests.corpus.test_checksums import flip_a_bit, forget_checksums, write_zeros
from training import inputs


@pytest.fixture
def damaged(dataset, tmp_path):
    """damaged(file) -> a copy of the data set with one bit flipped, in the last tokens of the file."""

    def make(name):
        folder = Path(shutil.copytree(dataset, tmp_path / f"damaged {name}"))
        flip_a_bit(folder / name)
        return folder

    return make


def refused(run, *overrides):
    with pytest.raises(SystemExit) as stop:
        run("a", *overrides)
    return str(stop.value.code)


@pytest.mark.parametrize("name", ["val.bin", "token_bytes.npy"])
def test_what_is_small_is_always_read_whole(run, damaged, tmp_path, name):
    said = refused(run, f"--dataset={damaged(name)}", "--max_iters=2", "--verify_data=False")
    assert f"{name} is damaged" in said
    assert not (tmp_path / "a").exists()


def test_training_data_are_read_whole_on_request_and_before_a_long_run(run, damaged, tmp_path):
    """The run of two steps reads 4,096 of 45,000 tokens, that of 12 steps more than half of them."""
    keys = (f"--dataset={damaged('train.bin')}", "--batch_size=32", "--n_layer=1")
    assert "train.bin is damaged" in refused(run, *keys, "--max_iters=2", "--verify_data=True")
    assert "train.bin is damaged" in refused(run, *keys, "--max_iters=12")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {".lock"}
    run("a", *keys, "--max_iters=2")
    run("b", *keys, "--max_iters=12", "--verify_data=False")
    said = refused(run, *keys, "--max_iters=12", "--resume=True", "--verify_data=True")
    assert "train.bin is damaged" in said
    run("a", *keys, "--max_iters=12", "--resume=True")


def test_data_without_checksums_are_counted_on_request_alone(run, dataset, tmp_path):
    """Counting takes ten times as long as a checksum."""
    folder = Path(shutil.copytree(dataset, tmp_path / "older"))
    forget_checksums(folder)
    write_zeros(folder / "train.bin")
    keys = (f"--dataset={folder}", "--batch_size=32", "--n_layer=1")
    said = refused(run, *keys, "--max_iters=2", "--verify_data=True")
    assert "train.bin does not hold what" in said
    run("a", *keys, "--max_iters=12", "--eval_interval=12")


class TwoRanks:
    """The second rank of a machine: it agrees as often as the first one does, and reads nothing."""

    first, local_rank = False, 1

    def __init__(self, turns):
        self.turns = turns

    def agree(self, check, errors):
        assert check() == 0
        return 0

    def any(self, flag):
        self.turns -= 1
        return self.turns >= 0


def test_ranks_take_turns(dataset, monkeypatch):
    from corpus.loader import Dataset
    from training.config import TrainConfig

    config, data = TrainConfig(verify_data=True), Dataset(dataset, "train", 32)
    ranks = TwoRanks(turns=3)
    inputs.verify_training_data(config, data, ranks, resumed=False)
    assert ranks.turns == -1
    monkeypatch.setattr(inputs, "VERIFY_SECONDS", 0)
    portions = iter([5, 7])
    assert [inputs._read_on(portions) for _ in range(3)] == [5, 7, 0]
