"""Models to be measured: from runs, from our model folders, from Hugging Face's."""

import json

import pytest
import torch

from corpus import DataError
from corpus.file_tokenizer import BpeTokenizer
from evaluation import EvaluationError
from evaluation.models import load
from training import pretrained
from training.checkpoint import CheckpointError

transformers = pytest.importorskip("transformers")


def test_a_run_and_its_export_are_one_model(run, tmp_path):
    folder, log = run("expe", "--max_iters=10", "--position=expe")
    loaded = load(str(folder), which="last")
    assert (loaded.name, loaded.step, loaded.tokens_seen) == ("expe", 10, log[-1]["tokens"])
    assert not loaded.model.training
    assert loaded.end_of_text == loaded.tokenizer.end_of_text == 256
    assert loaded.facts()["parameters"] == sum(p.numel() for p in loaded.model.parameters())
    assert json.loads(json.dumps(loaded.facts()))["block_size"] == 32
    pretrained.export(pretrained.open_source(str(folder), "last"), tmp_path / "out")
    other = load(str(tmp_path / "out"))
    assert (other.name, other.step, other.tokens_seen) == ("out", 10, None)
    tokens = torch.randint(257, (2, 32))
    assert torch.equal(loaded.model(tokens), other.model(tokens))


def test_the_scale_replaces_that_of_the_model(run):
    folder, _ = run("expe", "--max_iters=2", "--position=expe")
    tokens = torch.randint(257, (2, 32))
    as_it_is, same, half = (
        load(str(folder), expe_inference_scale=s).model(tokens) for s in (None, 1.0, 0.5)
    )
    assert torch.equal(as_it_is, same)
    assert not torch.allclose(as_it_is, half)
    assert load(str(folder), expe_inference_scale=0.5).config.expe_inference_scale == 0.5


def test_a_model_of_transformers_with_its_tokenizer(tmp_path):
    from tests.training.transformers_models import drawn, gpt2

    tokenizer = BpeTokenizer.train(["ab ab abc"] * 9, 258)
    model = drawn(gpt2(vocab_size=300))
    model.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"has no tokenizer\.json"):
        load(str(tmp_path))
    assert load(str(tmp_path), tokenizer="bytes").tokenizer.kind == "bytes"
    (tmp_path / "tokenizer.json").write_text(tokenizer.text)
    loaded = load(str(tmp_path))
    assert loaded.tokenizer.hash == tokenizer.hash
    tokens = torch.tensor([loaded.tokenizer.encode("ab abc")])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(tokens), model(tokens).logits, atol=1e-4, rtol=0)
    with pytest.raises(CheckpointError, match="another vocabulary"):
        load(str(tmp_path), tokenizer="bytes")


def test_what_does_not_fit_together_is_refused(run, tmp_path):
    from tests.training.transformers_models import drawn, gpt2

    folder, _ = run("learned", "--max_iters=2")
    with pytest.raises(EvaluationError, match=r"scale of 0\.5 .*position=learned"):
        load(str(folder), expe_inference_scale=0.5)
    drawn(gpt2(vocab_size=200)).save_pretrained(tmp_path / "small")
    with pytest.raises(EvaluationError, match=r"small: .* 257 tokens.* 200"):
        load(str(tmp_path / "small"), tokenizer="bytes")
    with pytest.raises(CheckpointError, match="does not exist"):
        load(str(tmp_path / "none"))
