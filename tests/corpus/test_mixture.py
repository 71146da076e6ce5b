"""Mixtures: exact shares at every prefix, each source in its own order, what is refused."""

import itertools
import json
import math
import re
import shutil
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import configurator
from corpus import DataError
from corpus.binary import prepare
from corpus.loader import Dataset, Loader
from corpus.mixture import Shares, open_dataset, parse, short_names
from tests.corpus.test_loader import change_meta, write_folder
from train import main
from training.config import TrainConfig

BLOCK = 8
WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=10)
SETTINGS = settings(max_examples=150, deadline=None)


@pytest.fixture
def folders(tmp_path):
    """Three sources whose tokens tell them apart: 12, 5 and 30 windows an epoch."""
    sizes = {"a": 101, "b": 44, "c": 247}
    for number, (name, size) in enumerate(sizes.items()):
        write_folder(tmp_path / name / "set", 1000 * number + np.arange(size), vocab_size=3000)
    return [tmp_path / name / "set" for name in sizes]


def named(folders, weights=("5", "2", "3")):
    return ",".join(f"{folder}:{weight}" for folder, weight in zip(folders, weights, strict=True))


def open_three(folders, weights=("5", "2", "3"), split="train"):
    return open_dataset(named(folders, weights), split, BLOCK)


def test_pieces_of_all_sources(folders):
    mixture = open_three(folders)
    for samples in (1, 7, 40):
        targets = {
            int(token)
            for source, taken in zip(mixture.sources, mixture.shares.before(samples), strict=True)
            for token in source.windows(0, min(taken, source.n_windows), 3)[:, 1:].flat
        }
        # the only whole epoch is that of the second source, whose last tokens are in no window of epoch 0
        found = {int(token) for piece in mixture.pieces(samples, 3) for token in piece[1:]}
        assert targets <= found
        assert len(found - targets) < BLOCK


@given(WEIGHTS)
@SETTINGS
def test_after_every_sample_each_source_has_had_its_share(weights):
    shares = Shares([Fraction(weight) for weight in weights])
    n = np.arange(1, 3 * shares.period + 1)
    sources = shares.sources(0, len(n))
    for j, weight in enumerate(weights):
        had = np.cumsum(sources == j)
        due = n * weight
        assert (had >= due // sum(weights)).all()
        assert (had <= -(-due // sum(weights))).all()


@pytest.mark.parametrize(
    "weights",
    [
        *([1] * n for n in (1, 2, 3, 9)),
        [1, 99_999],
        [50_000, 1, 49_999],
        [2**n for n in range(16)],
        [9_973, 7, 11, 13, 17, 89, 97, 4_001, 3_331],
    ],
)
def test_shares_of_awkward_weights(weights):
    shares = Shares([Fraction(weight) for weight in weights])
    assert shares.period == sum(weights) // math.gcd(*weights)
    had = np.cumsum(shares.table[:, None] == np.arange(len(weights)), axis=0)
    exact = np.arange(1, shares.period + 1)[:, None] * np.array(shares.per_period)
    assert (np.abs(had * shares.period - exact) < shares.period).all()


@given(WEIGHTS, st.integers(0, 10**15))
@SETTINGS
def test_counting_agrees_with_reading(weights, first):
    shares = Shares([Fraction(weight) for weight in weights])
    count = 2 * shares.period + 3
    sources = shares.sources(first, count)
    before, after = shares.before(first), shares.before(first + count)
    assert sum(before) == first
    for j in range(len(weights)):
        assert after[j] - before[j] == (sources == j).sum()
        samples = [shares.sample(j, number) for number in range(before[j], after[j])]
        assert samples == (first + np.flatnonzero(sources == j)).tolist()


def test_the_order_is_the_one_that_checkpoints_count_on():
    assert Shares([Fraction(w) for w in (5, 2, 3)]).table.tolist() == [0, 2, 0, 1, 0, 2, 0, 1, 0, 2]
    assert Shares([Fraction(w) for w in (3, 2, 4)]).table.tolist() == [0, 2, 1, 2, 0, 2, 0, 1, 2]


def test_each_source_is_read_in_its_own_order(folders):
    """Over many epochs of each: its k-th sample is the k-th that it would give alone."""
    mixture = open_three(folders)
    windows = mixture.windows(0, 300, seed=3)
    assert windows.dtype == np.int64
    for number, folder in enumerate(folders):
        own = windows[windows[:, 0] // 1000 == number]
        assert len(own) == 300 * (5, 2, 3)[number] // 10
        np.testing.assert_array_equal(own, Dataset(folder, "train", BLOCK).windows(0, len(own), seed=3))


@given(st.integers(0, 10**12), st.integers(1, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_samples_depend_on_nothing_but_their_index(folders_once, first, count, start):
    mixture = open_three(folders_once)
    start = min(start, count - 1)
    whole = mixture.windows(first, count, seed=1)
    rest = open_three(folders_once).windows(first + start, count - start, seed=1)
    np.testing.assert_array_equal(whole[start:], rest)


@pytest.fixture(scope="module")
def folders_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for number, (name, size) in enumerate({"a": 101, "b": 44, "c": 247}.items()):
        write_folder(folder / name / "set", 1000 * number + np.arange(size), vocab_size=3000)
    return [folder / name / "set" for name in "abc"]


def test_ranks_share_out_the_samples_and_resume_anywhere(folders):
    mixture = open_three(folders)
    steps, micro_batches, size = 3, 8, 4
    for first in (0, 37, 10**9 + 7):
        whole = mixture.windows(first, steps * micro_batches * size, 5)
        for ranks in (1, 2, 4, 8):
            loaders = [
                Loader(mixture, size, 5, "cpu", first + r * size, ranks * size) for r in range(ranks)
            ]
            for step, number in itertools.product(range(steps), range(micro_batches // ranks)):
                for rank, loader in enumerate(loaders):
                    place = (step * micro_batches + number * ranks + rank) * size
                    tokens, targets = next(loader)
                    assert np.array_equal(tokens, whole[place : place + size, :-1])
                    assert np.array_equal(targets, whole[place : place + size, 1:])


def test_weights_are_exact_and_divided_by_their_sum(folders):
    a, b, _ = folders
    for text in (f"{a}:0.7,{b}:0.3", f"{a}:7/10,{b}:3/10", f" {a}:1.4 , {b}:6e-1"):
        found, shares = parse(text)
        assert found == [str(a), str(b)]
        assert shares.weights == (Fraction(7, 10), Fraction(3, 10))
        assert shares.period == 10


def test_one_folder_is_no_mixture(folders, tmp_path):
    for text in (str(folders[0]), f"{folders[0]}:0.3"):
        data = open_dataset(text, "train", BLOCK)
        assert type(data) is Dataset
        assert data.folder == folders[0]
    odd = tmp_path / "odd:1,name:2"
    shutil.copytree(folders[0], odd)
    assert open_dataset(str(odd), "train", BLOCK).folder == odd


def test_validation_windows_keep_the_shares(folders):
    mixture = open_three(folders, split="val")
    windows = mixture.validation_windows(10)
    np.testing.assert_array_equal(windows, mixture.validation_windows(10))
    parts = mixture.parts(10)
    assert {name: len(rows) for name, rows in parts.items()} == {"a": 5, "b": 2, "c": 3}
    for (name, rows), folder in zip(parts.items(), folders, strict=True):
        own = Dataset(folder, "val", BLOCK).validation_windows(len(rows))
        np.testing.assert_array_equal(windows[rows], own, name)
    assert mixture.target_bytes(windows) == sum(
        Dataset(folder, "val", BLOCK).target_bytes(windows[rows])
        for folder, rows in zip(folders, parts.values(), strict=True)
    )
    # b, with 5 windows, would be next to give a sixth
    most = mixture.validation_windows(1000)
    assert len(most) == mixture.shares.sample(0, 12) < mixture.shares.sample(1, 5)
    assert mixture.shares.before(len(most))[0] == 12


def test_a_source_without_validation_is_refused(folders):
    mixture = open_three(folders, ("90", "1", "9"), "val")
    with pytest.raises(DataError, match=r"7 validation windows.*b.set") as caught:
        mixture.validation_windows(7)
    least = int(re.search(r"at least (\d+)", str(caught.value))[1])
    assert 0 in mixture.shares.before(least - 1)
    assert 0 not in mixture.shares.before(least)
    assert f"--eval_tokens={least * BLOCK} " in str(caught.value)


def test_what_is_said_of_the_sources(folders):
    assert open_three(folders).describe(240) == [
        f"0.5 {folders[0]}, 101 training tokens (10.00 epochs)",
        f"0.2 {folders[1]}, 44 training tokens (9.60 epochs)",
        f"0.3 {folders[2]}, 247 training tokens (2.40 epochs)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "dataset is empty"),
        ("data/a,data/b", "'data/a' has no weight"),
        ("data/a:1,data/b", "'data/b' has no weight"),
        ("data/a:1,", "'' has no weight"),
        ("data/a:1,:2", "':2' has no weight"),
        ("data/a:1,data/b:two", "weight 'two' of data/b"),
        ("data/a:nan,data/b:1", "weight 'nan' of data/a"),
        ("data/a:1/0,data/b:1", "weight '1/0' of data/a"),
        ("data/a:1e99999999,data/b:1", "weight '1e99999999' of data/a is not a number"),
        ("data/a:1,data/b:0", "data/b must be above 0, not 0"),
        ("data/a:-0.5,data/b:1", "data/a must be above 0, not -0.5"),
        ("data/a:1,data/x/../a:2", "names data/x/../a twice"),
        ("data/a:0.123457,data/b:1", "1,123,457 samples"),
    ],
)
def test_what_cannot_be_read_is_a_mistake_in_the_configuration(text, message):
    with pytest.raises(DataError) as caught:
        parse(text)
    assert message in str(caught.value)
    with pytest.raises(configurator.ConfigError) as caught:
        configurator.resolve(TrainConfig, [f"--dataset={text}", "--device=cpu"])
    assert message in str(caught.value)


def test_other_refusals(folders, tmp_path):
    with pytest.raises(DataError, match="nowhere is not a prepared"):
        open_dataset(f"{folders[0]}:1,{tmp_path / 'nowhere'}:1", "train", BLOCK)
    open_dataset(named(folders), "train", BLOCK, batch_size=24)
    with pytest.raises(DataError, match=r"a/set.* 101 tokens: 12 windows.* 13 "):
        open_dataset(named(folders), "train", BLOCK, batch_size=25)
    with pytest.raises(DataError, match=r"a/set.* 3,000 tokens.* 2,999"):
        open_dataset(named(folders), "train", BLOCK, vocab_size=2999)
    change_meta(folders[1], tokenizer={"name": "bpe:300", "kind": "bpe", "hash": "other"})
    with pytest.raises(DataError, match=r"a/set.*b/set.*bytes and bpe:300"):
        open_three(folders)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["data/a/gpt2", "data/b/gpt2"], ["a", "b"]),
        (["data/a/gpt2", "data/b/long/gpt2"], ["a", "b/long"]),
        (["data/x/one", "data/x/two"], ["one", "two"]),
        (["data/a", "data/a/b"], ["data/a", "data/a/b"]),
        (["a/a", "a/a/a"], ["a/a", "a/a/a"]),
    ],
)
def test_names_of_sources(paths, names):
    assert short_names(paths) == names


@pytest.fixture
def second(tmp_path):
    """A data set of bytes beside the one of the other tests."""
    out = tmp_path / "numbers" / "bytes"
    prepare(lambda: (f"{n} and {n * n} " * 30 for n in range(200)), {}, "bytes", out, 0.1, workers=1)
    return out


def test_a_run_on_a_mixture(run, dataset, second, capsys):
    """It trains, tells the loss of each source, and goes on after a stop as if there had been none."""
    text = f"--dataset={dataset}:0.6,{second}:0.4"
    folder, whole = run("whole", text, "--max_iters=10")
    said = capsys.readouterr().out
    assert "data: 2 data sets, by weight:\n  0.6 " in said
    last = [record for record in whole if "val_loss" in record][-1]
    names = [key for key in last if key.startswith("val_loss_")]
    assert len(names) == 2
    assert last["val_loss"] == pytest.approx(0.6 * last[names[0]] + 0.4 * last[names[1]], rel=1e-6)
    assert abs(last[names[0]] - last[names[1]]) > 0.01
    parts = folder.with_name("parts")
    shutil.copytree(folder, parts)
    (parts / "ckpt" / "step_00000010.pt").unlink()
    (parts / "ckpt" / "best.pt").unlink()
    _, again = run("parts", text, "--max_iters=10", "--resume=True")
    assert "step 5 of 10" in capsys.readouterr().out
    assert [r.get("loss") for r in again] == [r.get("loss") for r in whole]
    assert again[-1]["val_loss"] == last["val_loss"]


def test_another_mixture_is_refused_on_resume(run, dataset, second, arguments, capsys, tmp_path):
    folder, _ = run("a", f"--dataset={dataset}:0.6,{second}:0.4", "--max_iters=2")
    moved = tmp_path / "moved"
    shutil.copytree(second, moved)
    run("a", f"--dataset={dataset}:3,{moved}:2", "--max_iters=3", "--resume=True")
    for text, reason in [
        (f"{dataset}:0.5,{second}:0.5", "were 3/5, 2/5, now 1/2, 1/2"),
        (f"{second}:0.4,{dataset}:0.6", "in another order"),
        (str(dataset), "in another order"),
    ]:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, f"--out_dir={folder}", f"--dataset={text}", "--max_iters=3", "--resume=True"])
        assert reason in str(caught.value)
    assert json.loads((folder / "config.json").read_text())["dataset"] == f"{dataset}:3,{moved}:2"


def test_a_single_run_cannot_go_on_as_a_mixture(run, dataset, second, arguments):
    folder, _ = run("a", "--max_iters=2")
    keys = [f"--out_dir={folder}", f"--dataset={dataset}:1,{second}:1", "--max_iters=3", "--resume=True"]
    with pytest.raises(SystemExit, match="in another order"):
        main([*arguments, *keys])
