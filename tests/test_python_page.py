"""docs/python.md runs as it stands, and `load` reads what it names."""

import re
from pathlib import Path

import pytest
import torch

import export
from tests.conftest import documents
from training import pretrained
from training.checkpoint import CheckpointError
from training.pretrained import load

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.M | re.S)


def test_the_blocks_of_the_page(run, tmp_path, monkeypatch, capsys):
    sizes = ("--block_size=64", "--max_iters=4")
    run("out/demo_dense", *sizes)
    run("out/demo_cofrgenet", *sizes, "--attention=cattn_m", "--ffn=cffn_gated", "--cf_depth=4")
    (tmp_path / "config").symlink_to(ROOT / "config")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    made = {}
    for block in BLOCKS:
        exec(block, made)
    assert len(BLOCKS) > 8
    assert "blocks.1.ffn.ladders smallest |K_d|" in capsys.readouterr().out
    tokens, losses = made["tokens"], made["losses"]
    assert made["logits"].shape == (1, len(made["ids"]), 257)
    assert losses.mean() == pytest.approx(made["model"](tokens[:, :-1], tokens[:, 1:]).item(), rel=1e-5)
    assert 0 < made["difference"].abs().max() < 1e-4
    assert made["a"].shape == (1, len(made["ids"]), 4, 3)
    assert not made["losses"].requires_grad


def test_load(run, tmp_path):
    folder, _ = run("run", "--max_iters=10", "--eval_interval=5", "--learning_rate=3e-2")
    export.main([str(folder), str(tmp_path / "exported")])
    model, tokenizer = load(folder)
    tokens = torch.tensor([[tokenizer.end_of_text, *tokenizer.encode("abc")]])
    assert not model.training
    for same in (tmp_path / "exported", pretrained.open_source(str(folder)).path):
        assert torch.equal(load(same)[0](tokens), model(tokens))
    with pytest.raises(ValueError, match=r"which .*'newest'"):
        load(folder, "newest")
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no tokens to continue"):
        next(model.generate([], 1))


def test_the_text_of_tokens():
    tokenizer = pretrained.build_tokenizer("bpe:300", documents)
    text = "abc — ü 𝄞"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.end_of_text]) == "a"
    assert tokenizer.decode(tokenizer.encode("ü")[:1]) == "\ufffd"
