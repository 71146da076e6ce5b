"""Models in and out: parity with transformers both ways, refusals. No hub."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import sample
from corpus.file_tokenizer import BpeTokenizer
from corpus.tokenizer import BytesTokenizer
from models.kinds import parameter_counts
from remote_code import packing
from tests.corpus.foreign_tokenizers import tokenizer_json
from tests.training.transformers_models import LLAMA3, drawn, gpt2, llama
from training import hugging_face, model_folder, pretrained
from training.checkpoint import CheckpointError

MODELS = {
    "gpt2": gpt2(),
    "gpt2 exact gelu": gpt2(activation_function="gelu", n_inner=40, layer_norm_epsilon=1e-3),
    "gpt2 relu": gpt2(activation_function="relu"),
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

    assert pretrained.export(source, tmp_path / "again").packages is None
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
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"bias": True},
        {"gelu_approximation": "tanh", "ffn_hidden": 7},
        {"mlp_activation": "relu"},
        {"mlp_activation": "relu2"},
    ],
)
@pytest.mark.parametrize("tie", [True, False])
def test_our_gpt2_in_transformers(build, tmp_path, keys, tie):
    check_export(build(tie_embeddings=tie, **keys), tmp_path)


@torch.no_grad()
@pytest.mark.parametrize(
    "keys", [{}, {"n_kv_head": 1, "tie_embeddings": False}, {"rope_scaling": "llama3", "rope_base": 500.0}]
)
def test_our_llama_in_transformers(build, tmp_path, keys):
    check_export(build(norm="rmsnorm", ffn="swiglu", position="rope", **keys), tmp_path)


@pytest.mark.parametrize("scaling", ["none", "llama3"])
def test_each_major_version_of_transformers_finds_the_keys_it_reads(tiny, scaling):
    """Version 4 knows no rope_parameters, version 5 writes nothing else."""
    keys = {"norm": "rmsnorm", "ffn": "swiglu", "position": "rope", "rope_base": 500.0, "vocab_size": 128}
    config = tiny(**keys, rope_scaling=scaling)
    content = hugging_face.config_json(config)
    rest = content.keys() - {"rope_parameters", "rope_scaling", "rope_theta", "dtype", "torch_dtype"}
    known = {
        4: {"rope_scaling", "rope_theta", "torch_dtype"},
        5: {"rope_parameters", "dtype"},
    }
    for names in known.values():
        alone = {key: content[key] for key in rest | names}
        assert hugging_face.model_config(alone) == hugging_face.model_config(content)
        found = transformers.LlamaConfig.from_dict(alone)
        assert found.rope_parameters == content["rope_parameters"]
        assert found.dtype == torch.float32
    assert (content["rope_scaling"] is None) == (scaling == "none")
    for other in (hugging_face.config_json(tiny()), packing.ENTRIES):
        assert other["dtype"] == other["torch_dtype"] == "float32"


def check_export(model, tmp_path):
    source = pretrained.Source(tmp_path / "model", model.config, model.state_dict)
    assert pretrained.export(source, tmp_path / "out").packages is None
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
        ({"model_type": "mistral"}, "model_type='mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"head_dim": 16}, "head_dim=16"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "lacks 'factor'"),
        ({"rope_scaling": {"type": "linear"}, "rope_parameters": None}, "rope_type='linear'"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
        ({"num_key_value_heads": 3}, "n_kv_head=3 does not divide n_head=4"),
        ({"hidden_size": None}, "config.json"),
        ({"num_hidden_layers": "2"}, "config.json"),
        ({"vocab_size": 99}, "embed_tokens.weight has 101 rows"),
        ({"num_hidden_layers": 3}, "lacks layers.2"),
        ({"num_hidden_layers": 1}, "holds weights that its config.json"),
        ({"intermediate_size": 41}, "blocks.0.ffn.up.weight is [80, 32]"),
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
        ({"activation_function": "silu"}, "activation_function='silu'"),
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
        pretrained.open_source(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        pretrained.build(pretrained.open_source(str(tmp_path)))


def test_a_config_json_without_weights(run, tmp_path):
    """Of a run and of a model folder: the missing file is named, before anything else is read."""
    folder, _ = run("whole", "--max_iters=2")
    pretrained.export(pretrained.open_source(str(folder)), tmp_path / "exported")
    config = tmp_path / "alone" / "config.json"
    config.parent.mkdir()
    missing = {folder: "ckpt with its checkpoints is missing", tmp_path / "exported": "model.safetensors"}
    for made, file in missing.items():
        config.write_bytes((made / "config.json").read_bytes())
        with pytest.raises(CheckpointError, match="but no weights: ") as error:
            pretrained.open_source(str(config.parent))
        assert str(config.parent / file) in str(error.value)


def test_without_network_the_hub_is_named(monkeypatch):
    """Asked once, then the cache: the library's own way is half a minute of warnings."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = []

    def fails(*_, **keys):
        asked.append(keys)
        raise ConnectionError("no route") if "timeout" in keys else LocalEntryNotFoundError("not there")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fails)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(CheckpointError) as error:
        pretrained.open_source("gpt2-medium")
    assert "gpt2-medium: config.json could not be had" in str(error.value)
    assert "(no route)" in str(error.value)
    assert "hf download openai-community/gpt2-medium" in str(error.value)
    assert asked == [{"timeout": pretrained.HUB_SECONDS}, {"local_files_only": True}]


def test_what_the_hub_lacks_is_not_read_from_the_working_directory(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    def lacks(*_, **__):
        raise EntryNotFoundError("404")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lacks)
    monkeypatch.chdir(tmp_path)
    drawn(gpt2()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json of openai-community/gpt2"):
        pretrained.open_source("gpt2")


@pytest.mark.parametrize(
    ("name", "published"),
    zip(pretrained.HUB, (124_439_808, 354_823_168, 774_030_080, 1_557_611_200), strict=True),
)
def test_a_plan_knows_the_sizes_of_the_hubs_models(name, published):
    config = pretrained.open_source(name, planned=True).config
    padding = (config.padded_vocab_size - config.vocab_size) * config.n_embd
    assert sum(parameter_counts(config).values()) - padding == published


@torch.no_grad()
def test_the_cache_of_the_hub_and_a_folder_of_its_name(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise ConnectionError("no route")

    def cached(repository, file, local_files_only):
        assert (repository, local_files_only) == ("openai-community/gpt2", True)
        return str(tmp_path / "cache" / file)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", offline)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", cached)
    theirs = drawn(gpt2())
    theirs.save_pretrained(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    # files of the working directory are none of the hub's
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  model.safetensors\n")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    source = pretrained.open_source("gpt2")
    torch.testing.assert_close(pretrained.build(source).eval()(tokens()), theirs(tokens()).logits)
    assert source.tokenizer["kind"] == "gpt2"
    drawn(gpt2(), seed=1).save_pretrained(tmp_path / "gpt2")
    mine = pretrained.open_source("gpt2")
    assert mine.tokenizer is None
    assert not torch.equal(mine.read()["norm.weight"], source.read()["norm.weight"])


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "name"), [(gpt2, "transformer.wte.weight"), (llama, "model.embed_tokens.weight")]
)
def test_a_tied_head_may_have_its_own_name_alone(kind, name, tmp_path):
    """safetensors keeps one name of a tensor that two have."""
    theirs = drawn(kind(tie_word_embeddings=True))
    theirs.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights.pop(name)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    ours, text = pretrained.build(pretrained.open_source(str(tmp_path))), tokens(length=9)
    torch.testing.assert_close(ours(text), theirs(text).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [gpt2, llama])
def test_a_head_that_should_be_the_embedding_and_is_not(kind, tmp_path):
    drawn(kind(tie_word_embeddings=False)).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight .*tie_word_embeddings"):
        pretrained.build(pretrained.open_source(str(tmp_path)))


def test_files_of_two_models_in_one_folder(tmp_path):
    drawn(llama()).save_pretrained(tmp_path, max_shard_size="5KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]
    source = pretrained.open_source(str(tmp_path))
    whole = (tmp_path / second).read_bytes()
    (tmp_path / second).write_bytes((tmp_path / first).read_bytes())
    with pytest.raises(CheckpointError, match="and so does another file that"):
        source.read()
    (tmp_path / second).write_bytes(whole)
    source.read()
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(CheckpointError, match="may be of two models"):
        source.read()


def test_refuses_another_vocabulary(build):
    trained = BpeTokenizer.train(["abc abd " * 9], 260)
    source = pretrained.Source(Path("run"), build().config, dict, trained.to_json())
    pretrained.check_tokenizer(source, trained)
    larger, same = (BpeTokenizer.train(["xyz xyw " * 9], size) for size in (261, 260))
    both = f"bpe:260 {trained.hash[:8]}", f"bpe:260 {same.hash[:8]}"  # of one size: the hashes tell
    cases = (BytesTokenizer(), "bpe:260", "bytes"), (larger, "bpe:260", "bpe:261"), (same, *both)
    for other, own, of_data in cases:
        with pytest.raises(CheckpointError) as caught:
            pretrained.check_tokenizer(source, other)
        told = f"another vocabulary (tokenizer {own}) than the data set's ({of_data})"
        assert told in str(caught.value)
    other = json.loads(trained.text) | {"truncation": None, "version": "1.0"}
    pretrained.check_tokenizer(
        source, BpeTokenizer(json.dumps(other, indent=1))
    )  # another file, same tokens


def test_the_vocabulary_of_a_folder(tmp_path):
    """What tokenizer.json tells of a folder from elsewhere counts, where it can be read."""
    trained, other = BpeTokenizer.train(["abc abd " * 9], 260), BpeTokenizer.train(["xyz xyw " * 9], 260)
    drawn(gpt2(vocab_size=300)).save_pretrained(tmp_path)
    source = pretrained.open_source(str(tmp_path))
    pretrained.check_tokenizer(source, trained)  # nothing is known
    (tmp_path / "tokenizer.json").write_text(trained.text)
    pretrained.check_tokenizer(source, trained)
    with pytest.raises(CheckpointError, match="another vocabulary"):
        pretrained.check_tokenizer(source, other)
    ends = {"bos_token_id": 256, "eos_token_id": [256, 5], "pad_token_id": 7}
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / name).read_text()) | ends
        (tmp_path / name).write_text(json.dumps(content))
    pretrained.export(source, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == trained.text
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for found in (theirs.config, theirs.generation_config):
        assert {key: getattr(found, key) for key in ends} == ends
    (tmp_path / "tokenizer.json").write_text("{}")
    pretrained.check_tokenizer(source, other)


@pytest.mark.parametrize(("kind", "first"), [("llama", "<s>"), ("unigram", None)])
def test_texts_begin_as_the_folder_says(build, tmp_path, kind, first):
    """Llama's with <s>, others after an end."""
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(kind))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    tokenizer = pretrained.tokenizer_of(pretrained.Source(tmp_path, build().config, dict))
    expected = tokenizer.end_of_text if first is None else tokenizer.library.token_to_id(first)
    assert sample.encode(tokenizer, "ab") == [expected, *tokenizer.encode("ab")]


def test_refuses_other_versions_of_our_format(build, tmp_path):
    model = build(ffn="cffn_gated")
    source = pretrained.Source(tmp_path / "model", model.config, model.state_dict)
    pretrained.export(source, tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    content = json.loads(path.read_text())
    keys = content["model"]
    less = {key: value for key, value in keys.items() if key != "n_embd"}
    for change, said in (
        ({"model": {**keys, "cf_new": 1}}, "key was added .*with cf_new=1"),
        ({"model": less}, "key was added .*with no n_embd"),
        ({"model": {**keys, "norm": "rms"}}, "norm must be one of"),
        ({"model": {**keys, "n_head": "3"}}, "config.json"),
        ({"format": "cofrgenet model 2"}, "its format is"),
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(CheckpointError, match=said):
            pretrained.open_source(str(tmp_path / "out"))


@pytest.mark.parametrize("keys", [{"ffn": "cffn_gated"}, {"ffn": "mlp"}])
def test_a_damaged_number_of_layers(build, tmp_path, keys):
    """Nothing of that size is built."""
    model = build(**keys)
    source = pretrained.Source(tmp_path / "model", model.config, model.state_dict)
    pretrained.export(source, tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    text = path.read_text().replace(f'"n_layer": {model.config.n_layer}', '"n_layer": 1000000000')
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r" tensors.* 1,000,000,000 layers"):
        pretrained.open_source(str(tmp_path / "out"))


@pytest.mark.parametrize("key", ["kind", "hash"])
def test_a_file_that_is_no_tokenizer(tmp_path, key):
    content = {"kind": "gpt2", "hash": "0"}
    (tmp_path / "data_tokenizer.json").write_text(json.dumps({key: content[key]}))
    with pytest.raises(
        CheckpointError, match=rf"data_tokenizer\.json .*no {'hash' if key == 'kind' else 'kind'}\b"
    ):
        model_folder.read_tokenizer(tmp_path)


def test_samples_from_a_folder_whose_tokenizer_lacks_bytes(tmp_path, capsys):
    drawn(gpt2(vocab_size=300)).save_pretrained(tmp_path)
    content = json.loads(BpeTokenizer.train(["abc abd " * 9], 260).text)
    kept = [token for token in content["model"]["vocab"] if token != chr(256 + 6)]  # the letter of byte 6
    content["model"]["vocab"] = {token: i for i, token in enumerate(kept)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    capsys.readouterr()
    sample.main([str(tmp_path), "--start=abc", "--max_new_tokens=5"])
    assert capsys.readouterr().out.startswith("--- sample 1 of 1 ---\nabc")
    with pytest.raises(SystemExit, match=r"sample\.py: .*0x06"):
        sample.main([str(tmp_path), "--start=abc\x06"])
