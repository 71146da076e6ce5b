"""Starting from another model: what is kept, what is new, what is refused."""

import dataclasses

import pytest
import torch

from configurator import ConfigError, resolve
from layers import ATTENTION
from layers.sliding_window import window_of
from model import GPT
from tests.training.transformers_models import drawn, gpt2
from train import main
from training import checkpoint, pretrained, surgery
from training.config import TrainConfig
from training.inputs import saved_config

# --- crop_block_size ---


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTION)
def test_crop_block_size(build, attention):
    position = "expe" if ATTENTION[attention].queries_and_keys else "learned"
    for place in {position, "learned"}:
        model = build(attention=attention, position=place, bias=True).eval()
        weights = surgery.crop_block_size(model.state_dict(), model.config, 9)
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
    assert "vocabulary 257, of the model's 300: 43 rows" in said
    assert "block_size 128 -> 32" in said
    content = checkpoint.load(checkpoint.find(tmp_path / "run"))
    assert content["config"]["bias"]
    assert content["config"]["gelu_approximation"] == "tanh"
    source = pretrained.open_source(str(folder))
    weights = surgery.crop_block_size(source.read(), source.config, 32)
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
            "block_size=129 is beyond the 128 positions",
        ),
        (["--ffn=cffn_gated", "--n_embd=48"], "n_embd is 24 there, not 48"),
        (["--ffn=cffn_gatd"], "did you mean cffn_gated"),
        (["--attention=softmx"], "did you mean softmax"),
    ],
)
def test_refuses_contradictions(folder, keys, said):
    with pytest.raises(ConfigError) as error:
        config_from(folder, *keys)
    assert said in str(error.value)


def test_no_other_mistake_is_made_up(folder):
    with pytest.raises(ConfigError) as error:
        config_from(folder, "--n_embd=100", "--learning_rate=-1", "--min_lr=-2")
    assert [mistake.split(": ")[-2:] for mistake in error.value.mistakes] == [
        ["n_embd is 24 there, not 100", "its weights were trained with that"],
        ["learning_rate must be above 0, not -1.0"],
        ["min_lr must be at least 0, not -2.0"],
    ]
    with pytest.raises(ConfigError) as error:
        config_from(folder.parent / "typo", "--n_head=7")
    (mistake,) = error.value.mistakes
    assert "typo does not exist" in mistake


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
    surgery.initialise(model, source)
    shared = 0
    for key, weight in model.state_dict().items():
        part = (surgery._place(key) or [None])[0]
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


def test_a_value_embedding_goes_with_its_attention(run, capsys):
    """And makes way for one without values, unless another layer keeps its own."""
    values, _ = run("values", "--value_embeddings=True", "--n_layer=4", "--max_iters=2")
    capsys.readouterr()
    mixed = "--attention=softmax,gated_deltanet,softmax,softmax"
    folder, _ = run("mixed", f"--init_from={values}", "--n_layer=4", mixed, "--max_iters=2")
    said = capsys.readouterr().out
    weights = checkpoint.load(checkpoint.find(values))["model"]
    part = ("blocks.1.attention.", "blocks.1.values.")
    dropped = sum(w.numel() for key, w in weights.items() if key.startswith(part))
    assert f"dropped: attention=softmax, {dropped:,} weights" in said
    weights = checkpoint.load(checkpoint.find(folder))["model"]
    assert any(key.startswith("blocks.3.values.") for key in weights)
    folder, _ = run("none", f"--init_from={values}", "--n_layer=4", "--attention=cattn_u", "--max_iters=2")
    assert not checkpoint.load(checkpoint.find(folder))["config"]["value_embeddings"]


def test_what_follows_block_size_stays_when_that_is_cut(run):
    """Of the parts that are kept: ExPE's theta and the window of attention."""
    keys = ("--attention=sliding_window", "--position=expe", "--max_iters=2")
    long, _ = run("long", *keys, "--block_size=32")
    folder, _ = run("short", *keys, "--block_size=16", f"--init_from={long}")
    config = checkpoint.load(checkpoint.find(folder))["config"]
    model = pretrained.open_source(str(long)).config
    assert config["expe_theta"] == 1 / (4 * 32)
    shorter = dataclasses.replace(model, block_size=16)
    assert config["attention_window"] == window_of(model) != window_of(shorter)


def test_another_attention_may_see_more_than_its_predecessor(run):
    dense, _ = run("dense", "--position=rope", "--block_size=16", "--max_iters=2")
    run("wider", "--position=rope", "--attention=bigbird", "--block_size=32", f"--init_from={dense}")


def test_surgery_refuses_other_widths(run, arguments, tmp_path, capsys):
    dense, _ = run("dense", "--max_iters=2")
    with pytest.raises(SystemExit):
        main([*arguments, f"--init_from={dense}", f"--out_dir={tmp_path / 'new'}", "--n_embd=48"])
    assert "n_embd is 32 there, not 48" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
