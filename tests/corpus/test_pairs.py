"""Samples of pairs: each begins at position 0, and depends on its number alone."""

import itertools
import shutil

import numpy as np
import pytest
import torch

from corpus import DataError
from corpus.binary import prepare
from corpus.loader import IGNORED, Dataset, Loader
from corpus.mixture import open_dataset
from corpus.pairs import CHUNK, MULTIPLE, PairDataset
from corpus.splits import Pair

BLOCK = 40
END = 256


def pairs_of(count, seed=0, longest=24):
    """Pairs of letters with lengths of all kinds; some are longer than BLOCK."""
    random = np.random.default_rng(seed)
    for number in range(count):
        sides = ["".join(map(chr, random.integers(97, 123, random.integers(1, longest)))) for _ in range(2)]
        yield Pair(*sides, f"group {number // 5}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1,000 pairs in bytes."""
    out = tmp_path_factory.mktemp("pairs") / "set"
    prepare(lambda: pairs_of(1000), {"made": "up"}, "bytes", out, 0.1, 1, pairs=True)
    return out


def read(folder, split="train"):
    """The pairs of a split, as lists of bytes."""
    tokens = Dataset(folder, split, 1).tokens
    texts = [piece.tolist()[:-1] for piece in np.split(tokens, np.flatnonzero(tokens == END) + 1)[:-1]]
    return list(zip(texts[::2], texts[1::2], strict=True))


def expected_row(pair, score_source):
    """(tokens, targets), written out."""
    source, target = pair
    text = [END, *source, END, *target, END]
    targets = (
        [*source, END, *target, END] if score_source else [IGNORED] * (len(source) + 1) + [*target, END]
    )
    return text[:-1], targets


@pytest.mark.parametrize("score_source", [False, True])
def test_a_sample_is_a_pair(folder, score_source):
    data = PairDataset(folder, "train", BLOCK, score_source=score_source)
    fitting = [pair for pair in read(folder) if len(pair[0]) + len(pair[1]) + 2 <= BLOCK]
    assert data.n_windows == len(fitting)
    assert data.left_out == len(read(folder)) - len(fitting) > 10
    assert data.epoch == len(fitting) // CHUNK * CHUNK
    wanted = {str(expected_row(pair, score_source)) for pair in fitting}
    seen, scored = [], 0
    for tokens, targets in itertools.islice(Loader(data, 16, 3, "cpu"), data.epoch // 16):
        assert tokens.shape == targets.shape
        assert tokens.shape[1] in (16, 32, BLOCK)
        longest = 0
        for x, y in zip(tokens.tolist(), targets.tolist(), strict=True):
            end = max(place for place, target in enumerate(y) if target != IGNORED) + 1
            assert set(x[end:]) <= {END}
            seen.append(str((x[:end], y[:end])))
            scored += sum(target != IGNORED for target in y)
            longest = max(longest, end)
        assert tokens.shape[1] == min(BLOCK, -(-longest // MULTIPLE) * MULTIPLE)
    assert len(set(seen)) == len(seen) == data.epoch
    assert set(seen) <= wanted
    assert data.targets(0, data.epoch, 3) == scored


def rows(data, first, count, seed=3):
    """The samples one by one, without padding."""
    return [trimmed(row) for row in data.windows(first, count, seed)]


def trimmed(row):
    """A sample without padding: its tokens, and whether they are not scored."""
    end = np.flatnonzero(~row.mask)[-1] + 1
    return list(zip(row.data[:end].tolist(), row.mask[:end].tolist(), strict=True))


def test_a_sample_depends_on_its_number_alone(folder):
    data = PairDataset(folder, "train", BLOCK)
    total = 2 * data.epoch + 50
    together = rows(data, 0, total)
    for first, count in ((0, 1), (63, 3), (data.epoch - 5, 9), (total - 7, 7), (0, total)):
        other = PairDataset(folder, "train", BLOCK)
        assert rows(other, first, count) == together[first : first + count]
    assert rows(data, 0, total, seed=4) != together
    assert sum(data.targets(first, 1, 3) for first in range(200)) == data.targets(0, 200, 3)
    # two ranks read what one reads
    batches = [Loader(data, 8, 3, "cpu", 8 * rank, 16) for rank in (0, 1)]
    one = Loader(data, 8, 3, "cpu")
    for _ in range(20):
        for loader in batches:
            assert all(map(torch.equal, next(loader), next(one)))


def test_every_epoch_leaves_out_others(folder):
    data = PairDataset(folder, "train", BLOCK)
    epochs = [{str(row) for row in rows(data, e * data.epoch, data.epoch)} for e in range(3)]
    left = data.n_windows - data.epoch
    assert 0 < left < CHUNK
    assert len(set.union(*epochs)) == data.n_windows
    assert len(epochs[0] - epochs[1]) <= left


def test_batches_hold_pairs_of_similar_lengths(folder, monkeypatch):
    monkeypatch.setattr("corpus.pairs.POOL", 4 * CHUNK)
    data = PairDataset(folder, "train", BLOCK)
    lengths = np.array([len(row) for row in rows(data, 0, data.epoch)]).reshape(-1, CHUNK)
    assert np.ptp(lengths, axis=1).mean() < 0.4 * np.ptp(lengths)
    means = [lengths.mean(axis=1)[start : start + 4] for start in range(0, len(lengths) - 3, 4)]
    assert len(means) > 1
    assert not all((np.diff(pool) > 0).all() for pool in means)  # short ones do not always come first


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
def test_few_pairs(tmp_path, count):
    pairs = [Pair(f"{i}", "target") for i in range(count + 2)]
    prepare(lambda: iter(pairs), {"made": "up"}, "bytes", tmp_path / "set", 0.5, 1, pairs=True)
    data = PairDataset(tmp_path / "set", "train", BLOCK)
    assert len({str(row) for row in rows(data, 0, data.epoch)}) == data.epoch
    assert len(rows(data, 0, 3 * count)) == 3 * count


def test_validation_rows(folder):
    data = PairDataset(folder, "val", BLOCK)
    found = data.validation_windows(20)
    assert found.shape == (20, BLOCK + 1)
    np.testing.assert_array_equal(found.data, data.validation_windows(20).data)
    np.testing.assert_array_equal(found.mask, data.validation_windows(20).mask)
    lengths = [len(trimmed(row)) for row in found]
    assert lengths == sorted(lengths, reverse=True)
    everything = data.validation_windows(10**9)
    assert len(everything) == data.n_windows
    targets = sum(len(target) + 1 for _, target in (data.pair(i) for i in range(data.n_windows)))
    assert everything[:, 1:].count() == targets
    assert data.target_bytes(everything) == targets - data.n_windows


def test_pieces(folder):
    data = PairDataset(folder, "train", BLOCK)
    for samples in (0, 10, 10**6):
        read_by_the_run = data.windows(0, min(samples, data.epoch), 3)
        expected = [row.data[: len(trimmed(row))].tolist() for row in read_by_the_run]
        found = [piece.tolist() for piece in data.pieces(samples, 3)]
        # nothing lies before the first pair of the split
        found = [piece if piece[0] == END else [END, *piece] for piece in found]
        assert sorted(found) == sorted(expected)


def test_mixtures(folder, tmp_path):
    other = tmp_path / "other"
    prepare(lambda: pairs_of(300, 5, longest=9), {"made": "up"}, "bytes", other, 0.2, 1, pairs=True)
    mixed = open_dataset(f"{folder}:3,{other}:1", "train", BLOCK, batch_size=16)
    assert mixed.of_pairs
    first, second = mixed.sources
    taken = mixed.windows(0, 40, 3)
    sources = mixed.shares.sources(0, 40)
    for j, source in enumerate((first, second)):
        count = int((sources == j).sum())
        assert rows(source, 0, count) == [trimmed(row) for row in taken[sources == j]]
    assert mixed.targets(8, 32, 3) == taken[8:, 1:].count()
    assert mixed.windows(0, 1, 3).shape[0] == 1  # a source without a sample
    rows_of_both = open_dataset(f"{folder}:3,{other}:1", "val", BLOCK).validation_windows(40)
    assert rows_of_both.shape == (40, BLOCK + 1)


def test_refusals(folder, dataset, tmp_path):
    with pytest.raises(DataError, match=r"texts.*cannot be mixed"):
        open_dataset(f"{folder}:1,{dataset}:1", "train", BLOCK)
    with pytest.raises(DataError, match=r"score_source=True.* texts"):
        open_dataset(str(dataset), "train", BLOCK, score_source=True)
    with pytest.raises(DataError, match=r"no pair .*train.*block_size=3\b"):
        open_dataset(str(folder), "train", 3)
    with pytest.raises(DataError, match=r"\d pairs .*block_size=40.* 5,000"):
        open_dataset(str(folder), "train", BLOCK, batch_size=5000)
    assert open_dataset(str(folder), "train", BLOCK, score_source=True).score_source
    tokens = Dataset(folder, "val", 1).tokens.copy()
    tokens[tokens == END] = 97
    shutil.copytree(folder, tmp_path / "bad")
    tokens.tofile(tmp_path / "bad" / "val.bin")
    with pytest.raises(DataError, match="hold pairs, 0 ends"):
        PairDataset(tmp_path / "bad", "val", BLOCK)
    tokens = Dataset(folder, "val", 1).tokens.copy()
    tokens[0] = 300  # in a source, which is not scored
    tokens.tofile(tmp_path / "bad" / "val.bin")
    data = PairDataset(tmp_path / "bad", "val", BLOCK)
    with pytest.raises(DataError, match=r"val\.bin.*token 300"):
        data.validation_windows(10**6)
