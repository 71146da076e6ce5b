"""Attention and feed-forward by layer, in everything that asks what a model is made of."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import export
from configurator import ROOT
from models.architecture import ModelConfig
from models.compilation import compile_parts
from models.kinds import cache_bytes_per_token, flops_per_token, parameter_counts
from scaling import sizing
from tests.counting_compiler import Counter
from training import checkpoint, pretrained

KEYS = {"attention": "cattn_relative, cattn_relative, softmax", "ffn": "cffn_gated,mlp", "position": "rope"}
OPTIONS = tuple(f"--{key}={value.replace(' ', '')}" for key, value in KEYS.items())


def test_layers_have_what_the_pattern_says(build):
    model = build(n_layer=7, **KEYS)
    names = [type(block.attention).__name__ for block in model.blocks]
    assert names == [*2 * ("CAttnRelative", "CAttnRelative", "SoftmaxAttention"), "CAttnRelative"]
    assert [type(block.ffn).__name__ for block in model.blocks][:3] == ["CffnGated", "MLP", "CffnGated"]
    assert model.config.period == 6


def test_counts_are_sums_over_layers(build, tiny):
    model = build(n_layer=7, **KEYS)
    counts = parameter_counts(model.config)
    for part in ("attention", "ffn"):
        held = sum(p.numel() for block in model.blocks for p in getattr(block, part).parameters())
        assert counts[part] == held
    assert sum(counts.values()) == model.parameter_count()
    alone = [
        tiny(n_layer=1, attention=a, ffn="mlp", position="none") for a in ("cattn_relative", "softmax")
    ]
    both = dataclasses.replace(alone[0], n_layer=2, attention="cattn_relative,softmax")
    head = flops_per_token(dataclasses.replace(alone[0], n_layer=0))
    assert flops_per_token(both) - head == sum(flops_per_token(one) - head for one in alone)
    assert cache_bytes_per_token(both) == sum(map(cache_bytes_per_token, alone))
    assert set(both.unused_keys()) == set.intersection(*(set(one.unused_keys()) for one in alone))


def test_decoding_gives_what_the_whole_gives(build):
    model = build(n_layer=6, **KEYS).eval()
    tokens = torch.randint(100, (2, 17))
    with torch.no_grad():
        whole, cache = model.logits(model.hidden(tokens)), model.new_cache(2)
        for place in range(17):
            found = model.decode(tokens[:, place : place + 1], cache)
            torch.testing.assert_close(found, whole[:, place], rtol=1e-4, atol=1e-5)


def test_a_graph_for_each_kind_of_block(build):
    counter = Counter()
    model = build(n_layer=6, attention="cattn_relative,cattn_relative,softmax", position="none")
    tokens = torch.randint(100, (2, 17))
    expected = model(tokens, tokens)
    compile_parts(model, counter)
    for _ in range(2):
        torch.testing.assert_close(model(tokens, tokens), expected)
    assert counter.graphs == 2 + 2  # embedding, loss, two kinds of blocks


def test_killed_and_resumed_to_the_bit(run):
    keys = (*OPTIONS, "--n_layer=3", "--max_iters=8", "--checkpoint_interval=4")
    whole, records = run("whole", *keys)
    folder, _ = run("part", *keys, "--keep_checkpoints=9")
    for path in (folder / "ckpt").glob("*.pt"):
        if path.name != "step_00000004.pt":
            path.unlink()
    _, again = run("part", *keys, "--resume=True", "--keep_checkpoints=9")
    losses = [{r["step"]: r["loss"] for r in some if "loss" in r} for some in (records, again)]
    assert losses[0] == losses[1]
    weights = [checkpoint.load(checkpoint.find(one))["model"] for one in (whole, folder)]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


def test_an_export_has_equal_logits(run, tmp_path, modules_cache):
    folder, _ = run("a", *OPTIONS, "--n_layer=3", "--max_iters=2")
    export.main([str(folder), str(tmp_path / "out")])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    ours, _ = pretrained.load(str(folder))
    tokens = torch.randint(256, (2, 16))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours.logits(ours.hidden(tokens)))


def test_layers_keep_what_their_counterparts_have(run, capsys):
    before, _ = run("dense", "--n_layer=3", "--attention=softmax", "--ffn=mlp", "--position=rope")
    source = checkpoint.load(checkpoint.find(before, "best"))["model"]
    capsys.readouterr()
    still = ("--learning_rate=1e-12", "--min_lr=0", "--weight_decay=0", "--max_iters=2", "--n_layer=3")
    folder, _ = run(
        "new", f"--init_from={before}", "--attention=cattn_relative,cattn_relative,softmax", *still
    )
    assert "new: attention=cattn_relative,cattn_relative,softmax" in capsys.readouterr().out
    weights = checkpoint.load(checkpoint.find(folder))["model"]
    kept = {
        name for name, weight in weights.items() if name in source and weight.shape == source[name].shape
    }
    assert {name for name in kept if "blocks.2.attention" in name}
    assert not {name for name in kept if "blocks.1.attention" in name}
    for name in kept:
        torch.testing.assert_close(weights[name], source[name], atol=1e-6, rtol=0)


def test_sizes_have_whole_patterns():
    base = ModelConfig(n_layer=6, n_embd=96, n_head=3, attention="cattn_relative,cattn_relative,softmax")
    for target in (60_000, 250_000, 1_000_000):
        assert sizing.shape(base, target).n_layer % 3 == 0


def test_count_shows_the_pattern():
    command = [sys.executable, "count.py", "config/gpt2.py", "--attention=cattn_m,softmax"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "config/gpt2.py: cattn_m, softmax" in said


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention": "softmax,foo"}, "attention must be one of softmax"),
        ({"ffn": "mlp,"}, "ffn must be one of mlp"),
        ({"position": "rope,none"}, "position must be one of"),
        ({"attention": "softmax,cattn_m,cattn_u"}, "names 3 layers, and n_layer=2: take --n_layer=3"),
        ({"attention": "cattn_m,cattn_u", "position": "rope"}, "does not have"),
        ({"attention": "softmax,bigbird", "position": "t5"}, "attention=softmax, not in bigbird"),
        ({"attention": "softmax,cattn_m", "encoder_layers": 2}, "encoder_layers=2 needs an attention"),
    ],
)
def test_what_is_refused(tiny, keys, message):
    assert message in " ".join(tiny(**keys).check())


def test_a_position_acts_where_it_can(tiny):
    assert tiny(attention="cattn_m,softmax", position="t5").check() == []
    assert json.loads(json.dumps(dataclasses.asdict(tiny(**KEYS))))["attention"] == KEYS["attention"]
