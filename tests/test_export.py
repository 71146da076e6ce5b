"""export.py: what it writes, that transformers and our scripts read it, and what it refuses."""

import pytest
import torch
import transformers

import export
import sample
from corpus.tokenizer import BytesTokenizer
from remote_code.modeling_cofrgenet import CoFrGeNetForCausalLM
from training import checkpoint, pretrained


@pytest.mark.parametrize(
    "keys", [[], ["--ffn=cffn_gated", "--cf_eval_clip=True"], ["--token_shift=True", "--n_kv_head=1"]]
)
def test_export_sample_and_start_again(run, tmp_path, keys, capsys):
    folder, _ = run("run", "--max_iters=4", *keys)
    capsys.readouterr()
    export.main([str(folder), str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert ("transformers (GPT2LMHeadModel)" in said) == (not keys)
    assert ("trust_remote_code=True" in said) == bool(keys)
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    code = {name for name in kept if name.endswith(".py") or name == "LICENSE"}
    tokenizer = {"data_tokenizer.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert kept - code == {"config.json", "model.safetensors", "SHA256SUMS", "README.md", *tokenizer}
    assert bool(code) == bool(keys)
    sums = (tmp_path / "out" / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in sums} == kept - {"SHA256SUMS", "README.md"}
    # as readable as the files beside it
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    if not keys:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert theirs.generation_config.eos_token_id == 256  # of bytes
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        assert tokenizer("aé<|endoftext|>")["input_ids"] == [97, 0xC3, 0xA9, 256]

    def text(where):
        sample.main([str(where), "--max_new_tokens=20", "--temperature=0"])
        return capsys.readouterr().out

    said = text(folder)
    assert said == text(tmp_path / "out")
    run("again", f"--init_from={tmp_path / 'out'}", "--max_iters=2", *keys)
    with pytest.raises(SystemExit, match="out is not empty"):
        export.main([str(folder), str(tmp_path / "out")])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="file is a file"):
        export.main([str(folder), str(tmp_path / "file")])
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SystemExit, match="loop is a symbolic link to loop"):
        export.main([str(folder), str(tmp_path / "loop")])
    export.main([str(folder), str(tmp_path / "link")])
    capsys.readouterr()
    assert text(folder) == text(tmp_path / "empty")


@torch.no_grad()
@pytest.mark.parametrize(
    "keys", [{}, {"norm": "rmsnorm", "ffn": "swiglu", "position": "rope"}, {"ffn": "swiglu"}]
)
def test_exports_generate_no_tokens_that_the_tokenizer_lacks(build, tmp_path, keys):
    """The model has 43 more than bytes and end-of-text, and likes them."""
    model = build(vocab_size=300, **keys)
    model.embedding.weight[257:] *= 50
    source = pretrained.Source(
        tmp_path / "model", model.config, model.state_dict, BytesTokenizer().to_json()
    )
    native = pretrained.export(source, tmp_path / "out").packages is None
    kind = transformers.AutoModelForCausalLM if native else CoFrGeNetForCausalLM
    theirs, start = kind.from_pretrained(tmp_path / "out"), {"input_ids": torch.full((20, 1), 256)}
    start["attention_mask"] = torch.ones_like(start["input_ids"])
    assert theirs(start["input_ids"]).logits.argmax(-1).max() > 256
    for how in ({"do_sample": True, "top_k": 0}, {"num_beams": 2}, {"do_sample": False}):
        assert theirs.generate(**start, **how, max_new_tokens=8).max() <= 256


def test_weights_that_are_not_finite(run, tmp_path):
    folder, _ = run("a", "--max_iters=2")
    path = checkpoint.find(folder, "best")
    content = checkpoint.load(path)
    content["model"]["norm.weight"].fill_(float("nan"))
    torch.save(content, path)
    with pytest.raises(SystemExit, match=r"norm\.weight is not finite"):
        export.main([str(folder), str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"norm\.weight is not finite"):
        run("b", f"--init_from={folder}", "--max_iters=2")


def test_export_whole_or_not_at_all(run, tmp_path, monkeypatch):
    import safetensors.torch

    folder, _ = run("run", "--max_iters=2")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(SystemExit, match="no space left"):
        export.main([str(folder), str(tmp_path / "new" / "out")])
    assert not list((tmp_path / "new").iterdir())
    with pytest.raises(SystemExit) as stop:
        export.main([str(folder)])
    assert stop.value.code == 2
