"""GPT-2 and Llama by their names on the hub, of which tests have a stand-in."""

import json

import pytest
import torch

import train
from corpus import DataError, binary
from evaluation import foreign
from tests.corpus.foreign_tokenizers import SENTENCES, tokenizer_json
from tests.training.test_pretrained import tokens
from tests.training.transformers_models import drawn, gpt2, llama
from training import pretrained
from training.checkpoint import CheckpointError


@pytest.fixture
def on_hub(tmp_path, monkeypatch):
    """on_hub(repository) -> the folder whose files the hub has of it; files that are asked for"""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    asked = []

    def found(repository, file, **_):
        asked.append((repository, file))
        path = tmp_path / "hub" / repository / file
        if not path.is_file():
            raise EntryNotFoundError("404")
        return str(path)

    def folder(repository):
        (tmp_path / "hub" / repository).mkdir(parents=True)
        return tmp_path / "hub" / repository, asked

    monkeypatch.setattr(huggingface_hub, "hf_hub_url", lambda *where: where)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda where, **_: found(*where))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", found)
    monkeypatch.chdir(tmp_path)
    return folder


@torch.no_grad()
@pytest.mark.parametrize(("kind", "of"), [("byte_level", gpt2), ("llama", llama)])
def test_any_gpt2_or_llama_of_the_hub(on_hub, kind, of):
    folder, _ = on_hub("HuggingFaceTB/SmolLM2-135M")
    theirs = drawn(of(vocab_size=400))
    theirs.save_pretrained(folder, max_shard_size="30KB")
    assert (folder / "model.safetensors.index.json").is_file()
    (folder / "tokenizer.json").write_text(tokenizer_json(kind))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    source = pretrained.open_source("HuggingFaceTB/SmolLM2-135M")
    torch.testing.assert_close(pretrained.build(source).eval()(tokens()), theirs(tokens()).logits)
    tokenizer = pretrained.tokenizer_of(source)
    assert (tokenizer.kind, tokenizer.end_token) == (
        {"byte_level": "bpe", "llama": "inexact"}[kind],
        "</s>",
    )
    # evaluate.py leaves it to transformers, because its tokenizer puts a token before every text
    assert foreign.takes("HuggingFaceTB/SmolLM2-135M")
    content = json.loads(tokenizer_json(kind)) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert not foreign.takes("HuggingFaceTB/SmolLM2-135M")
    (folder / "tokenizer.json").unlink()
    assert foreign.takes("HuggingFaceTB/SmolLM2-135M")


def test_a_hub_model_that_cannot_be_had(on_hub):
    with pytest.raises(
        CheckpointError, match=r"(?s)owner/name does not exist: .*\nOf the hub: .*no config"
    ):
        pretrained.open_source("owner/name")
    folder, asked = on_hub("owner/bert")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match=r"owner/bert/config\.json: .*bert"):
        pretrained.open_source("owner/bert")
    asked.clear()
    (folder.parents[1].parent / "out").mkdir()
    for local in ("out/typo", "a/b/c", "./owner/name", "typo"):
        with pytest.raises(CheckpointError, match="does not exist"):
            pretrained.open_source(local)
    assert asked == []


def test_a_hub_model_without_a_tokenizer_says_how_to_save_one(on_hub):
    folder, _ = on_hub("owner/name")
    drawn(gpt2()).save_pretrained(folder)
    for name in ("owner/name", str(folder)):
        with pytest.raises(DataError, match=r"no tokenizer\.json.*AutoTokenizer\.from_pretrained"):
            pretrained.tokenizer_of(pretrained.open_source(name))


def test_training_starts_from_a_hub_model(on_hub, tmp_path):
    """With data of its tokenizer; data of another is refused, with the commands that prepare it."""
    folder, _ = on_hub("owner/name")
    drawn(llama(vocab_size=400)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json("llama"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    texts = [f"{text} {i}" for i, text in enumerate(SENTENCES * 4)]
    options = {"val_fraction": 0.3, "workers": 1}
    keys = ["--init_from=owner/name", "--max_iters=2", "--block_size=8", "--batch_size=2"]
    keys += ["--eval_tokens=32", "--warmup_iters=0", "--gradient_accumulation_steps=1", "--compile=False"]
    keys += ["--eval_interval=2", "--checkpoint_interval=2", "--device=cpu"]
    binary.prepare(lambda: iter(texts), {}, str(folder / "tokenizer.json"), tmp_path / "own", **options)
    train.main([*keys, "--out_dir=a", f"--dataset={tmp_path / 'own'}"])
    assert (tmp_path / "a" / "ckpt" / "step_00000002.pt").is_file()
    pretrained.export(pretrained.open_source("a"), tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "\nbase_model: owner/name\n" in card.split("---")[1]
    assert "Started from the weights of `owner/name`, of the Hugging Face hub." in card
    assert "--init_from=owner/name" in card
    binary.prepare(lambda: iter(texts), {}, "bytes", tmp_path / "bytes", **options)
    with pytest.raises(SystemExit) as stop:
        train.main([*keys, "--out_dir=b", f"--dataset={tmp_path / 'bytes'}"])
    said = str(stop.value.code)
    assert "tokenizer inexact) than the data set's (bytes)" in said
    assert "export.py owner/name exported/name" in said
    assert "--tokenizer=exported/name/tokenizer.json" in said
