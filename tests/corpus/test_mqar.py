"""Rows of MQAR: what is drawn, which tokens are scored, in which order they come."""

import itertools
import re
import shutil

import numpy as np
import pytest
import torch

from corpus import DataError
from corpus.loader import IGNORED, Dataset, Loader
from corpus.mixture import open_dataset
from corpus.mqar import MqarDataset, answers
from corpus.tokenizer import MqarTokenizer
from corpus.tokenizer_registry import from_json
from tests.data.prepare_scripts import load_script

LENGTH, VOCABULARY, PAIRS = 32, 40, [1, 3, 8]
script = load_script("recall")


def prepared(out, **keys):
    values = {"pairs": PAIRS, "vocab_size": VOCABULARY, "length": LENGTH, "train_rows": 300, "val_rows": 30}
    script.main(script.PrepareConfig(out=str(out), **(values | keys)))
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("mqar") / "set")


def rows_of(folder, split="train"):
    return Dataset(folder, split, 1).tokens.reshape(-1, LENGTH).tolist()


def naive_answers(row):
    """By the definition, token by token."""
    return [
        t > 0 and 0 < row[t - 1] < VOCABULARY // 2 and row[t - 1] in row[: t - 1] for t in range(len(row))
    ]


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_row_is_one_of_mqar(folder, split):
    numbers = []
    for row in rows_of(folder, split):
        keys = [token for token in row if 0 < token < VOCABULARY // 2]
        number = len(keys) // 2
        head, rest = row[: 2 * number], row[2 * number :]
        pairs = dict(zip(head[::2], head[1::2], strict=True))
        assert len(pairs) == number  # keys are distinct
        assert set(head[::2]) <= set(range(1, VOCABULARY // 2))
        assert set(head[1::2]) <= set(range(VOCABULARY // 2, VOCABULARY))
        asked = {}
        for slot in range(0, len(rest), 2):
            key, value = rest[slot : slot + 2]
            if key or value:
                assert key not in asked
                asked[key] = value
        assert asked == pairs
        numbers.append(number)
    assert {number: numbers.count(number) for number in PAIRS} == dict.fromkeys(PAIRS, len(numbers) // 3)
    assert numbers != sorted(numbers)


def test_splits_and_seeds_have_rows_of_their_own(folder, tmp_path):
    again, other = prepared(tmp_path / "again"), prepared(tmp_path / "other", seed=1)
    for split in ("train", "val"):
        assert rows_of(again, split) == rows_of(folder, split)
        assert rows_of(other, split) != rows_of(folder, split)
    long = [tuple(row) for row in rows_of(folder) if row[6] != 0]  # more than one pair
    assert not {tuple(row) for row in rows_of(folder, "val")} & {*long}
    assert len({*long}) == len(long)


def test_a_later_chunk_is_drawn_like_the_first(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "CHUNK", 7)
    found = rows_of(prepared(tmp_path / "set"))
    assert len({tuple(row) for row in found}) > 280
    assert all(map(any, found))


@pytest.mark.parametrize("exponent", [0.01, 1.0])
def test_slots_follow_the_power_law(exponent):
    """The first key's slot has the weights themselves; three standard deviations of the counts."""
    config = script.PrepareConfig(vocab_size=VOCABULARY, length=24, exponent=exponent)
    rows = script.drawn(np.random.Generator(np.random.PCG64(5)), np.full(20_000, 2), config)
    asked = rows[:, 4::2] == rows[:, :1]
    assert (asked.sum(axis=1) == 1).all()
    weights = np.array([slot ** (exponent - 1) for slot in range(1, 11)])
    expected = 20_000 * weights / weights.sum()
    assert (abs(asked.sum(axis=0) - expected) < 3.5 * np.sqrt(expected)).all()
    values, keys = rows[:, 1], rows[:, 0]
    assert np.bincount(values, minlength=VOCABULARY)[20:].min() > 0.8 * 20_000 / 20
    assert np.bincount(keys, minlength=20)[1:].min() > 0.8 * 20_000 / 19


def test_answers_by_hand():
    a, b, x, y = 1, 2, 20, 21
    row = [a, x, b, y, 0, 0, b, y, 0, 0, a, x, 0, a]
    assert np.flatnonzero(answers(np.array([row]), VOCABULARY)[0]).tolist() == [7, 11]


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_the_definition(seed):
    """In rows without any order too."""
    rows = np.random.default_rng(seed).integers(0, VOCABULARY, (20, 60)).astype(np.uint16)
    assert answers(rows, VOCABULARY).tolist() == [naive_answers(row) for row in rows.tolist()]


def test_a_sample_is_a_row(folder):
    data = MqarDataset(folder, "train", 40)  # a longer block changes nothing
    rows, seen = rows_of(folder), []
    for tokens, targets in itertools.islice(Loader(data, 20, 3, "cpu"), 15):
        for x, y in zip(tokens.tolist(), targets.tolist(), strict=True):
            row = [*x[1:], max(y[-1], 0)]  # the last token is a target only, or a filler
            assert x[0] == 0
            assert y == [
                t if scored else IGNORED for t, scored in zip(row, naive_answers(row), strict=True)
            ]
            seen.append(row)
    assert sorted(seen) == sorted(rows)  # an epoch has each row once
    assert seen != rows
    assert data.epochs(450) == 1.5
    assert data.targets(0, 300, 3) == sum(map(sum, map(naive_answers, rows)))


def test_a_sample_depends_on_its_number_alone(folder):
    data = MqarDataset(folder, "train", LENGTH)
    together = data.windows(0, 700, 3)
    for first, count in ((0, 1), (63, 3), (295, 9), (699, 1)):
        found = MqarDataset(folder, "train", LENGTH).windows(first, count, 3)
        np.testing.assert_array_equal(found.data, together.data[first : first + count])
        np.testing.assert_array_equal(found.mask, together.mask[first : first + count])
    assert (data.windows(0, 300, 4).data != together.data[:300]).any()
    assert (together.data[300:600] != together.data[:300]).any()  # another order in the next epoch
    assert sum(data.targets(first, 1, 3) for first in range(50)) == data.targets(0, 50, 3)
    one, ranks = Loader(data, 8, 3, "cpu"), [Loader(data, 8, 3, "cpu", 8 * rank, 16) for rank in (0, 1)]
    for _ in range(10):
        for loader in ranks:
            assert all(map(torch.equal, next(loader), next(one)))


def test_validation_rows(folder):
    data = MqarDataset(folder, "val", LENGTH)
    assert data.validation_windows(10**9)[:, 1:].data.tolist() == rows_of(folder, "val")
    assert len({int(row.count()) for row in data.validation_windows(10)}) > 1  # not of one number of pairs
    assert data.target_bytes(data.validation_windows(10**9)) == 3 * 10 * sum(PAIRS)  # such as v31
    assert list(data.verified()) == [2 * 30 * LENGTH]


def test_mixtures(folder, tmp_path):
    other = prepared(tmp_path / "other", length=16, pairs=[2])
    mixed = open_dataset(f"{folder}:3,{other}:1", "train", LENGTH, batch_size=16)
    found = mixed.windows(0, 40, 3)
    assert mixed.unit == "rows"
    assert found.shape == (40, LENGTH + 1)
    assert mixed.targets(0, 40, 3) == found.count()
    assert "300 training rows of 16 tokens" in "".join(mixed.describe(40))


def test_symbols():
    tokenizer = MqarTokenizer(40)
    assert tokenizer.encode("k3v20k19v39") == [3, 20, 19, 39]
    assert tokenizer.decode([3, 0, 20, 39]) == "k3v20v39"
    assert from_json(tokenizer.to_json()).same_tokens(tokenizer)
    assert not MqarTokenizer(42).same_tokens(tokenizer)
    assert all(
        tokenizer.encode(token.decode()) == [i] for i, token in enumerate(tokenizer.token_bytes()) if i
    )
    for text in ("k0", "k20", "v40", "k03", "k3 v20", "Fellow citizens", "3", "k\n"):
        with pytest.raises(DataError, match="k1 to k19 and v20 to v39"):
            tokenizer.encode(text)
    with pytest.raises(DataError, match="cannot be rebuilt"):
        from_json(tokenizer.to_json() | {"vocab_size": "many"})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"vocab_size": 41}, "vocab_size must be even, not 41"),
        ({"length": 33}, "length must be even, not 33"),
        ({"pairs": [4, 9]}, "9 pairs and as many queries have 36 tokens.*--length=36"),
        ({"pairs": [8], "vocab_size": 16}, "8 pairs need as many keys.* has 7: take --vocab_size=18"),
        ({"pairs": []}, "different numbers from 1 on"),
        ({"pairs": [0, 4]}, "different numbers from 1 on"),
        ({"pairs": [4, 4]}, "different numbers from 1 on"),
        ({"val_rows": 2}, "val_rows=2 is less than a row for each"),
    ],
)
def test_bad_keys(keys, told):
    values = {"pairs": PAIRS, "vocab_size": VOCABULARY, "length": LENGTH} | keys
    (complaint,) = script.PrepareConfig(**values).check()
    assert re.search(told, complaint)


def test_refusals(folder, dataset, tmp_path):
    with pytest.raises(DataError, match=r"rows of MQAR and .* holds texts, which cannot be mixed"):
        open_dataset(f"{folder}:1,{dataset}:1", "train", LENGTH)
    with pytest.raises(DataError, match="holds rows of MQAR, not pairs with a source"):
        open_dataset(str(folder), "train", LENGTH, score_source=True)
    with pytest.raises(DataError, match=r"never cut, but block_size=31: take block_size=32"):
        open_dataset(str(folder), "train", LENGTH - 1)
    with pytest.raises(DataError, match=r"300 rows, fewer than the 301"):
        open_dataset(str(folder), "train", LENGTH, batch_size=301)
    with pytest.raises(DataError, match="was prepared otherwise"):
        prepared(folder, seed=2)
    with pytest.raises(DataError, match="exists and is not a prepared data set"):
        prepared(dataset.parent)
    bad = tmp_path / "bad"
    for length in (31, "32", None):
        shutil.copytree(folder, bad, dirs_exist_ok=True)
        meta = (bad / "meta.json").read_text()
        value = f'"{length}"' if isinstance(length, str) else "null" if length is None else str(length)
        old = '"mqar": {\n    "length": 32\n  }'
        assert old in meta
        (bad / "meta.json").write_text(meta.replace(old, old.replace("32", value)))
        with pytest.raises(DataError, match="does not hold rows of"):
            open_dataset(str(bad), "train", 40)


def test_an_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch):
    def rows(config, split):
        yield np.zeros((2, LENGTH), dtype=np.int64)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(script, "rows", rows)
    with pytest.raises(DataError, match=r"cannot write .*train\.bin"):
        prepared(tmp_path / "set")
    assert [*tmp_path.iterdir()] == []
