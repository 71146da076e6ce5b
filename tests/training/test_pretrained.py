"""Weights in and out: parity with transformers both ways, surgery, cropping, refusals. No hub."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers

import export
import sample
from configurator import ConfigError, resolve
from data.tokenizer import BpeTokenizer, BytesTokenizer
from layers import ATTENTION, FFN, POSITION
from model import GPT, ModelConfig
from train import TrainConfig, main, saved_config
from training import checkpoint, pretrained
from training.checkpoint import CheckpointError

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def gpt2(**keys):
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "n_positions": 128, "vocab_size": 101}
    return transformers.GPT2Config(**{**sizes, "bos_token_id": None, "eos_token_id": None, **keys})


def llama(**keys):
    sizes = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32,
        "intermediate_size": 40, "max_position_embeddings": 128, "vocab_size": 101,
    }  # fmt: skip
    return transformers.LlamaConfig(**{**sizes, "bos_token_id": None, "eos_token_id": None, **keys})


def drawn(config, seed=0):
    """A transformers model whose every weight matters: biases and norms too."""
    kind = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}[config.model_type]
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # larger ones would add up to one and the same token
                parameter.normal_(std=0.1 / config.num_hidden_layers)
            elif parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "wte" in name or "embed_tokens" in name:
                parameter.normal_(std=0.1)  # a tied head would repeat a token that stands out
            elif "wpe" in name:
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=2 / (config.num_hidden_layers * parameter.shape[-1]) ** 0.5)
    return model


MODELS = {
    "gpt2": gpt2(),
    "gpt2 exact gelu": gpt2(activation_function="gelu", n_inner=40, layer_norm_epsilon=1e-3),
    "gpt2 untied": gpt2(tie_word_embeddings=False),
    "gpt2 12": gpt2(n_layer=12),
    "gpt2 48": gpt2(n_layer=48),
    "llama untied": llama(),
    "llama tied": llama(tie_word_embeddings=True, rms_norm_eps=1e-3),
    "llama one group": llama(num_key_value_heads=1),
    "llama no groups": llama(
        num_key_value_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 77.0}
    ),
    "llama3 scaling": llama(rope_parameters=LLAMA3),
}


def tokens(batch=2, length=100, seed=1):
    return torch.randint(101, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_parity_both_ways(name, tmp_path):
    theirs = drawn(MODELS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    source = pretrained.open_source(str(tmp_path / "theirs"))
    ours = pretrained.build(source).eval()
    expected = theirs(tokens()).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(ours(tokens()), expected, atol=1e-4, rtol=0)
    assert ours.embedding.weight[101:].count_nonzero() == 0

    assert pretrained.export(source, tmp_path / "again")
    kind = transformers.AutoModelForCausalLM
    again = kind.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again(tokens()).logits, expected, atol=1e-4, rtol=0)
    stored = {name: weight for name, weight in theirs.state_dict().items() if name in again.state_dict()}
    for key, weight in again.state_dict().items():
        assert torch.equal(weight, stored[key]), key

    prompt = tokens(1, 5)
    written = theirs.generate(prompt, max_new_tokens=100, do_sample=False, pad_token_id=0)[0, 5:].tolist()
    assert list(ours.generate(prompt[0].tolist(), 100, temperature=0)) == written
    assert len(set(written)) > 3  # no loop that anything would write


@torch.no_grad()
@pytest.mark.parametrize("keys", [{}, {"bias": True}, {"gelu_approximation": "tanh", "ffn_hidden": 7}])
@pytest.mark.parametrize("tie", [True, False])
def test_our_gpt2_in_transformers(build, tmp_path, keys, tie):
    check_export(build(tie_embeddings=tie, **keys), tmp_path)


@torch.no_grad()
@pytest.mark.parametrize(
    "keys", [{}, {"n_kv_head": 1, "tie_embeddings": False}, {"rope_scaling": "llama3", "rope_base": 500.0}]
)
def test_our_llama_in_transformers(build, tmp_path, keys):
    check_export(build(norm="rmsnorm", ffn="swiglu", position="rope", **keys), tmp_path)


def check_export(model, tmp_path):
    source = pretrained.Source(tmp_path / "model", model.config, model.state_dict)
    assert pretrained.export(source, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    given = torch.arange(34).reshape(2, 17)
    torch.testing.assert_close(theirs(given).logits, model.eval()(given), atol=1e-4, rtol=0)
    back = pretrained.build(pretrained.open_source(str(tmp_path / "out"))).eval()
    torch.testing.assert_close(back(given), model(given), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("config", [gpt2(), llama()])
def test_shards_half_floats_and_old_layouts(config, tmp_path):
    drawn(config).bfloat16().save_pretrained(tmp_path, max_shard_size="5KB")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    content = json.loads((tmp_path / "config.json").read_text())
    if content["model_type"] == "llama":  # as before version 5
        content["rope_theta"] = content.pop("rope_parameters")["rope_theta"]
        (tmp_path / "config.json").write_text(json.dumps(content))
    ours = pretrained.build(pretrained.open_source(str(tmp_path))).eval()
    torch.testing.assert_close(ours(tokens()), theirs(tokens()).logits, atol=1e-4, rtol=0)


def test_files_of_the_hub_lack_the_prefix_and_hold_masks(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = drawn(gpt2())
    theirs.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    stored["h.0.attn.bias"] = torch.ones(1, 1, 128, 128).tril()
    save_file(stored, tmp_path / "model.safetensors")
    ours = pretrained.build(pretrained.open_source(str(tmp_path))).eval()
    torch.testing.assert_close(ours(tokens()), theirs(tokens()).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mistral"}, "model_type='mistral' is neither gpt2 nor llama"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only silu"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"head_dim": 16}, "head_dim=16"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "lacks 'factor'"),
        ({"rope_scaling": {"type": "linear"}, "rope_parameters": None}, "rope_type='linear'"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
        ({"num_key_value_heads": 3}, "n_kv_head=3 does not divide n_head=4"),
        ({"hidden_size": None}, "config.json"),
        ({"num_hidden_layers": "2"}, "config.json"),
        ({"vocab_size": 99}, "embed_tokens.weight has 101 rows, vocab_size is 99"),
        ({"num_hidden_layers": 3}, "lacks layers.2"),
        ({"num_hidden_layers": 1}, "holds weights that its config.json does not tell of"),
        ({"intermediate_size": 41}, "is of another model: it blocks.0.ffn.up.weight is [80, 32]"),
    ],
)
def test_refuses_foreign_configs(change, said, tmp_path):
    drawn(llama()).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(CheckpointError) as error:
        pretrained.build(pretrained.open_source(str(tmp_path)))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"activation_function": "relu"}, "activation_function='relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
    ],
)
def test_refuses_foreign_gpt2_configs(change, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(gpt2().to_dict() | change))
    with pytest.raises(CheckpointError, match=said):
        pretrained.open_source(str(tmp_path))


def test_refuses_what_is_no_model(tmp_path):
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        pretrained.open_source(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        pretrained.open_source(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(gpt2().to_dict()))
    with pytest.raises(CheckpointError, match="safetensors does not exist"):
        pretrained.build(pretrained.open_source(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="damaged or no safetensors file"):
        pretrained.build(pretrained.open_source(str(tmp_path)))


def test_without_network_the_hub_is_named(monkeypatch):
    import huggingface_hub

    def fails(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(CheckpointError, match=r"gpt2-medium: config\.json could not be had .*no route"):
        pretrained.open_source("gpt2-medium")


def test_every_key_has_its_place():
    """A key of ModelConfig is the trunk's, one or more parts', or free."""
    names = [*ATTENTION, *FFN, *POSITION]
    assert pretrained.READS.keys() == set(names)
    prefixes = tuple(prefix for name in names for prefix in pretrained.READS[name])
    free = {"block_size", "dropout", "attention", "ffn", "position"}
    for field in dataclasses.fields(ModelConfig):
        places = [field.name in pretrained.TRUNK, field.name in free, field.name.startswith(prefixes)]
        assert sum(places) == 1, field.name


# --- crop_block_size ---


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTION)
def test_crop_block_size(build, attention):
    position = "learned" if attention in ("cattn_m", "cattn_u", "synthesizer") else "expe"
    for place in {position, "learned"}:
        model = build(attention=attention, position=place, bias=True).eval()
        weights = pretrained.crop_block_size(model.state_dict(), model.config, 9)
        small = dataclasses.replace(model.config, block_size=9, expe_theta=1 / (4 * 17))
        small = GPT(small).init_weights().eval()
        small.load_state_dict(weights)
        given = torch.arange(18).reshape(2, 9)
        torch.testing.assert_close(small(given), model(given), atol=1e-6, rtol=0)


# --- init_from ---


def config_from(source, *overrides):
    return resolve(TrainConfig, [f"--init_from={source}", *overrides], saved=saved_config)


@pytest.fixture
def folder(tmp_path):
    drawn(gpt2(vocab_size=300)).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def test_starts_from_a_folder_and_goes_on(folder, arguments, tmp_path, capsys):
    model_keys = ("n_layer", "n_head", "n_embd", "cf_", "bigbird_")
    rest = [a for a in arguments if not a.startswith(tuple(f"--{key}" for key in model_keys))]
    rest += [f"--out_dir={tmp_path / 'run'}", f"--init_from={folder}"]
    main([*rest, "--max_iters=2", "--learning_rate=1e-9", "--min_lr=0", "--warmup_iters=0"])
    said = capsys.readouterr().out
    assert f"starting from {folder}" in said
    assert "block_size 128 -> 32" in said
    content = checkpoint.load(checkpoint.find(tmp_path / "run"))
    assert content["config"]["bias"]
    assert content["config"]["gelu_approximation"] == "tanh"
    source = pretrained.open_source(str(folder))
    weights = pretrained.crop_block_size(source.read(), source.config, 32)
    for key, weight in content["model"].items():
        torch.testing.assert_close(weight, weights[key], atol=1e-6, rtol=0)
    # the source is needed no more
    (folder / "config.json").unlink()
    main(
        [
            *rest[:-1],
            "--resume=True",
            "--max_iters=3",
            "--learning_rate=1e-9",
            "--min_lr=0",
            "--warmup_iters=0",
        ]
    )
    assert checkpoint.load(checkpoint.find(tmp_path / "run", "last"))["step"] == 3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["--n_layer=3"], "n_layer is 2 there, not 3"),
        (["--n_embd=48"], "n_embd is 24 there, not 48"),
        (["--n_head=2"], "n_head is 3 there, not 2"),
        (["--bias=False"], "bias is True there, not False"),
        (["--norm=rmsnorm"], "norm is 'layernorm' there"),
        (["--ffn_hidden=95"], "ffn_hidden is None there, not 95"),
        (["--gelu_approximation=none"], "gelu_approximation is 'tanh' there"),
        (["--vocab_size=301"], "vocab_size is 300 there, not 301"),
        (
            ["--block_size=129"],
            "block_size=129 is beyond the 128 positions that position=learned has there",
        ),
        (["--ffn=cffn_gated", "--n_embd=48"], "n_embd is 24 there, not 48"),
        (["--ffn=cffn_gatd"], "did you mean cffn_gated"),
    ],
)
def test_refuses_contradictions(folder, keys, said):
    with pytest.raises(ConfigError) as error:
        config_from(folder, *keys)
    assert said in str(error.value)


def test_what_may_be_given(folder):
    same = ["--n_layer=2", "--ffn_hidden=96", "--n_kv_head=3", "--block_size=64", "--dropout=0.1"]
    config = config_from(folder, *same)
    assert (config.n_embd, config.block_size, config.dropout) == (24, 64, 0.1)
    # what belongs to a new part is free, and what no part reads does not matter
    config = config_from(
        folder, "--ffn=cffn_gated", "--cf_ladders=5", "--position=none", "--block_size=500"
    )
    assert (config.cf_ladders, config.bias, config.block_size) == (5, True, 500)


def test_refuses_a_vocabulary_that_is_too_small(tmp_path, arguments, capsys):
    drawn(gpt2()).save_pretrained(tmp_path / "hf")
    keys = [a for a in arguments if a.startswith(("--dataset", "--device", "--dtype", "--compile"))]
    with pytest.raises(SystemExit) as stop:
        main([*keys, f"--init_from={tmp_path / 'hf'}", f"--out_dir={tmp_path / 'run'}"])
    assert "257 tokens, the model's only 101" in str(stop.value)


# --- surgery ---


@pytest.mark.parametrize(
    "keys",
    [
        ["--ffn=cffn_gated"],
        ["--ffn=cffn_product", "--attention=cattn_m"],
        ["--attention=cattn_u"],
        ["--attention=bigbird"],
        ["--ffn=swiglu", "--position=none"],
    ],
)
def test_surgery_keeps_what_both_share(run, keys, capsys):
    dense, _ = run("dense", "--bias=True")
    capsys.readouterr()
    still = ["--learning_rate=1e-12", "--min_lr=0", "--weight_decay=0"]
    folder, _ = run("new", f"--init_from={dense}", *keys, *still, "--max_iters=2", "--bias=True")
    said = capsys.readouterr().out
    source = pretrained.open_source(str(dense))
    before = checkpoint.load(source.path)["model"]
    config = pretrained.open_source(str(folder)).config
    model = GPT(config).init_weights()
    pretrained.initialise(model, source)
    shared = 0
    for key, weight in model.state_dict().items():
        part = pretrained._part(key)
        named = part and f"--{part}={getattr(config, part)}" in keys
        if not named or "bigbird" in keys[0]:
            assert torch.equal(weight, before[key]), key
            shared += 1
        elif part:
            assert f"new: {part}={getattr(config, part)}" in said
            assert f"dropped: {part}=" in said
    assert shared
    trained = checkpoint.load(checkpoint.find(folder))["model"]
    torch.testing.assert_close(trained["embedding.weight"], before["embedding.weight"], atol=1e-6, rtol=0)
    folder, log = run("trains", f"--init_from={dense}", *keys, "--max_iters=20")
    losses = [record["loss"] for record in log if "loss" in record]
    assert losses[-1] < losses[0]


def test_surgery_refuses_other_widths(run, arguments, tmp_path, capsys):
    dense, _ = run("dense", "--max_iters=2")
    with pytest.raises(SystemExit):
        main([*arguments, f"--init_from={dense}", f"--out_dir={tmp_path / 'new'}", "--n_embd=48"])
    assert "n_embd is 32 there, not 48: the weights do not fit" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_refuses_another_vocabulary(build):
    trained = BpeTokenizer.train(["abc abd " * 9], 260)
    source = pretrained.Source(Path("run"), build().config, dict, trained.to_json())
    pretrained.check_tokenizer(source, trained)
    with pytest.raises(CheckpointError, match=r"another vocabulary \(tokenizer bpe\) than the data set's"):
        pretrained.check_tokenizer(source, BytesTokenizer())
    other = json.loads(trained.text) | {"truncation": None, "version": "1.0"}
    pretrained.check_tokenizer(
        source, BpeTokenizer(json.dumps(other, indent=1))
    )  # another file, same tokens


# --- export.py, sample.py ---


@pytest.mark.parametrize("keys", [[], ["--ffn=cffn_gated", "--cf_eval_clip=True"]])
def test_export_sample_and_start_again(run, tmp_path, keys, capsys):
    folder, _ = run("run", "--max_iters=4", *keys)
    capsys.readouterr()
    export.main([str(folder), str(tmp_path / "out")])
    assert ("for transformers, train.py" in capsys.readouterr().out) == (not keys)
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"config.json", "model.safetensors", "data_tokenizer.json"}
    if not keys:
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    def text(where):
        sample.main([str(where), "--max_new_tokens=20", "--temperature=0"])
        return capsys.readouterr().out

    assert text(folder) == text(tmp_path / "out")
    run("again", f"--init_from={tmp_path / 'out'}", "--max_iters=2", *keys)
    with pytest.raises(SystemExit, match="exists already, and nothing is overwritten"):
        export.main([str(folder), str(tmp_path / "out")])


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
