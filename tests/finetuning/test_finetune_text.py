"""Language models on new text: config/finetune_text.py, from a run and from a folder of Hugging Face."""

import json
from pathlib import Path

import pytest

from corpus.binary import prepare
from corpus.file_tokenizer import BpeTokenizer
from tests.conftest import documents
from train import main

CONFIG = str(Path(__file__).resolve().parents[2] / "config" / "finetune_text.py")
SMALL = ["--device=cpu", "--dtype=float32", "--compile=False", "--eval_tokens=640", "--max_iters=60"]
SMALL += ["--learning_rate=3e-3", "--min_lr=3e-4", "--eval_interval=30", "--checkpoint_interval=30"]


def other_texts():
    """Another language: the same words backwards."""
    for text in documents():
        yield text[::-1].upper()


def losses(folder):
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["val_loss"] for record in records if "val_loss" in record]


def test_goes_on_from_a_run(arguments, tmp_path, capsys):
    """Both texts in the tokenizer that the first was prepared with, as the head of the config says."""
    prepare(documents, {"made": "up"}, "bpe:300", tmp_path / "old", 0.1, workers=1)
    tokenizer = str(tmp_path / "old" / "tokenizer.json")
    prepare(other_texts, {"made": "up"}, tokenizer, tmp_path / "new", 0.1, workers=1)
    keys = [a for a in arguments if not a.startswith("--dataset")]
    main([*keys, f"--dataset={tmp_path / 'old'}", f"--out_dir={tmp_path / 'run'}"])
    given = [f"--dataset={tmp_path / 'new'}", *SMALL]
    main([CONFIG, *given, f"--init_from={tmp_path / 'run'}", f"--out_dir={tmp_path / 'tuned'}"])
    assert "weights kept" in capsys.readouterr().out
    tuned = losses(tmp_path / "tuned")
    assert tuned[-1] < tuned[0] - 0.5
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert (config["n_embd"], config["block_size"]) == (32, 32)  # the run's, not the defaults


def test_refuses_text_in_another_tokenizer(dataset, arguments, tmp_path, run):
    folder, _ = run("run", "--max_iters=2")
    prepare(other_texts, {"made": "up"}, "bpe:257", tmp_path / "new", 0.1, workers=1)
    with pytest.raises(SystemExit) as stop:
        main(
            [
                CONFIG,
                *SMALL,
                f"--dataset={tmp_path / 'new'}",
                f"--init_from={folder}",
                f"--out_dir={tmp_path}/t",
            ]
        )
    assert "prepare the data with its tokenizer" in str(stop.value)


def test_goes_on_from_a_folder_of_hugging_face(tmp_path):
    models = pytest.importorskip("tests.training.transformers_models")
    tokenizer = BpeTokenizer.train(documents(), 300)
    models.drawn(models.gpt2(vocab_size=tokenizer.vocab_size)).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(tokenizer.text)
    prepare(
        other_texts,
        {"made": "up"},
        str(tmp_path / "hf" / "tokenizer.json"),
        tmp_path / "new",
        0.1,
        workers=1,
    )
    keys = [
        f"--dataset={tmp_path / 'new'}",
        f"--init_from={tmp_path / 'hf'}",
        f"--out_dir={tmp_path / 'tuned'}",
    ]
    main([CONFIG, *keys, *SMALL])
    tuned = losses(tmp_path / "tuned")
    assert tuned[-1] < tuned[0] - 0.5
