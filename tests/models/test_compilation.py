"""Compiled by part: few graphs whatever the depth, the values of the plain model, captured steps."""

import dataclasses

import pytest
import torch

from decoding import decoder
from decoding.decoder import Decoder
from decoding.prepared import prepared
from layers import FFN
from layers.feedforward import MLP
from model import GPT
from models.architecture import ModelConfig
from models.compilation import compile_parts, eager, missing_for_compile
from tests.counting_compiler import Counter


def built(n_layer, **keys):
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=60, n_layer=n_layer, n_head=2, n_embd=32, block_size=12, **keys)
    return GPT(config).init_weights()


@pytest.mark.parametrize(
    "keys",
    [
        {"dropout": 0.1},
        {"position": "rope", "norm": "rmsnorm", "ffn": "swiglu", "n_kv_head": 1, "tie_embeddings": False},
        {"position": "expe", "expe_once": True},
        {"position": "exqpe", "expe_learned": "standard", "token_shift": True},
        {"attention": "cattn_m", "ffn": "cffn_gated", "cf_eval_clip": True},
        {"attention": "cattn_u", "ffn": "cffn_product"},
        {"attention": "cattn_relative", "cattn_content": True, "position": "none", "ffn": "cffn_added"},
        {"attention": "synthesizer", "position": "sinusoidal"},
        {"attention": "bigbird"},
    ],
    ids=lambda keys: " ".join(map(str, keys.values())),
)
def test_one_graph_for_all_48_blocks(keys):
    """In training, and in decoding of a prompt and of single tokens."""
    model, tokens = built(48, **keys), torch.randint(0, 60, (2, 12))
    counter = Counter()
    compile_parts(model, counter)
    model(tokens, tokens).backward()
    model(tokens, tokens)
    assert counter.graphs == 3  # embedding, block, loss
    model.eval()
    with torch.no_grad(), eager():
        model(tokens[:, :7], tokens[:, :7])
    assert counter.graphs == 3
    counter = Counter()
    decode, cache = Decoder(model, counter), model.new_cache(2)
    with eager():
        decode(tokens[:, :9], cache)
    for t in range(9, 12):
        logits = decode(tokens[:, t : t + 1], cache)
    assert counter.graphs == 2  # embedding, block
    with torch.no_grad(), eager():
        torch.testing.assert_close(logits, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)


def test_blocks_that_differ_compile_one_by_one(monkeypatch):
    """A user's module may read its block's number: that is slow, but no mistake."""

    class Numbered(MLP):
        def forward(self, x):
            return super().forward(x) * self.number

    monkeypatch.setitem(FFN, "numbered", Numbered)
    model, tokens, counter = built(12, ffn="numbered"), torch.randint(0, 60, (2, 12)), Counter()
    for number, block in enumerate(model.blocks):
        block.ffn.number = number
    expected = model(tokens, tokens)
    with torch._dynamo.config.patch(recompile_limit=8):
        compile_parts(model, counter)
        loss = model(tokens, tokens)
    assert counter.graphs == 12 + 2
    torch.testing.assert_close(loss, expected)


def test_the_given_model_stays_uncompiled_in_decoding():
    model, tokens, counter = built(2).eval(), torch.randint(0, 60, (2, 12)), Counter()
    cache = model.new_cache(2)
    Decoder(model, counter)(tokens[:, :1], cache)
    assert counter.graphs == 2  # embedding, block
    model.decode(tokens[:, 1:], cache)
    model.decode(tokens[:, :1], model.new_cache(2))
    assert counter.graphs == 2


def test_a_sequence_that_is_too_long_is_refused():
    model, tokens = built(1), torch.zeros(1, 13, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"13 tokens .*block_size=12"):
        Decoder(model, "eager")(tokens, model.new_cache(1))
    compile_parts(model, "eager")
    with pytest.raises(ValueError, match=r"13 tokens .*block_size=12"):
        model(tokens, tokens)


@pytest.mark.parametrize("keys", [{}, {"attention": "cattn_u", "position": "none"}, {"token_shift": True}])
def test_a_captured_step_reads_and_writes_its_cache_only(keys, monkeypatch):
    """With a stand-in for CUDA graphs: as there, `function` is recorded, and runs at each replay alone."""
    recorded = []

    def captured(warm_up, function):
        warm_up()
        recorded.append(function)
        logits = torch.full((2, 60), float("nan"))
        return lambda: logits.copy_(function()), logits

    monkeypatch.setattr(decoder, "captured", captured)
    model, tokens = built(2, **keys).eval(), torch.randint(0, 60, (2, 12))
    copy = prepared(model, 2)
    compile_parts(copy, "eager")
    with torch.no_grad():
        whole = model(tokens)
        for _ in range(2):
            cache = dataclasses.replace(model.new_cache(2), whole=True)
            model.decode(tokens[:, :3], cache)
            step = decoder.CapturedStep(copy.decode, tokens[:, 3:4], cache)
            assert cache.filled == 3  # warming up has not moved it
            for t in range(3, 12):
                torch.testing.assert_close(step(tokens[:, t : t + 1]), whole[:, t], rtol=1e-4, atol=1e-4)
    assert len(recorded) == 2


def compiler_that(folder, does, monkeypatch):
    """The compiler of PyTorch's choice is a script."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo \"c++: cannot execute 'as'\" >&2; exit 1", "says \"c++: cannot execute 'as'\""),
        ("exit 3", "says 'status 3'"),
    ],
)
def test_a_compiler_that_lacks_a_program_is_missing(tmp_path, monkeypatch, does, said):
    compiler_that(tmp_path, does, monkeypatch)
    assert f"a C++ compiler that works: {tmp_path}/c++ {said}" in missing_for_compile()


def test_a_compiler_that_works_and_one_that_is_not_there(tmp_path, monkeypatch):
    compiler_that(tmp_path, "exit 0", monkeypatch)
    assert not any("C++" in what for what in missing_for_compile())
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    assert any(f"a C++ compiler: there is no {tmp_path}/gone" in w for w in missing_for_compile())
