"""The order of samples, the ring, the refusals."""

import json

import numpy as np
import pytest
import torch

from corpus import DataError
from corpus.loader import Dataset, Loader, keys_of, permute

BLOCK = 8
N_TOKENS = 101  # 12 windows, 4 tokens left over


def write_folder(folder, tokens, dtype="uint16", vocab_size=300):
    folder.mkdir(parents=True)
    tokens = np.asarray(tokens)
    for split in ("train", "val"):
        tokens.astype(dtype).tofile(folder / f"{split}.bin")
    np.save(folder / "token_bytes.npy", np.arange(vocab_size, dtype=np.int32) % 5)
    count = {"documents": 1, "tokens": len(tokens), "bytes": 0}
    meta = {
        "format": 1,
        "tokenizer": {"name": "bytes", "kind": "bytes", "hash": ""},
        "vocab_size": vocab_size,
        "end_of_text": 0,
        "dtype": dtype,
        "splits": {"train": count, "val": count},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def change_meta(folder, **values):
    path = folder / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "set", np.arange(N_TOKENS))


@pytest.mark.parametrize("n", [*range(1, 301), *(2**k + d for k in (9, 12, 16) for d in (-1, 0, 1))])
def test_every_place_once(n):
    places = permute(np.arange(n, dtype=np.uint64), n, keys_of("order", 7, n))
    assert places.dtype == np.uint64
    np.testing.assert_array_equal(np.sort(places), np.arange(n))


@pytest.mark.parametrize("samples", [0, 1, 5, 11, 12, 30])
def test_pieces_have_the_targets_of_the_windows(folder, samples):
    dataset = Dataset(folder, "train", BLOCK)
    targets = np.unique(dataset.windows(0, min(samples, dataset.n_windows), seed=3)[:, 1:])
    pieces = dataset.pieces(samples, seed=3)
    found = np.concatenate([np.empty(0), *(piece[1:] for piece in pieces)])
    assert len(np.unique(found)) == len(found)  # the tokens of this data set are their places
    if samples < dataset.n_windows:
        assert set(found) == set(targets)
    else:
        assert pieces == [dataset.tokens]


@pytest.mark.parametrize("n", [10**8, 10**12, 2**40 + 1])
def test_large_ranges(n):
    sample = np.linspace(0, n - 1, 100_000).astype(np.uint64)
    for chosen in (sample, np.arange(n - 50_000, n, dtype=np.uint64)):
        places = permute(chosen, n, keys_of("order", 0, 3))
        assert len(np.unique(places)) == len(chosen)
        assert places.max() < n
        assert abs(places.mean() / n - 0.5) < 0.01


def test_order_looks_random():
    n = 10_000
    identity = np.arange(n)
    orders = [
        permute(identity.astype(np.uint64), n, keys_of("order", 0, e)).astype(float) for e in range(4)
    ]
    for i, order in enumerate(orders):
        assert abs(np.corrcoef(identity, order)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
        assert abs(np.abs(order - identity).mean() / n - 1 / 3) < 0.01
        assert (np.diff(order) == 1).sum() < 10
        for other in orders[:i]:
            assert abs(np.corrcoef(other, order)[0, 1]) < 0.05


def test_the_order_is_the_one_that_checkpoints_count_on():
    places = permute(np.arange(10, dtype=np.uint64), 10, keys_of("order", 0, 0))
    assert places.tolist() == [6, 0, 5, 7, 1, 3, 2, 9, 8, 4]
    assert [int(keys_of("shift", 0, epoch)[0] % 1024) for epoch in (1, 2)] == [1014, 360]


def test_small_permutations_are_all_reached():
    found = {tuple(permute(np.arange(4, dtype=np.uint64), 4, keys_of("order", s, 0))) for s in range(1000)}
    assert len(found) == 24


def naive(tokens, seed, i):
    """Sample i as the module's docstring words it, one number at a time."""
    n = (len(tokens) - 1) // BLOCK
    epoch = i // n
    order = permute(np.arange(n, dtype=np.uint64), n, keys_of("order", seed, epoch))
    shift = int(keys_of("shift", seed, epoch)[0]) % BLOCK if epoch > 0 else 0
    start = int(order[i % n]) * BLOCK + shift
    return [tokens[(start + k) % len(tokens)] for k in range(BLOCK + 1)]


@pytest.mark.parametrize("n_tokens", [9, 10, 17, 101, 105])
def test_windows_match_the_naive_reading(tmp_path, n_tokens):
    tokens = list(range(n_tokens))
    dataset = Dataset(write_folder(tmp_path / "set", tokens), "train", BLOCK)
    windows = dataset.windows(5, 60, seed=3)  # crosses several epochs
    assert windows.dtype == np.int64
    np.testing.assert_array_equal(windows, [naive(tokens, 3, i) for i in range(5, 65)])


def test_each_window_once_per_epoch_and_the_edges_move(folder):
    dataset = Dataset(folder, "train", BLOCK)
    n = dataset.n_windows
    assert n == 12
    firsts = [np.sort(dataset.windows(e * n, n, seed=1)[:, 0]) for e in range(20)]
    np.testing.assert_array_equal(firsts[0], np.arange(n) * BLOCK)
    for first in firsts:
        assert len(np.unique(first)) == n
        assert len(np.unique(first % N_TOKENS // BLOCK)) >= n - 1
    assert len({int(first[0]) for first in firsts}) > 4
    # Some epoch wraps: a window that runs over the end goes on with the first tokens.
    wrapped = [w for w in dataset.windows(0, 20 * n, seed=1) if (np.diff(w) < 0).any()]
    assert wrapped
    assert all(((np.diff(w) == 1) | (np.diff(w) == 1 - N_TOKENS)).all() for w in wrapped)


def test_samples_depend_on_nothing_but_their_index(folder):
    dataset = Dataset(folder, "train", BLOCK)
    far = 2**40 + 5
    whole = dataset.windows(far, 40)
    np.testing.assert_array_equal(whole[17:23], Dataset(folder, "train", BLOCK).windows(far + 17, 6))
    assert (whole != dataset.windows(far, 40, seed=1)).any()
    assert (dataset.windows(0, 12) != dataset.windows(12, 12)).any()


def test_loader_resumes_by_number(folder):
    dataset = Dataset(folder, "train", BLOCK)
    loader = Loader(dataset, batch_size=5, seed=2, device="cpu")
    batches = [next(loader) for _ in range(6)]
    assert loader.next_sample == 30
    x, y = batches[0]
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == y.shape == (5, BLOCK)
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert torch.equal(x[:, 1:], y[:, :-1])
    resumed = Loader(dataset, batch_size=5, seed=2, device="cpu", first_sample=15)
    for step, (x, y) in zip(range(3, 6), resumed, strict=False):
        assert torch.equal(x, batches[step][0])
        assert torch.equal(y, batches[step][1])
        assert torch.equal(loader.batch(step * 5)[0], x)
    assert loader.next_sample == 30


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_loader_on_cuda_gives_the_same(folder):
    dataset = Dataset(folder, "train", BLOCK)
    here, there = (Loader(dataset, 5, 2, device) for device in ("cpu", "cuda"))
    for _, (x, y), (u, v) in zip(range(6), here, there, strict=False):
        assert u.is_cuda
        assert torch.equal(x, u.cpu())
        assert torch.equal(y, v.cpu())
    assert torch.equal(there.batch(0)[0].cpu(), here.batch(0)[0])


def test_validation_windows(folder):
    dataset = Dataset(folder, "val", BLOCK)
    for count in (1, 5, 12):
        windows = dataset.validation_windows(count)
        assert windows.shape == (count, BLOCK + 1)
        assert windows.dtype == np.int64
        assert (np.diff(windows[:, 0]) >= BLOCK).all()
        np.testing.assert_array_equal(windows, dataset.validation_windows(count))
    assert dataset.validation_windows(10**6).shape[0] == 12
    assert list(dataset.validation_windows(4)[:, 0]) == [0, 24, 48, 72]
    assert dataset.target_bytes(windows[:2]) == sum(t % 5 for t in range(1, 17))
    with pytest.raises(DataError, match="at least one"):
        dataset.validation_windows(0)


def test_wide_vocabulary(tmp_path):
    tokens = np.arange(40) + 70_000
    dataset = Dataset(write_folder(tmp_path / "set", tokens, "uint32", 80_000), "train", BLOCK)
    np.testing.assert_array_equal(np.sort(dataset.windows(0, 4)[:, 0]), 70_000 + BLOCK * np.arange(4))


def test_missing_folder_names_the_command(tmp_path):
    texts = r"prepare it with\n  python data/text/prepare.py --input=FILES --out="
    with pytest.raises(DataError, match=texts):
        Dataset(tmp_path / "nothing", "train", BLOCK)
    (tmp_path / "prepare.py").touch()
    with pytest.raises(DataError, match=f"\n  python {tmp_path}/prepare.py --out={tmp_path}/nothing\n"):
        Dataset(tmp_path / "nothing", "train", BLOCK)
    command = f"\n  python {tmp_path}/prepare.py --out={tmp_path} --sources=source\n"
    with pytest.raises(DataError, match=command):
        Dataset(tmp_path / "source" / "nothing", "train", BLOCK)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train.bin").unlink(), "train.bin is missing"),
        (lambda f: (f / "train.bin").write_bytes(b"\0" * 201), "201 bytes"),
        (lambda f: (f / "meta.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "meta.json").write_text("[]"), "holds a JSON list"),
        (lambda f: change_meta(f, format=2), "format 2"),
        (lambda f: change_meta(f, dtype="int64"), "must be uint16 or uint32"),
        (lambda f: (f / "meta.json").write_text('{"format": 1}'), "lacks dtype"),
    ],
)
def test_damaged_folders_are_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(DataError) as caught:
        Dataset(folder, "train", BLOCK)
    assert message in str(caught.value)


def test_other_refusals(folder):
    with pytest.raises(DataError, match="no split 'test'"):
        Dataset(folder, "test", BLOCK)
    with pytest.raises(DataError, match="--vocab_size=300 or more"):
        Dataset(folder, "train", BLOCK, vocab_size=299)
    Dataset(folder, "train", BLOCK, vocab_size=300, batch_size=12)
    with pytest.raises(DataError, match=r"12 windows of block_size=8.* 13 "):
        Dataset(folder, "train", BLOCK, batch_size=13)
    with pytest.raises(DataError, match="0 windows"):
        Dataset(folder, "val", N_TOKENS)
    dataset = Dataset(folder, "train", BLOCK)
    with pytest.raises(DataError, match="does not match"):
        dataset.tokenizer()
    np.save(folder / "token_bytes.npy", np.zeros(3, dtype=np.int32))
    with pytest.raises(DataError, match="has shape"):
        _ = dataset.token_bytes
    (folder / "token_bytes.npy").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        _ = Dataset(folder, "train", BLOCK).token_bytes


def test_a_token_beyond_the_vocabulary_is_refused(folder):
    """A .bin of another data set that happens to have the right size."""
    tokens = np.fromfile(folder / "train.bin", dtype=np.uint16)
    tokens[50] = 300
    tokens.tofile(folder / "train.bin")
    data = Dataset(folder, "train", BLOCK)
    with pytest.raises(DataError, match=r"train\.bin.*token 300.* 300"):
        data.windows(0, data.n_windows)
