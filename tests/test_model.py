"""The whole model: causality, loss, generation; every attention with every ffn."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from torch.nn.functional import cross_entropy

from layers import ATTENTION, FFN, POSITION
from layers.ladder import Fraction
from model import GPT
from models.architecture import ModelConfig, model_config
from models.compilation import compile_parts, eager
from models.language_model import sample_token
from tests.model_variants import VARIANTS, every_option

ROOT = Path(__file__).resolve().parents[1]


# the ways to compute a ladder
LADDERS = [
    {"cf_pole": "clamp", "cf_eps": 0.3},
    {"cf_pole": "clamp", "cf_eps": 0.3, "cf_impl": "ladder"},
    {"cf_impl": "ladder", "cf_init": "nanogpt", "cf_intercept": "zero"},
]


def test_a_saved_choice_of_code_binds_no_other_machine():
    """Nor need a run have one that was saved before there was the key."""
    saved = dataclasses.asdict(ModelConfig(vocab_size=100)) | {"cf_backend": "triton"}
    assert model_config(saved) == ModelConfig(vocab_size=100)
    del saved["cf_backend"]
    assert model_config(saved) == ModelConfig(vocab_size=100)
    assert model_config(ModelConfig(cf_backend="torch")).cf_backend == "torch"


@every_option
def test_the_future_has_no_influence(build, attention, ffn, options):
    model = build(attention=attention, ffn=ffn, **options).eval()
    tokens = torch.randint(0, 100, (2, 17))
    with torch.no_grad():
        logits = model(tokens)
        for s in (1, 8, 16):
            changed = tokens.clone()
            changed[:, s:] = (changed[:, s:] + 1) % 100
            after = model(changed)
            assert torch.equal(logits[:, :s], after[:, :s])
            assert not torch.equal(logits[:, s:], after[:, s:])


@every_option
def test_a_prefix_gives_the_same_outputs(build, attention, ffn, options):
    model = build(attention=attention, ffn=ffn, **options).double().eval()
    tokens = torch.randint(0, 100, (2, 17))
    with torch.no_grad():
        whole = model(tokens)
        for length in (1, 2, 11):
            part = model(tokens[:, :length])
            torch.testing.assert_close(part, whole[:, :length], rtol=0, atol=1e-12)


@every_option
def test_every_parameter_gets_a_gradient(build, attention, ffn, options):
    model = build(attention=attention, ffn=ffn, **{"bias": True, "cattn_proj": True, **options})
    tokens = torch.randint(0, 100, (2, 17))
    model(tokens, tokens.roll(-1, 1)).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert idle == []


NORMS = get_args(get_type_hints(ModelConfig)["norm"])


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("position", POSITION)
def test_everything_composes(tiny, attention, position):
    """Any attention, ffn, position and norm: trains a step, is causal and samples, or says why not."""
    for ffn, norm in itertools.product(FFN, NORMS):
        config = tiny(attention=attention, ffn=ffn, position=position, norm=norm)
        if not ATTENTION[attention].queries_and_keys and position in ("rope", "expe", "exqpe"):
            reason = f"position={position} .*queries.* attention={attention} "
            with pytest.raises(ValueError, match=reason):
                GPT(config)
            continue
        if attention != "softmax" and position == "t5":
            with pytest.raises(ValueError, match=f"attention=softmax, not in {attention}\\b"):
                GPT(config)
            continue
        torch.manual_seed(0)
        model = GPT(config).init_weights()
        tokens = torch.randint(0, 100, (4, 17))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        before = model(tokens, tokens)
        before.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        with torch.no_grad():
            assert model(tokens, tokens) < before
            changed = tokens.clone()
            changed[:, 9:] = (changed[:, 9:] + 1) % 100
            logits, after = model(tokens), model(changed)
        assert torch.equal(logits[:, :9], after[:, :9])
        assert not torch.equal(logits[:, 9:], after[:, 9:])
        assert len(list(model.eval().generate([1, 2], 20))) == 20


def test_initial_loss_is_that_of_a_uniform_guess(tiny):
    torch.manual_seed(0)
    for attention, ffn in VARIANTS:
        model = GPT(tiny(attention=attention, ffn=ffn, n_embd=48)).init_weights()
        tokens = torch.randint(0, 100, (8, 17))
        assert model(tokens, torch.randint(0, 100, (8, 17))).item() == pytest.approx(math.log(100), abs=0.1)


def test_residual_outputs_start_smaller(tiny):
    torch.manual_seed(0)
    model = GPT(tiny(n_layer=8, n_embd=96, attention="cattn_m", ffn="cffn_added")).init_weights()
    block = model.blocks[0]
    for module, scaled in [
        (block.attention.value, True),
        (block.ffn.U1, True),
        (block.ffn.ladders.V, True),
        (block.ffn.U2, False),
        (block.attention.ladders.U, False),
    ]:
        expected = 0.02 / 4 if scaled else 0.02
        assert module.weight.std().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("ffn", ["mlp", "swiglu"])
def test_residual_outputs_of_the_transformer_start_smaller(tiny, ffn):
    block = GPT(tiny(n_layer=8, n_embd=96, ffn=ffn)).init_weights().blocks[0]
    attention, feedforward = block.attention, block.ffn
    for module, std in [
        (attention.qkv, 0.02),
        (attention.proj, 0.005),
        (feedforward.up, 0.02),
        (feedforward.down, 0.005),
    ]:
        assert module.weight.std().item() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("keys", LADDERS)
@pytest.mark.parametrize("attention", ["cattn_m", "cattn_relative", "cattn_u"])
def test_ways_to_compute_a_ladder(build, attention, keys):
    """The keys reach every ladder of the model; it stays causal and differentiable."""
    model = build(attention=attention, ffn="cffn_product", **keys)
    fractions = [module for module in model.modules() if isinstance(module, Fraction)]
    assert len(fractions) == 2 * 3
    for fraction in fractions:
        assert fraction.impl == keys.get("cf_impl", "continuant")
    tokens = torch.randint(0, 100, (2, 17))
    logits = model(tokens)
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 100
    assert torch.equal(logits[:, :8], model(changed)[:, :8])
    model(tokens, tokens.roll(-1, 1)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_ladders_answer_by_depth(build):
    """Every parameter of a ladder is named by depth_parameters, and nothing else is."""
    for attention, ffn in VARIANTS:
        model = build(attention=attention, ffn=ffn)
        found = {
            id(parameter)
            for module in model.modules()
            if hasattr(module, "depth_parameters")
            for depth in module.depth_parameters()
            for parameter in depth
        }
        named = {id(p) for name, p in model.named_parameters() if ".W." in name or ".b." in name}
        assert found == named
        assert bool(found) == (attention.startswith("cattn") or ffn.startswith("cffn"))


def test_padding_rows_of_the_vocabulary_play_no_part(build):
    """100 tokens are stored as 128 rows: no score, no share of the loss, never sampled."""
    model = build()
    assert model.embedding.weight.shape[0] == 128
    with torch.no_grad():
        model.embedding.weight[100:] = 50 * torch.randn(28, 24)
    tokens = torch.randint(0, 100, (2, 17))
    logits = model(tokens)
    assert logits.shape == (2, 17, 100)
    loss = model(tokens, tokens)
    torch.testing.assert_close(loss, cross_entropy(logits.flatten(0, 1), tokens.flatten()))
    loss.backward()
    assert (model.embedding.weight.grad[100:] == 0).all()
    assert max(model.generate([1], 200, temperature=5.0)) < 100


@pytest.mark.parametrize(
    ("attention", "position", "limits"),
    [
        ("softmax", "learned", "position=learned"),
        ("cattn_m", "none", "attention=cattn_m"),
        ("cattn_u", "sinusoidal", "attention=cattn_u"),
        ("cattn_relative", "none", "attention=cattn_relative"),
        ("cattn_u", "learned", "attention=cattn_u and position=learned"),
        ("synthesizer", "none", "attention=synthesizer"),
        ("bigbird", "rope", "attention=bigbird"),
    ],
)
def test_too_many_tokens_are_refused(build, attention, position, limits):
    model = build(attention=attention, position=position)
    message = f"18 tokens .*block_size=17.* for {limits}$"
    with pytest.raises(ValueError, match=message):
        model(torch.zeros(1, 18, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        next(model.generate([1], 2, window=18))


@pytest.mark.parametrize("position", [name for name in POSITION if name != "learned"])
def test_longer_than_the_block_where_nothing_is_absolute(build, position):
    model = build(position=position).eval()
    tokens = torch.randint(0, 100, (2, 50))
    with torch.no_grad():
        whole = model(tokens)
        torch.testing.assert_close(whole[:, :17], model(tokens[:, :17]), rtol=0, atol=1e-5)
        context = [3, 1, 4]
        for token in model.generate([3, 1, 4], 40, temperature=0, window=30):
            assert token == model(torch.tensor([context[-30:]]))[0, -1].argmax().item()
            context.append(token)


def test_dropout_acts_in_training_only(build):
    for attention, ffn in VARIANTS:
        model = build(attention=attention, ffn=ffn, dropout=0.3)
        tokens = torch.randint(0, 100, (2, 17))
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        assert torch.equal(model(tokens), model(tokens))


def test_labels_are_smoothed_in_training_only(build):
    model, tokens = build(scale=1.0), torch.randint(0, 100, (2, 17))
    plain, logits = model(tokens, tokens), model(tokens).flatten(0, 1)
    model.label_smoothing = 0.2
    expected = cross_entropy(logits, tokens.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(model.train()(tokens, tokens), expected)
    assert abs(expected - plain) > 1e-3
    assert torch.equal(model.eval()(tokens, tokens), plain)


@pytest.mark.parametrize("attention", ATTENTION)
def test_greedy_generation_follows_the_model_past_the_block(build, attention):
    """Each token is the likeliest after the last block_size tokens."""
    model = build(attention=attention).eval()
    context = [3, 1, 4]
    for token in model.generate([3, 1, 4], 40, temperature=0):
        with torch.no_grad():
            logits = model(torch.tensor([context[-17:]]))
        assert token == logits[0, -1].argmax().item()
        context.append(token)
    assert len(context) == 43


def test_generation_repeats_with_the_same_seed(build):
    model = build().eval()
    runs = [
        list(model.generate([5], 20, generator=torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_sampling_filters():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    draws = {
        (k, p): {int(sample_token(logits, 1.0, k, p)) for _ in range(300)}
        for k, p in [(None, None), (2, None), (None, 0.5), (None, 0.51), (None, 1e-9), (3, 0.99), (9, 1.0)]
    }
    assert draws[None, None] == draws[9, 1.0] == {0, 1, 2, 3}
    assert draws[2, None] == {1, 3}
    assert draws[None, 0.5] == draws[None, 1e-9] == {1}
    assert draws[None, 0.51] == {1, 3}
    assert draws[3, 0.99] == {1, 2, 3}
    assert int(sample_token(logits, 0)) == 1
    frequent = sum(int(sample_token(logits, 0.05)) == 1 for _ in range(100))
    assert frequent > 95


@pytest.mark.parametrize(
    ("attention", "ffn", "keys"),
    [
        *((attention, ffn, {}) for attention, ffn in zip(itertools.cycle(["softmax", "cattn_m"]), FFN)),
        ("cattn_u", "mlp", {}),
        ("cattn_relative", "mlp", {"cattn_content": True}),
        ("synthesizer", "mlp", {}),
        ("bigbird", "mlp", {}),
        ("cattn_u", "mlp", {"cf_pole": "clamp", "cf_impl": "ladder", "cf_init": "nanogpt"}),
        ("softmax", "cffn_added", {"cf_pole": "clamp"}),
        ("softmax", "swiglu", {"position": "rope", "norm": "rmsnorm", "n_kv_head": 1}),
        ("softmax", "swiglu", {"position": "rope", "rope_scaling": "llama3", "checkpointing": True}),
        ("softmax", "mlp", {"position": "expe", "bias": True, "tie_embeddings": False}),
        ("softmax", "mlp", {"position": "expe", "expe_learned": "standard", "checkpointing": True}),
        ("softmax", "mlp", {"position": "exqpe", "expe_on_v": True, "checkpointing": True}),
        ("softmax", "mlp", {"position": "exqpe", "expe_once": True}),
        ("cattn_m", "mlp", {"position": "sinusoidal", "cattn_heads": None, "cattn_value_heads": 1}),
        ("cattn_m", "cffn_gated", {"cattn_scores": "collapsed", "cf_linear_intercept": True}),
        ("cattn_m", "mlp", {"position": "none", "cattn_value_heads": 1, "checkpointing": True}),
    ],
)
def test_compiles_into_one_graph(build, attention, ffn, keys):
    """fullgraph raises at any graph break; aot_eager traces the backward pass too."""
    torch._dynamo.reset()
    keys = dict(keys)
    checkpointing = keys.pop("checkpointing", False)
    model = build(attention=attention, ffn=ffn, n_layer=1, cf_eval_clip=True, **keys)
    model.activation_checkpointing = checkpointing
    compile_parts(model, "aot_eager")
    tokens = torch.randint(0, 100, (2, 17))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, tokens)
    loss.backward()
    compiled_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.activation_checkpointing = False
    with torch.autocast("cpu", torch.bfloat16), eager():
        expected = model(tokens, tokens)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    for found, parameter in zip(compiled_grads, model.parameters(), strict=True):
        scale = parameter.grad.abs().max().item() + 1e-8
        torch.testing.assert_close(found, parameter.grad, rtol=0, atol=0.1 * scale)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"attention": "sofmax"},
            "attention .*'sofmax'.* softmax",
        ),
        ({"ffn": "cffn"}, "ffn must be one of"),
        ({"position": "ropes"}, r"position .*'ropes'.* rope\b"),
        ({"n_head": 5}, "n_head=5 does not divide n_embd=24"),
        ({"n_kv_head": 2}, "n_kv_head=2 does not divide n_head=3"),
        ({"n_kv_head": 0}, "n_kv_head must be at least 1"),
        ({"ffn_hidden": 0}, "ffn_hidden must be at least 1"),
        ({"norm": "rms"}, "norm .*'rms'.* rmsnorm"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0"),
        ({"position": "rope", "n_head": 24}, "n_embd / n_head = 1 must be even"),
        (
            {"position": "rope", "rope_scaling": "llama3", "rope_low_freq_factor": 4.0},
            "rope_low_freq_factor=4 .*rope_high_freq_factor=4",
        ),
        ({"position": "sinusoidal", "n_embd": 27}, "n_embd=27 is odd"),
        ({"position": "expe", "expe_width": 24}, "expe_width=24 must be below n_embd=24"),
        ({"position": "expe", "expe_theta": 0.0}, r"\bexpe_theta=0 "),
        ({"position": "exqpe", "expe_theta": 0.0}, r"\bexpe_theta=0 "),
        ({"position": "exqpe", "exqpe_theta_2": 0.0}, "exqpe_theta_2=0 "),
        (
            {"position": "expe", "expe_once": True, "expe_on_v": True},
            "expe_on_v .*expe_once",
        ),
        ({"position": "exqpe", "expe_stable": True}, "expe_stable needs position=expe"),
        ({"attention": "cattn_u", "position": "rope"}, "position=rope .*queries.* attention=cattn_u"),
        (
            {"attention": "cattn_m", "cattn_value_heads": 2},
            "cattn_value_heads=2 .*n_head=3.* n_embd=24",
        ),
        (
            {"attention": "cattn_m", "cattn_value_heads": 1, "cattn_heads": 2},
            r"cattn_value_heads=1 .*n_head=3 .*cattn_heads.* 2\b",
        ),
        ({"attention": "cattn_m", "cattn_heads": None, "n_head": 7}, "n_head=7 does not divide n_embd=24"),
        ({"attention": "cattn_m", "cattn_heads": 7}, "cattn_heads=7 does not divide n_embd=24"),
        ({"attention": "cattn_relative", "cattn_heads": 7}, "cattn_heads=7 does not divide n_embd=24"),
        (
            {"ffn": "cffn_gated", "cffn_gate": "lu"},
            "cffn_gate .*'lu'",
        ),
        ({"cf_depth": 0}, "cf_depth must be at least 1"),
        (
            {"cf_depth": 91},
            r"cf_depth=91: .* 90 .*cf_floor=0\.1 .*cf_impl=ladder",
        ),
        ({"cf_depth": 33, "cf_floor": 10.0}, r" 32 partial .*cf_floor=10\.0 "),
        ({"cf_depth": 95, "cf_pole": "clamp"}, " 94 partial denominators are"),
        ({"cf_pole": "softplus"}, "cf_pole .*'softplus'"),
        ({"cf_impl": "continuants"}, "cf_impl .*'continuants'"),
        (
            {"cf_init": "fan"},
            "cf_init .*'fan'.* fan_in",
        ),
        ({"cf_control": "off"}, "cf_control .*'off'"),
        ({"attention": "synthesizer", "n_head": 5}, "n_head=5 does not divide n_embd=24"),
        ({"attention": "bigbird", "n_head": 5}, "n_head=5 does not divide n_embd=24"),
        ({"attention": "bigbird", "bigbird_block": 0}, "bigbird_block must be at least 1, not 0"),
        ({"attention": "bigbird", "bigbird_window": 4}, "bigbird_window must be odd, not 4"),
        ({"attention": "bigbird", "bigbird_window": -1}, "bigbird_window must be at least 1, not -1"),
        ({"attention": "bigbird", "bigbird_global": -1}, "bigbird_global must be at least 0, not -1"),
        ({"attention": "bigbird", "bigbird_random": -1}, "bigbird_random must be at least 0, not -1"),
        ({"attention": "bigbird", "bigbird_seed": -1}, "bigbird_seed must be at least 0, not -1"),
        ({"cf_floor": 0.0}, "cf_floor must be above 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"vocab_size": None}, "vocab_size is not set"),
    ],
)
def test_unsound_configurations_are_refused(tiny, keys, message):
    with pytest.raises(ValueError, match=message):
        GPT(tiny(**keys))


def test_dropout_acts_on_what_the_first_block_reads(build):
    """On the sum of tokens and positions."""
    model = build(dropout=0.5, position="learned")
    tokens, pos = torch.randint(100, (2, 17)), torch.arange(17)
    found, whole = model.train().embed(tokens, pos), model.eval().embed(tokens, pos)
    torch.testing.assert_close(found, 2 * whole * (found != 0))


@torch.no_grad()
def test_maps_of_an_encoder_start_by_its_own_depth(tiny):
    model = GPT(tiny(n_layer=2, encoder_layers=8, n_head=2, n_embd=192)).init_weights()
    for blocks, std in ((model.encoder.blocks, 0.02 / 4), (model.blocks, 0.02 * 6**-0.5)):
        for block in blocks:
            assert block.attention.proj.weight.std() == pytest.approx(std, rel=0.05)
