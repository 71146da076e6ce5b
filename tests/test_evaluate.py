"""evaluate.py: what it prints, what it writes, what it refuses."""

import itertools
import json
import math
import shutil
import types

import numpy as np
import pytest
import torch

import evaluate
import export
from corpus.binary import prepare
from corpus.file_tokenizer import BpeTokenizer
from corpus.loader import Dataset
from corpus.pairs import PairDataset
from evaluation import EvaluationError, zero_shot
from evaluation.models import load
from evaluation.ngrams import Ngrams
from tests.conftest import documents
from training.distributed import Ranks
from training.evaluation import evaluate as in_training


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory):
    """Two tiny runs on bytes: learned positions and RoPE."""
    from train import main

    folders = {}
    for position in ("learned", "rope"):
        out = tmp_path_factory.mktemp("runs") / position
        keys = {
            "dataset": dataset, "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "batch_size": 4,
            "gradient_accumulation_steps": 1, "max_iters": 10, "warmup_iters": 1, "eval_interval": 5,
            "eval_tokens": 320, "checkpoint_interval": 5, "device": "cpu", "dtype": "float32",
            "compile": False, "position": position, "out_dir": out, "learning_rate": 3e-3, "min_lr": 3e-4,
        }  # fmt: skip
        main([f"--{key}={value}" for key, value in keys.items()])
        folders[position] = out
    return folders


def printed(capsys, *arguments):
    evaluate.main([str(a) for a in arguments])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        evaluate.main([str(a) for a in arguments])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def test_the_text_of_a_run_is_its_own_validation_split(runs, dataset, capsys, tmp_path):
    file, same = tmp_path / "numbers.json", tmp_path / "same.json"
    printed(capsys, *runs.values(), f"--json={file}")
    printed(capsys, *runs.values(), f"--texts={dataset}/val.bin", f"--json={same}")
    found, expected = (json.loads(path.read_text()) for path in (file, same))
    assert found["texts"][str(dataset)]["split"] == "val"
    for one, other in zip(found["models"], expected["models"], strict=True):
        assert one["results"] == {str(dataset): other["results"][f"{dataset}/val.bin"]}


def test_texts_of_a_model_that_is_no_run(runs, capsys, tmp_path):
    export.main([str(runs["rope"]), str(tmp_path / "exported")])
    said = refused(capsys, tmp_path / "exported")
    assert "exported is no run" in said
    assert "--texts=table_3 for the papers' six" in said
    config = evaluate.EvaluateConfig([str(runs["rope"])], texts=["table_3", "ptb", "a.txt"])
    names = ["ptb", "wikitext2", "wikitext103", "lambada", "ag_news", "lm1b", "a.txt"]
    assert evaluate.text_names(config, []) == names


def test_a_run_whose_data_set_is_gone(runs, capsys, monkeypatch):
    monkeypatch.setattr(evaluate.mixture, "parse", lambda dataset: (["gone"], [1]))
    assert "rope was trained on gone" in refused(capsys, runs["rope"])


def test_perplexity_of_runs(runs, dataset, capsys, tmp_path):
    (tmp_path / "a.txt").write_text("abc de fgh " * 20)
    file = tmp_path / "numbers.json"
    keys = (f"--texts={tmp_path}/a.txt,{dataset}/val.bin", "--max_tokens=500", f"--json={file}")
    said = printed(capsys, runs["learned"], runs["rope"], *keys)
    found = json.loads(file.read_text())
    assert found["settings"]["max_tokens"] == 500
    assert found["commit"]
    assert found["torch"] == torch.__version__
    assert {"numpy", "tokenizers"} <= found["versions"].keys()
    assert found["texts"][f"{dataset}/val.bin"]["split"] == "val"
    first, second = found["models"]
    assert (first["name"], first["step"], first["tokens_seen"]) == ("learned", 10, 10 * 4 * 32)
    assert first["parameters"] == second["parameters"] + 32 * 16
    for text, tokens in ((f"{tmp_path}/a.txt", 220), (f"{dataset}/val.bin", 500)):
        one, two = first["results"][text], second["results"][text]
        assert one["tokens"] == two["tokens"] == tokens
        assert (one["window"], one["stride"]) == (32, 16)
        assert one["perplexity"] == pytest.approx(math.exp(one["loss"]))
        low, high = sorted((one["perplexity"], two["perplexity"]))
        assert f"**{low:.2f}**" in said
        assert f"**{high:.2f}**" not in said
    assert "published" not in said


@pytest.fixture(scope="module")
def of_bpe(runs, tmp_path_factory):
    """A run like runs["rope"] on the same documents in a BPE, and its data set."""
    from train import main

    folder = tmp_path_factory.mktemp("bpe")
    prepare(documents, {"made": "up"}, "bpe:300", folder / "data", 0.1, workers=1)
    keys = json.loads((runs["rope"] / "config.json").read_text())
    keys |= {"dataset": folder / "data", "out_dir": folder / "bpe", "vocab_size": None}
    main([f"--{key}={value}" for key, value in keys.items()])
    return folder / "bpe", folder / "data"


def test_models_of_different_tokenizers(runs, of_bpe, dataset, capsys, tmp_path):
    bpe, data = of_bpe
    (tmp_path / "a.txt").write_text("abc dé fgh " * 40)
    file, texts = tmp_path / "numbers.json", [f"{tmp_path}/a.txt", f"{dataset}/val.bin", f"{data}/val.bin"]
    models = (runs["rope"], bpe)
    keys = (f"--texts={','.join(texts)}", "--max_bytes=301", f"--json={file}")
    said = printed(capsys, *models, *keys)
    found = [model["results"] for model in json.loads(file.read_text())["models"]]
    for text in texts:
        one, two = (results[text] for results in found)
        assert one["bytes"] == two["bytes"] > 290
        assert one["tokens"] != two["tokens"]
        low, high = sorted((one["bits_per_byte"], two["bits_per_byte"]))
        assert f"**{low:.4f}**" in said
        assert f"**{high:.4f}**" not in said
        assert f"**{min(one['perplexity'], two['perplexity']):.2f}**" not in said
    same = (found[0][text]["bits_per_byte"] for text in texts[1:])  # the second one is decoded
    assert next(same) == pytest.approx(next(same), rel=0.02)
    assert "per byte, because their tokenizers differ (rope: bytes, 257 tokens" in said
    for task in ("perplexity", "extrapolation"):
        said = refused(capsys, *models, f"--texts={texts[2]}", f"--task={task}", "--max_tokens=300")
        assert "max_tokens=300 is another piece" in said
        assert "give --max_bytes=N" in said
    both = ("--max_tokens=300", "--max_bytes=300")
    assert "give one of them" in refused(capsys, *models, f"--texts={texts[2]}", *both)
    said = refused(capsys, *models, "--task=recall", f"--texts={texts[2]}")
    assert "recall is compared on the same tokens" in said
    said = printed(capsys, *models, "--task=extrapolation", f"--texts={texts[2]}", "--lengths=1,2")
    assert "the best, because their tokenizers differ" in said
    assert "**" not in said


def test_ngrams_of_the_training_tokens(runs, of_bpe, dataset, capsys, tmp_path):
    file, text = tmp_path / "numbers.json", f"{dataset}/val.bin"
    keys = (f"--texts={text}", "--max_bytes=900", f"--json={file}", "--ngrams=True")
    said = printed(capsys, *runs.values(), *keys)
    rows = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("|")]
    assert rows[2:7] == ["unigram", "bigram", "trigram", "learned", "rope"]
    assert "unigram, bigram, trigram: counts of 1,280 training tokens of learned and rope" in said
    (found,) = json.loads(file.read_text())["ngrams"]
    data = Dataset(dataset, "train", 32)
    pieces = data.pieces(40, 1337)
    assert sum(len(piece) - 1 for piece in pieces) == 40 * 32
    model = Ngrams(pieces, 257)
    stream = np.array([256, *Dataset(dataset, "val", 1).tokens])
    for name, order in zip(("unigram", "bigram", "trigram"), model.probabilities(stream), strict=True):
        result = found["results"][name][text]
        assert result["loss"] == pytest.approx(-np.log(order[: result["tokens"]]).mean())
    losses = [found["results"][name][text]["loss"] for name in found["results"]]
    assert losses == sorted(losses, reverse=True)
    assert found["weights"]["unigram"].keys() == {"1024-2047"}
    said = printed(capsys, *runs.values(), *keys[:2], "--ngrams=True", "--ngram_tokens=700")
    assert "counts of 672 training tokens of learned and rope, which read 1,280" in said
    # runs on different data have rows of their own
    said = printed(capsys, runs["rope"], of_bpe[0], *keys[:2], "--ngrams=True")
    assert "| trigram of rope " in said
    assert "| trigram of bpe " in said


def test_ngrams_of_a_run_of_pairs(run, paired, capsys):
    """Each pair that the run has read is counted once, with the end-of-text before it."""
    folder, _ = run("translator", f"--dataset={paired}", "--max_iters=6", "--block_size=40")
    text = f"{paired}/val.bin"
    said = printed(capsys, folder, f"--texts={text}", "--ngrams=True", "--max_bytes=900")
    data = PairDataset(paired, "train", 40)
    places = np.sort(data._order(0, 48, 1337))
    pieces = [np.array([256, *a, 256, *b, 256]) for a, b in map(data.pair, places)]
    counted = sum(len(piece) - 1 for piece in pieces)
    assert f"counts of {counted:,} training tokens of translator, which read 48 pairs" in said
    assert f"both sides of pairs are scored ({text})" in said
    stream = np.array([256, *Dataset(paired, "val", 1).tokens])
    for name, order in zip(
        ("unigram", "bigram", "trigram"), Ngrams(pieces, 257).probabilities(stream), strict=True
    ):
        row = next(line for line in said.splitlines() if line.startswith(f"| {name}"))
        cells = [cell.strip().replace(",", "") for cell in row.split("|")]
        assert float(cells[3]) == pytest.approx(-np.log(order[: int(cells[6])]).mean(), abs=1e-4)
    limited = printed(capsys, folder, f"--texts={text}", "--ngrams=True", "--ngram_tokens=400")
    first = sum(len(a) + len(b) + 2 for a, b in map(data.pair, np.sort(data._order(0, 10, 1337))))
    assert f"counts of {first:,} training tokens of translator, which read 48 pairs" in limited


def test_ngrams_need_the_training_data(runs, dataset, capsys, tmp_path):
    text = f"--texts={dataset}/val.bin"
    for keys, told in (
        (["--protocol=gpt2", "--ngrams=True"], "ngrams acts with protocol=raw only"),
        (["--ngram_tokens=9"], "ngram_tokens acts with ngrams=True only"),
        (["--task=recall", text, "--ngrams=True"], "ngrams acts with task=perplexity only"),
        (["--ngrams=True", "--ngram_tokens=0"], "ngram_tokens must be at least 1, not 0"),
    ):
        assert told in refused(capsys, runs["rope"], *keys)
    moved = tmp_path / "moved"
    shutil.copytree(runs["rope"], moved)
    for path in (moved / "ckpt").iterdir():
        content = torch.load(path, weights_only=True)
        content["config"]["dataset"] = str(tmp_path / "gone")
        torch.save(content, path)
    said = refused(capsys, moved, text, "--ngrams=True")
    assert "tokens of moved, and they cannot be opened" in said
    assert "gone is not a prepared data set" in said
    prepare(
        lambda: itertools.islice(documents(), 200),
        {"made": "up"},
        "bytes",
        tmp_path / "gone",
        0.1,
        workers=1,
    )
    assert "gone holds other data" in refused(capsys, moved, text, "--ngrams=True")
    export.main([str(runs["rope"]), str(tmp_path / "exported")])
    capsys.readouterr()
    said = refused(capsys, tmp_path / "exported", text, "--ngrams=True")
    assert "exported is no run of train.py" in said


def test_a_text_of_one_window_has_the_loss_that_training_reports(runs, dataset, capsys, tmp_path):
    tokens = Dataset(dataset, "val", 1).tokens[:32]
    window = np.array([[256, *tokens]])
    model, size = load(str(runs["rope"])).model, int((tokens < 256).sum())
    expected = in_training(model, window, size, 1, "float32", Ranks())
    file = tmp_path / "numbers.json"
    printed(
        capsys,
        runs["rope"],
        f"--texts={dataset}/val.bin",
        "--max_tokens=32",
        "--window=33",
        f"--json={file}",
    )
    (result,) = json.loads(file.read_text())["models"][0]["results"].values()
    assert result["loss"] == pytest.approx(expected["val_loss"], abs=1e-6)
    assert result["bits_per_byte"] == pytest.approx(expected["val_bits_per_byte"], abs=1e-6)
    assert result["perplexity"] == pytest.approx(expected["val_perplexity"], rel=1e-6)


def test_the_papers_rows(runs, dataset, capsys, monkeypatch):
    from evaluation import texts

    published = texts.Documents("ptb", "space", 256, {}, ["ab cd", "ef"])
    monkeypatch.setattr(texts, "_published", lambda name, split: published)
    said = printed(capsys, runs["rope"], "--texts=ptb", "--compare=True")
    assert "published: GPT2-xl (1.5B), OWT" in said
    assert "30.12" in said
    assert "18.30" not in said
    said = printed(capsys, runs["rope"], f"--texts={dataset}/val.bin", "--max_tokens=40", "--compare=True")
    assert "the papers' table 3 has none of" in said


def test_published_strides_where_they_fit(monkeypatch):
    from evaluation import texts

    text = texts.Documents("ptb", "space", 256, {}, ["ab"])

    def stride(block_size, **keys):
        config = evaluate.EvaluateConfig(models=["a"], **keys)
        return evaluate.stride(config, types.SimpleNamespace(block_size=block_size), text)

    assert [stride(n) for n in (1024, 257, 256, 128)] == [256, 256, 128, 64]
    assert stride(1024, stride=10) == 10
    assert stride(1024, window=100) == 50


def test_extrapolation(runs, dataset, capsys, tmp_path):
    file, picture = tmp_path / "numbers.json", tmp_path / "a.png"
    keys = ("--task=extrapolation", f"--texts={dataset}/val.bin", "--lengths=1,2,4", "--compare=True")
    said = printed(capsys, *runs.values(), *keys, f"--json={file}", f"--plot={picture}")
    assert "refused: learned: 64 tokens " in said
    assert "published: ExPE Medium (table 4)" in said
    assert picture.is_file()
    learned, rope = (m["results"] for m in json.loads(file.read_text())["models"])
    assert [r["factor"] for r in learned["lengths"]] == [1]
    assert [r["factor"] for r in rope["lengths"]] == [1, 2, 4]
    assert learned["tokens"] == rope["tokens"] > 0
    assert f"{rope['lengths'][2]['loss']:.3f}" in said


def test_scales_are_rows(run, dataset, capsys):
    folder, _ = run("expe", "--max_iters=2", "--position=expe")
    keys = ("--task=extrapolation", f"--texts={dataset}/val.bin", "--lengths=1,2", "--scales=1,0.5")
    said = printed(capsys, folder, *keys)
    assert "expe, scale 1 " in said
    assert "expe, scale 0.5 " in said


def test_zero_shot_tasks(runs, capsys, monkeypatch, tmp_path):
    """What the adapter is asked for, and the table of what it answers."""
    asked = []

    def answer(models, **settings):
        asked.append((models, settings))
        if "none" in settings["tasks"]:
            raise EvaluationError("none is no task")
        about = {"higher_is_better": {"acc": True, "perplexity": False}}
        measured = []
        for number, name in enumerate(models, 1):
            acc = 0.25 + 0.1 * number
            results = {
                "piqa": {"acc": acc, "acc_stderr": 0.01, "about": about},
                "lambada_openai": {"acc": acc, "perplexity": 9.0 + number, "about": about},
            }
            measured.append({"name": name, "results": results})
        return {"models": measured, "versions": {"lm_eval": "0.4.13"}}

    monkeypatch.setattr(zero_shot, "evaluate", answer)
    file = tmp_path / "numbers.json"
    keys = (
        "--task=zero_shot",
        "--tasks=piqa,lambada_openai",
        "--limit=5",
        "--batch_size=3",
        "--compare=True",
    )
    said = printed(capsys, *runs.values(), *keys, f"--json={file}")
    ((models, settings),) = asked
    assert models == {name: str(folder) for name, folder in runs.items()}
    wanted = {"tasks": ["piqa", "lambada_openai"], "batch_size": 3, "limit": 5, "include_path": None}
    assert wanted.items() <= settings.items()
    row = next(line for line in said.splitlines() if line.startswith("| learned"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "learned",
        "0.350 ± 0.010",
        "0.350",
        "**10.000**",
    ]
    row = next(line for line in said.splitlines() if line.startswith("| rope"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "rope",
        "**0.450** ± 0.010",
        "**0.450**",
        "11.000",
    ]
    row = next(line for line in said.splitlines() if "CoFrGeNet-F (2.1B)" in line)
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["0.764", "0.583", ""]
    assert "none is no task" in refused(capsys, *runs.values(), "--task=zero_shot", "--tasks=piqa,none")
    assert len(asked) == 2
    found = json.loads(file.read_text())
    assert found["versions"]["lm_eval"] == "0.4.13"
    assert found["models"][0]["results"]["piqa"]["acc_stderr"] == 0.01


def test_recall(runs, dataset, capsys, tmp_path):
    file = tmp_path / "numbers.json"
    (tmp_path / "a.txt").write_text("abc de fgh " * 20)
    keys = ("--task=recall", f"--texts={tmp_path}/a.txt,{dataset}/val.bin", "--max_tokens=200")
    plot = (f"--plot={tmp_path / 'new' / 'a.pdf'}", "--plot_size=3.3x2.4", "--plot_labels=dense,ours")
    said = printed(capsys, runs["learned"], runs["rope"], *keys, f"--json={file}", *plot)
    assert (tmp_path / "new" / "a.pdf").read_bytes().startswith(b"%PDF")
    assert f"picture: {tmp_path / 'new' / 'a.pdf'}" in said
    one, two = (model["results"] for model in json.loads(file.read_text())["models"])
    assert one["tokens"] == two["tokens"] == 400
    assert (one["window"], one["stride"]) == (32, 16)
    assert sum(r["tokens"] for r in one["repeats"]) == 400
    parts = said[said.index("difference to learned") :].splitlines()[4].split("|")[2:-1]
    whole, *pieces = map(float, parts)
    assert whole == pytest.approx(two["loss"] - one["loss"], abs=6e-5)
    assert sum(pieces) == pytest.approx(whole, abs=4e-4)
    assert f"of 400 tokens: {one['repeats'][0]['tokens'] / 400:.1%} new, " in said
    said = printed(capsys, runs["rope"], *keys, "--window=20")
    assert "difference" not in said
    assert "windows of 20 tokens that move by 10" in said


def test_two_panels_need_room(capsys):
    keys = ["out/a", "--task=extrapolation", "--texts=a.txt", "--plot=a.png", "--plot_size=3.3x2.4"]
    with pytest.raises(SystemExit) as stop:
        evaluate.main(keys)
    said = str(stop.value.code) + capsys.readouterr().err
    assert "plot_size=3.3x2.4 is too small for 2 x 1" in said


def test_mistakes_are_named_before_any_work(runs, run, dataset, capsys, tmp_path):
    wide, _ = run("wide", "--max_iters=2", "--position=rope", "--block_size=48")
    (tmp_path / "a.json").write_text("{}")
    said = refused(
        capsys, runs["rope"], f"--json={tmp_path}/a.json", "--plot=a.jpg", "--batch_size=0", "--join=glue",
        "--lengths=1,x",
    )  # fmt: skip
    for part in (
        "a.json exists already", ".svg, not 'a.jpg'",
        "plot acts with task=extrapolation or recall",
        "batch_size must be at least 1", "join must be one of blank_line",
        "1,2,4, not 'x'",
    ):  # fmt: skip
        assert part in said
    assert "needs --texts" in refused(capsys, runs["rope"], "--task=extrapolation")
    said = refused(capsys, runs["rope"], f"--texts={dataset}/val.bin", "--split=train")
    assert "val.bin is one split: leave out --split=train" in said
    for task in ("recall", "extrapolation"):
        keys = (f"--task={task}", f"--texts={dataset}/val.bin", f"--plot={tmp_path}/p.png")
        said = refused(capsys, runs["rope"], *keys, "--plot_labels=a,b")
        assert "it has 2 for 1 line: rope" in said
        assert "tokens" not in said
    said = refused(capsys, runs["rope"], "--task=recall", "--compare=True")
    assert "task=recall needs --texts" in said
    assert "compare acts with task=perplexity" in said
    told = refused(capsys, f"--texts={dataset}")
    assert "--models=... is required (usage: " in told
    assert " MODELS [--key=value ...])" in told
    told = refused(capsys, "run", "config/demo_dense.py", f"--texts={dataset}")
    assert "config/demo_dense.py is a config, not a run" in told
    assert "nowhere does not exist" in refused(capsys, runs["rope"], "nowhere", f"--texts={dataset}")
    said = refused(capsys, runs["rope"], f"--texts={dataset}", "--stride=32")
    assert "stride=32 must lie between 1 and 31" in said
    said = refused(capsys, runs["rope"], runs["learned"], f"--texts={dataset}", "--window=64")
    assert "learned: window=64 does not fit" in said
    assert "loss" not in said
    said = refused(capsys, runs["rope"], f"--texts={dataset}", "--task=extrapolation", "--scales=0.5")
    assert "a scale of 0.5 multiplies" in said
    said = refused(capsys, runs["rope"], f"{runs['rope']}/", f"--texts={dataset}")
    assert "a model is named twice" in said
    # only the second one's training length is too long for these documents
    (tmp_path / "long.txt").write_text("abc " * 20)
    lengths = (f"--texts={tmp_path}/long.txt", "--task=extrapolation", "--lengths=1,2")
    said = refused(capsys, runs["rope"], wide, *lengths)
    assert "wide, 2 times" in said
    assert "no document has the 96 tokens" in said
    assert "batches" not in said
    (tmp_path / "t.txt").write_text("abc")
    tokenizer = BpeTokenizer.train(["ab ab abc"] * 9, 258)
    (tmp_path / "bpe.json").write_text(tokenizer.text)
    keys = (f"--texts={tmp_path}/t.txt", f"--tokenizer={tmp_path}/bpe.json")
    said = refused(capsys, runs["rope"], *keys)
    assert "trained with another vocabulary" in said


def test_runs_of_one_name_are_told_apart(runs, dataset, capsys):
    best = runs["rope"] / "ckpt" / "best.pt"
    step = runs["rope"] / "ckpt" / "step_00000005.pt"
    said = printed(capsys, best, step, f"--texts={dataset}", "--max_tokens=64")
    assert "| rope/best " in said
    assert "| rope/step_00000005 " in said
    said = printed(
        capsys,
        runs["rope"],
        f"{runs['rope'].parent}/../{runs['rope'].parent.name}/rope",
        f"--texts={dataset}",
        "--max_tokens=64",
    )
    assert f"| {runs['rope']} " in said
