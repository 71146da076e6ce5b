"""Parameters, FLOPs and cache in closed form; which keys a model reads."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import count
from kernels.gated_delta import CHUNK
from layers import ATTENTION, FFN
from layers.gated_deltanet import heads_and_key
from layers.sliding_window import window_of
from model import GPT, cache_bytes_per_token, flops_per_token, parameter_counts
from models.architecture import ModelConfig
from tests.flop_formulas import register_flop_formulas
from tests.model_variants import every_option

ROOT = Path(__file__).resolve().parents[1]


@every_option
def test_parameters_in_closed_form(tiny, attention, ffn, options):
    config = tiny(attention=attention, ffn=ffn, **options)
    model = GPT(config)
    counts = parameter_counts(config)
    assert sum(counts.values()) == model.parameter_count() == sum(p.numel() for p in model.parameters())
    for part in ("attention", "ffn"):
        found = sum(p.numel() for block in model.blocks for p in getattr(block, part).parameters())
        assert counts[part] == found


def test_gpt2_sizes():
    """GPT-2 with biases has 124,439,808 parameters and the XL 1,557,611,200, but for the padding rows."""
    sizes = [((12, 12, 768), 124_439_808), ((48, 25, 1600), 1_557_611_200)]
    for (n_layer, n_head, n_embd), published in sizes:
        config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, vocab_size=50257, bias=True)
        padding = (config.padded_vocab_size - 50257) * n_embd
        assert sum(parameter_counts(config).values()) - padding == published


def surplus(config, context):
    """What is computed beyond the equation, in one layer per token: pairs that BigBird and windows
    mask (test_bigbird.py counts those that it does not), and columns that widen the heads of Synthesizer.
    """
    if config.attention == "bigbird":
        dense = ATTENTION["softmax"].flops_per_token(config, context)
        return dense - ATTENTION["bigbird"].flops_per_token(config, context)
    if config.attention == "sliding_window" and context > (window := window_of(config)):
        pieces = -(-context // window)  # the first one by itself, each other one with that before it
        return 4 * config.n_embd * (window * window * (2 * pieces - 1) - context * window) / context
    if config.attention == "gated_deltanet":  # a chunk's products of tokens with each other
        heads, key = heads_and_key(config)
        return heads * key * (4 + 2 * config.delta_expand) * min(context, CHUNK)
    added = 8 - config.n_embd // config.n_head % 8
    return 4 * config.n_head * added * context if config.attention == "synthesizer" else 0


def test_llama_sizes():
    """Llama-3.2-3B, and as many parameters more as a head of its own has."""
    config = ModelConfig(
        n_layer=28, n_head=24, n_kv_head=8, n_embd=3072, ffn_hidden=8192, vocab_size=128_256, ffn="swiglu",
        norm="rmsnorm", position="rope",
    )  # fmt: skip
    assert sum(parameter_counts(config).values()) == 3_212_749_824
    config.ffn_hidden = None  # 8/3 of the width, a multiple of 256 here already
    assert sum(parameter_counts(config).values()) == 3_212_749_824
    config.tie_embeddings = False
    assert sum(parameter_counts(config).values()) == 3_606_752_256
    with torch.device("meta"):
        assert GPT(config).parameter_count() == 3_606_752_256


def test_widths_inside_a_feed_forward_layer(tiny):
    for ffn, n_embd, hidden in [("swiglu", 96, 256), ("swiglu", 97, 512), ("mlp", 24, 96)]:
        layer = FFN[ffn](tiny(n_embd=n_embd))
        assert layer.down.weight.shape == (n_embd, hidden)
        assert FFN[ffn](tiny(n_embd=n_embd, ffn_hidden=40)).down.weight.shape == (n_embd, 40)


@every_option
def test_flops_in_closed_form(tiny, attention, ffn, options):
    """Against the operations that PyTorch counts, on the meta device (it counts no SDPA on the CPU)."""
    register_flop_formulas()
    config = tiny(attention=attention, ffn=ffn, **options)
    # ExPE's own product is one for a whole batch
    batch = 1 if config.position in ("expe", "exqpe") else 3
    for context in (17, 5):
        with torch.device("meta"):
            model, tokens = GPT(config), torch.zeros(batch, context, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(tokens)
        counted = counter.get_total_flops() / (batch * context) - config.n_layer * surplus(config, context)
        assert counted == pytest.approx(flops_per_token(config, context), rel=1e-12)


def test_counts_of_several_models(capsys, monkeypatch):
    """One line each, with the paper's figure and what adds up to the parameters."""
    monkeypatch.chdir(ROOT)
    small = "config/gpt2_xl.py+config/size/small.py"
    count.main(["config/cofrgenet_f.py", small, "config/llama_3b.py"])
    head, f, middle, llama, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    f, llama = (dict(zip(head, line, strict=True)) for line in (f, llama))
    assert (f["parameters"], f["published"], f["cache"]) == ("823,939,952", "985M", "307,200")
    parts = ("embedding", "position", "attention", "ffn", "norm")
    assert sum(int(f[part].replace(",", "")) for part in parts) == 823_939_952
    forward, training = (float(f[key].replace(",", "")) for key in ("forward", "training"))
    assert training == pytest.approx(3 * forward, rel=1e-4)
    assert middle[1:3] == ["124,373,760", "84,953,856"]  # nothing is published under this name
    # nor of what is put on top of a model of the paper
    f = "config/cofrgenet_f.py"
    count.main([f"{f}+config/size/small.py"])
    count.main([f, "--cf_depth=1"])
    count.main(["--n_layer=1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f)]
    assert [line.split()[1:3] for line in lines] == [
        ["82,432,332", "43,012,428"],
        ["820,712,336", "738,587,536"],
    ]
    # k and v of 8 heads of 128 in 28 layers, two bytes each
    assert llama["cache"] == f"{2 * 2 * 8 * 128 * 28:,}"


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ({}, 48),
        ({"n_kv_head": 1}, 16),
        ({"attention": "bigbird"}, 48),
        ({"attention": "cattn_m"}, 24),
        ({"attention": "cattn_m", "cattn_value_heads": 1, "cattn_heads": None}, 8),
        ({"attention": "cattn_u"}, 48),
        ({"attention": "cattn_relative", "cattn_content": True}, 27),
        ({"attention": "synthesizer"}, 24),
    ],
)
def test_cache_per_token(tiny, keys, values):
    assert cache_bytes_per_token(tiny(**keys)) == 2 * 2 * values


# a value of each optional key that is not its default, and the keys without which it does nothing
OTHER_VALUES = {
    "n_kv_head": 1, "ffn_hidden": 40, "mlp_activation": "relu", "gelu_approximation": "tanh",
    "rope_base": 50.0, "t5_buckets": 8, "t5_max_distance": 40,
    "rope_scaling": "llama3", "rope_factor": 3.0, "rope_low_freq_factor": 2.0,
    "rope_high_freq_factor": 9.0, "rope_original_max_position_embeddings": 20, "expe_width": 5,
    "expe_start": 2.0, "expe_theta": 0.5, "expe_stable": True, "expe_once": True,
    "expe_learned": "random", "expe_on_v": True, "expe_inference_scale": 3.0, "exqpe_theta_1": 0.25,
    "exqpe_theta_2": 0.75, "cf_ladders": 5, "cf_depth": 2, "cf_pole": "clamp", "cf_eps": 0.9,
    "cf_floor": 0.5, "cf_init": "nanogpt", "cf_impl": "ladder",
    "cf_eval_clip": True, "cf_clip_of": "ladder", "cffn_gate": "glu_collapsed", "cf_control": "zero",
    "cattn_heads": 3, "cattn_value_heads": 1, "cattn_content": True, "token_shift": True,
    "cattn_scores": "collapsed", "cf_intercept": "none", "cf_linear_intercept": True,
    "cattn_proj": True, "cattn_strict": True, "synthesizer_proj": False, "bigbird_block": 4,
    "bigbird_global": 2, "bigbird_window": 5, "bigbird_random": 0, "bigbird_seed": 3,
    "qk_norm": True, "attention_window": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {
            "position": "rope",
            "rope_scaling": "llama3",
            "ffn": "swiglu",
            "rope_original_max_position_embeddings": 9,
        },
        {"position": "expe", "attention": "bigbird", "bigbird_block": 1},
        {"position": "exqpe", "exqpe_theta_1": 0.1, "exqpe_theta_2": 0.2},
        {"attention": "synthesizer", "ffn": "cffn_added", "cf_pole": "clamp", "cf_eps": 0.5},
        {"attention": "cattn_m", "ffn": "mlp"},
        {"attention": "cattn_u", "ffn": "cffn_gated"},
        {"attention": "cattn_u", "ffn": "mlp"},
        {"attention": "cattn_u", "ffn": "mlp", "cf_eval_clip": True},
        {"attention": "cattn_m", "ffn": "cffn_gated", "cf_eval_clip": True},
        {"attention": "cattn_m", "cattn_scores": "collapsed", "ffn": "cffn_added", "cf_eval_clip": True},
        {"attention": "cattn_relative", "ffn": "mlp"},
        {"attention": "cattn_relative", "ffn": "cffn_gated", "cattn_content": True},
        {"attention": "cattn_m", "ffn": "cffn_product", "cf_control": "constant"},
    ],
)
def test_keys_unused_keys_are_those_it_names(build, tiny, parts):
    """Whatever else is changed shows in the weights, in the outputs or in the ranges that are kept."""
    sizes = {"n_embd": 48, "block_size": 16, "vocab_size": 50}
    tokens = torch.randint(50, (2, 16), generator=torch.Generator().manual_seed(0))

    def seen(**keys):
        model = build(scale=8.0, **{**sizes, **parts, **keys})
        with torch.no_grad():
            shown = [model.train()(tokens), model.eval()(tokens)]
        return [*model.state_dict().items()], shown

    def differ(one, other):
        if [(n, t.shape) for n, t in one[0]] != [(n, t.shape) for n, t in other[0]]:
            return True
        tensors = zip([t for _, t in one[0]] + one[1], [t for _, t in other[0]] + other[1], strict=True)
        return any(not torch.equal(a, b) for a, b in tensors)

    before = seen()
    assert not [key for key in parts if f"{key}=" in str(tiny(**parts).unused_keys())]
    for key, value in OTHER_VALUES.items():
        config = tiny(**{**sizes, **parts, key: value})
        if key in parts or config.check():
            continue
        idle = f"{key}={value}" in config.unused_keys()
        assert idle != differ(before, seen(**{key: value})), key
