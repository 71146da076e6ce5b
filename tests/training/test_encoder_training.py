"""Training an encoder-decoder on pairs: batches, resume, ranks, mixtures, plans, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

import evaluate
import export
import finetune
import sample
import translate
from benchmarks.command import parsed
from corpus.binary import prepare
from corpus.loader import IGNORED
from corpus.pairs import MULTIPLE, PairDataset, source_and_target
from tests.corpus.test_pairs import pairs_of
from tests.training.records import losses
from tests.training.test_distributed import records, train_watched
from train import main
from training import pretrained

END = 256
KEYS = ["--batch_size=6", "--block_size=40", "--eval_tokens=4000", "--encoder_layers=2"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "set"
    prepare(lambda: pairs_of(600), {"made": "up"}, "bytes", out, 0.2, 1, pairs=True)
    return out


def test_a_batch_is_sources_and_targets(pairs):
    """Written out from the pairs; with more padding in the samples, the same."""
    data = PairDataset(pairs, "train", 40)
    for count, first in ((1, 5), (7, 0), (64, 64), (64, 200)):
        windows = data.windows(first, count, seed=1)
        tokens, targets, source, lengths = source_and_target(windows)
        expected = [data.pair(index) for index in data._order(first, count, 1)]
        longest = max(max(len(a), len(b) + 1) for a, b in expected)
        width = -(-longest // MULTIPLE) * MULTIPLE
        assert {one.shape for one in (tokens, targets, source)} == {(count, width)}
        for row, (of_source, of_target) in enumerate(expected):
            n, m = len(of_source), len(of_target) + 1
            assert lengths[row] == n
            assert source[row].tolist() == [*of_source, *[END] * (source.shape[1] - n)]
            assert tokens[row].tolist() == [END, *of_target, *[END] * (tokens.shape[1] - m)]
            assert targets[row].tolist() == [*of_target, END, *[IGNORED] * (targets.shape[1] - m)]
        more = (len(windows), 40 - windows.shape[1] + 1)
        longer = np.ma.concatenate([windows, np.ma.masked_all(more, dtype=np.int64)], axis=1)
        longer.data[:, windows.shape[1] :] = END
        for one, other in zip(source_and_target(longer), (tokens, targets, source, lengths), strict=True):
            assert torch.equal(one, other)


def test_it_learns_and_resumes_to_the_bit(run, pairs):
    keys = [*KEYS, f"--dataset={pairs}", "--dropout=0.1", "--label_smoothing=0.1", "--lr_schedule=rsqrt"]
    keys += ["--warmup_iters=5", "--checkpoint_interval=6", "--keep_checkpoints=9", "--ffn=cffn_gated"]
    folder, whole = run("a", *keys, "--max_iters=20")
    values = [record["val_loss"] for record in whole if "val_loss" in record]
    assert values[-1] < values[0] - 0.5
    for path in (folder / "ckpt").iterdir():
        if path.name != "step_00000006.pt":
            path.unlink()
    main([f"--out_dir={folder}", "--resume=True"])
    again = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert losses(again) == losses(whole)


def test_it_goes_on_with_other_pairs(run, pairs, tmp_path, capsys):
    """The first evaluation is the source's last; a new ffn is drawn in both stacks, all else is kept."""
    folder, log = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=8", "--eval_interval=8")
    other = tmp_path / "other"
    prepare(lambda: pairs_of(200), {"made": "up"}, "bytes", other, 0.2, 1, pairs=True)
    start = [*KEYS, f"--init_from={folder}", "--max_iters=2"]
    _, again = run("b", *start, f"--dataset={pairs}")
    assert again[0]["val_loss"] == log[-1]["val_loss"]
    assert again[-1]["val_loss"] < again[0]["val_loss"]
    run(
        "c",
        *start,
        f"--dataset={other}",
        "--ffn=swiglu",
        "--block_size=32",
        "--learning_rate=1e-12",
        "--min_lr=0",
    )
    said = capsys.readouterr().out
    old, new = (f"{4 * count * 32:,}" for count in (2 * 128, 3 * 256))
    assert f"new: ffn=swiglu, {new} weights; dropped: ffn=mlp, {old} weights" in said
    assert "block_size 40 -> 32" in said
    before, after = (pretrained.open_source(str(tmp_path / name)).read() for name in ("a", "c"))
    kept = {name for name in after if "ffn" not in name and "position" not in name}
    assert any(name.startswith("encoder.") for name in kept)
    assert any(".cross." in name for name in kept)
    for name in kept:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)


def test_batches_of_another_size_give_the_same_loss(run, pairs):
    _, found = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=4")
    larger = ("--batch_size=12", "--gradient_accumulation_steps=1")
    _, whole = run("b", *KEYS, f"--dataset={pairs}", "--max_iters=4", *larger)
    for one, other in zip(found, whole, strict=True):
        assert one["tokens"] == other["tokens"]
        for key in {"loss", "grad_norm", "val_loss"} & one.keys():
            assert one[key] == pytest.approx(other[key], rel=2e-5)


def test_mixtures(run, pairs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(pairs, other)
    _, found = run("a", *KEYS, f"--dataset={pairs}:2,{other}:1", "--max_iters=2")
    parts = [value for key, value in found[0].items() if key.startswith("val_loss_")]
    assert len(parts) == 2
    assert min(parts) < found[0]["val_loss"] < max(parts)


@pytest.mark.slow
def test_two_ranks_train_as_one(pairs, tmp_path):
    keys = {
        "dataset": pairs, "n_layer": 1, "n_head": 2, "n_embd": 16, "max_iters": 6, "warmup_iters": 1,
        "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1, "checkpoint_interval": 4, "device": "cpu",
        "gradient_accumulation_steps": 4, "dtype": "float32", "compile": False,
    }  # fmt: skip
    arguments = [*KEYS, *(f"--{key}={value}" for key, value in keys.items())]
    sharded = ([*arguments, "--sharding=full"], {})
    train_watched(tmp_path, {1: {"one": (arguments, {})}, 2: {"two": (arguments, {}), "sharded": sharded}})
    one, *others = (records(tmp_path / name / "log.jsonl") for name in ("one", "two", "sharded"))
    for two in others:
        assert len(one) == len(two) > 6
        for a, b in zip(one, two, strict=True):
            for key in {"loss", "grad_norm", "val_loss"} & a.keys():
                assert b[key] == pytest.approx(a[key], rel=2e-5), (a["step"], key)


def test_it_translates(run, pairs, capsys):
    """Greedy, by beams, and as the model would with all of a source and its prefix."""
    folder, _ = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=10")
    capsys.readouterr()
    translate.main([str(folder), f"--pairs={pairs}", "--limit=20", "--beams=2"])
    assert "| copy of the source" in capsys.readouterr().out
    translate.main([str(folder), "--text=abc", "--max_new_tokens=5"])
    text = capsys.readouterr().out.rstrip("\n")
    model, tokenizer = translate.open_model(str(folder), of_pairs=True).load().model, None
    written = [END]
    for _ in range(5):
        source, lengths = torch.tensor([[*b"abc", 7, 7]]), torch.tensor([3])
        written.append(int(model(torch.tensor([written]), None, source, lengths)[0, -1, :257].argmax()))
    whole = bytes(token for token in written[1:] if token < 256).decode(errors="replace")
    assert text == " ".join(whole.splitlines()), tokenizer


def test_a_plan(pairs, capsys):
    main([*KEYS, f"--dataset={pairs}", "--dry_run=True", "--n_layer=2", "--n_head=2", "--n_embd=32"])
    said = capsys.readouterr().out
    assert "parameters " in said
    assert "GiB on each GPU with sharding=none" in said


def test_what_is_refused(run, pairs, dataset, tmp_path, capsys):
    def refused(verb, *arguments):
        with pytest.raises(SystemExit) as stop:
            verb([str(one) for one in arguments])
        assert stop.value.code not in (0, None)
        return str(stop.value.code) + capsys.readouterr().err

    folder, _ = run("a", *KEYS, f"--dataset={pairs}", "--max_iters=2")
    for verb, *arguments in (
        (sample.main, folder),
        (evaluate.main, folder, f"--texts={dataset}/val.bin"),
        (export.main, folder, tmp_path / "exported"),
        (finetune.main, folder, "--learning_rates=1e-4", f"--data_dir={tmp_path}"),
    ):
        said = refused(verb, *arguments)
        assert "has an encoder (encoder_layers=2)" in said
        assert "take translate.py" in said
    assert "texts of a benchmark have no source" in refused(
        parsed, "config/demo_dense.py", "--encoder_layers=2"
    )
    new = f"--out_dir={tmp_path / 'new'}"
    with pytest.raises(SystemExit, match=r"encoder_layers=2.* has no pairs"):
        main([*KEYS, f"--dataset={dataset}", new, "--device=cpu"])
    assert "score_source=True, but encoder_layers=2" in refused(
        main, *KEYS, f"--dataset={pairs}", new, "--score_source=True"
    )
    assert "encoder_layers is 2 there, not 0" in refused(
        main, new, f"--init_from={folder}", f"--dataset={pairs}", "--encoder_layers=0"
    )
    assert not (tmp_path / "new").exists()
