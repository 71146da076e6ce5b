"""Decoding with caches: equal to the whole forward pass, one graph, nothing read that was not written."""

import itertools

import pytest
import torch
from torch.nn.functional import layer_norm
from torch.utils.flop_counter import FlopCounterMode

from decoding.decoder import Decoder
from layers import ATTENTION, FFN, POSITION
from layers.cache import in_use
from layers.protocol import TokenMixer
from model import GPT, cache_bytes_per_token
from models.architecture import ModelConfig
from models.compilation import missing_for_compile
from models.language_model import sample_token
from tests.counting_compiler import Counter

NAN = float("nan")
OPTIONS = [
    {"attention": "softmax", "n_kv_head": 1, "bias": True},
    {"attention": "softmax", "n_head": 6, "n_kv_head": 2, "norm": "rmsnorm"},
    {"attention": "softmax", "n_kv_head": 1, "position": "rope", "rope_scaling": "llama3"},
    {"attention": "softmax", "position": "expe", "expe_on_v": True, "expe_theta": 1.0},
    {"attention": "softmax", "position": "expe", "expe_stable": True, "expe_inference_scale": 0.5},
    {"attention": "softmax", "position": "expe", "expe_once": True, "expe_theta": 1.0},
    {"attention": "softmax", "position": "exqpe", "expe_learned": "standard", "n_kv_head": 1},
    {"attention": "bigbird", "n_kv_head": 1, "bigbird_block": 4, "bigbird_window": 1},
    {"attention": "bigbird", "n_head": 6, "n_kv_head": 2, "bigbird_block": 1, "bigbird_global": 0},
    {"attention": "softmax", "token_shift": True, "position": "rope", "n_kv_head": 1},
    {"attention": "softmax", "qk_norm": True, "position": "rope", "logit_softcap": 2.0},
    {"attention": "sliding_window", "qk_norm": True, "position": "expe", "n_kv_head": 1},
    {"attention": "sliding_window", "token_shift": True, "attention_window": 1},
    {"attention": "bigbird", "token_shift": True, "position": "expe"},
    {"attention": "cattn_relative", "token_shift": True, "cattn_content": True},
    {"attention": "cattn_m", "cattn_strict": True},
    {"attention": "cattn_m", "cattn_heads": 3, "cattn_strict": True, "cattn_proj": True},
    {
        "attention": "cattn_m",
        "cattn_heads": None,
        "cattn_value_heads": 1,
        "cf_pole": "clamp",
        "cf_eps": 0.3,
    },
    {"attention": "cattn_m", "cattn_value_heads": 1, "cf_intercept": "none"},
    {"attention": "cattn_m", "cattn_scores": "collapsed", "cf_linear_intercept": True},
    {"attention": "cattn_m", "cattn_scores": "collapsed", "cattn_heads": 3, "cattn_strict": True},
    {"attention": "cattn_m", "cattn_heads": 2, "cf_eval_clip": True},
    {"attention": "cattn_relative", "cattn_heads": 2, "cattn_content": True},
    {"attention": "cattn_relative", "cattn_content": True, "cf_control": "zero", "ffn": "cffn_product"},
    {"attention": "cattn_m", "cf_control": "zero"},
    {"attention": "cattn_u", "cf_control": "zero"},
    {"attention": "gated_deltanet", "delta_conv": 0, "delta_heads": 2, "delta_key": 5},
    {"attention": "cattn_u", "cf_control": "constant"},
    {"attention": "cattn_relative", "cattn_heads": 6, "cattn_value_heads": 1, "cattn_content": True},
    {"attention": "cattn_u", "cf_eval_clip": True},
    {
        "attention": "cattn_u",
        "cf_linear_intercept": True,
        "cf_intercept": "none",
        "cf_impl": "ladder",
        "cf_depth": 2,
    },
    {"attention": "synthesizer", "synthesizer_proj": False, "bias": True},
    {"attention": "synthesizer", "n_head": 2},
    {"attention": "softmax", "ffn": "cffn_product"},
    {"attention": "cattn_m", "ffn": "cffn_added", "tie_embeddings": False},
    {"attention": "softmax", "ffn": "cffn_gated", "cffn_gate": "glu_collapsed"},
    {"attention": "cattn_m", "cattn_heads": 2, "cf_eval_clip": True, "cf_clip_of": "ladder"},
]
LEGAL = [{"attention": a, "position": p} for a, p in itertools.product(ATTENTION, POSITION)] + OPTIONS
LEGAL = [
    pytest.param(keys, id=" ".join(map(str, keys.values())))
    for keys in LEGAL
    if not ModelConfig(**{"n_embd": 24, "n_head": 3, **keys}).check()
]
legal = pytest.mark.parametrize("keys", LEGAL)
# what a compiler may trip over: each mixer as it is, and, as each takes seconds, every third option
compiled = pytest.mark.parametrize(
    "keys", [{"attention": a} for a in ATTENTION] + LEGAL[-len(OPTIONS) :: 3]
)
mixers = pytest.mark.parametrize("attention", ATTENTION)
# how 17 tokens are fed; the last also stops short of the block
PIECES = [[1] * 17, [17], [9] + [1] * 8, [1, 5, 11], [1, 5, 7, 1]]


def test_every_option_is_legal():
    assert len(LEGAL) == 7 + 2 * 6 + 5 * 3 + len(OPTIONS)


def with_garbage(cache, value=NAN):
    """The cache of a model, filled with what must never be read; with a number, what may be left of another
    text, as in a state always.
    """
    for block, rows in zip(cache.blocks, cache.rows, strict=True):
        for place, held in enumerate(block):
            held.fill_(value if rows is None or place < rows else 1e4)
    return cache


def recorded(model):
    """Ranges for cf_eval_clip, so narrow that many fractions are clipped, and of another width each."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "has_range", False):
                module.z_min.uniform_(0.2, 0.5)
                module.z_max.uniform_(0.5, 0.8)
    return model.eval()


@legal
@torch.no_grad()
def test_equals_the_forward_pass(build, keys):
    model = recorded(build(**keys))
    tokens = torch.randint(0, 100, (3, 17))
    whole = model(tokens)
    for pieces in PIECES:
        cache, end = with_garbage(model.new_cache(3)), 0
        for length in pieces:
            end += length
            logits = model.decode(tokens[:, end - length : end], cache)
            torch.testing.assert_close(logits, whole[:, end - 1], rtol=1e-5, atol=1e-5)
            assert cache.filled.item() == end
    torch.testing.assert_close(model.decode(tokens), whole[:, -1], rtol=1e-5, atol=1e-5)


@legal
@torch.no_grad()
def test_equals_the_forward_pass_in_bfloat16(build, keys):
    """With weights in bfloat16, and with float32 weights under autocast and a bfloat16 cache."""
    tokens = torch.randint(0, 100, (3, 17))
    # weights as they are drawn: roundings of large ones would say more of the model than of its caches
    exact = recorded(build(scale=1.0, **keys))
    wide = exact(tokens)
    scale = wide.abs().max().item()
    for weights in (torch.bfloat16, torch.float32):
        model = recorded(build(scale=1.0, **keys))
        model.load_state_dict(exact.state_dict())
        model.to(weights)
        with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
            whole = model(tokens)
            for pieces in PIECES:
                cache, end = with_garbage(model.new_cache(3, dtype=torch.bfloat16)), 0
                for length in pieces:
                    end += length
                    logits = model.decode(tokens[:, end - length : end], cache)
                    assert logits.dtype == torch.bfloat16
                    for expected in (whole, wide):
                        expected = expected[:, end - 1].float()
                        torch.testing.assert_close(logits.float(), expected, rtol=0, atol=3e-2 * scale)


@legal
@torch.no_grad()
def test_a_mixer_gives_each_row_of_the_forward_pass(build, keys):
    """Of a piece of several tokens the model only shows the last."""
    model = recorded(build(**keys)).double()
    block = model.blocks[1]
    x, pos = layer_norm(torch.randn(3, 17, 24, dtype=torch.float64), (24,)), torch.arange(17)
    hooks = {"position": model.position, "layer": 1} if block.attention.queries_and_keys else {}
    whole = block.attention(x, pos=pos, **hooks) if hooks else block.attention(x)
    for pieces in PIECES:
        cache = with_garbage(model.new_cache(3)).blocks[1]
        parts, taken = x.split(pieces if sum(pieces) == 17 else [*pieces, 17 - sum(pieces)], dim=1), 0
        for part in parts:
            now = slice(taken, taken + part.shape[1])
            out = block.attention.decode(
                part, pos[now], in_use(cache, now.stop, block.attention.cache_rows), **hooks
            )
            # ExPE's own columns are float32 numbers
            torch.testing.assert_close(out, whole[:, now], rtol=0, atol=1e-11)
            taken = now.stop


@legal
@torch.no_grad()
def test_a_shorter_cache_and_one_used_again(build, keys):
    model = recorded(build(**keys))
    tokens = torch.randint(0, 100, (2, 9))
    cache = with_garbage(model.new_cache(2, 9))
    for _ in range(2):
        cache.clear()
        for piece in tokens.split([4, 1, 3, 1], dim=1):
            logits = model.decode(piece, cache)
        torch.testing.assert_close(logits, model(tokens)[:, -1], rtol=1e-5, atol=1e-5)
        tokens = torch.randint(0, 100, (2, 9))
    with pytest.raises(ValueError, match=r"10 tokens .*cache.* 9\b"):
        model.decode(tokens[:, :1], cache)


@mixers
@torch.no_grad()
def test_sequences_of_a_batch_do_not_meet(build, attention):
    model = build(attention=attention).eval()
    tokens = torch.randint(0, 100, (3, 12))
    changed = tokens.clone()
    changed[1] = (changed[1] + 1) % 100
    results = []
    for batch in (tokens, changed):
        cache = model.new_cache(3)
        results.append([model.decode(piece, cache) for piece in batch.split([7, 1, 4], dim=1)])
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert not torch.equal(before[1], after[1])


def test_no_cache_beyond_the_last_position(build):
    with pytest.raises(ValueError, match=r"18 tokens .*block_size=17.*attention=bigbird"):
        build(attention="bigbird", position="none").new_cache(1, 18)
    longer = build(position="rope").eval()
    tokens = torch.randint(0, 100, (2, 40))
    cache = with_garbage(longer.new_cache(2, 40))
    for piece in tokens.split([16, 3, 20, 1], dim=1):
        logits = longer.decode(piece, cache)
    torch.testing.assert_close(logits, longer(tokens)[:, -1], rtol=1e-5, atol=1e-5)


@legal
def test_bytes_of_the_cache_are_those_of_the_accounts(tiny, keys):
    config = tiny(**keys)
    with torch.device("meta"):
        cache = GPT(config).new_cache(3, 11, torch.bfloat16)
    rows = ATTENTION[config.attention].cache_rows
    held = [held for block in cache.blocks for held in block[:rows]]
    found = sum(one.numel() * one.element_size() for one in held if one.shape[-2] == 11)
    assert found == 3 * 11 * cache_bytes_per_token(config)
    of_last = [one for one in held if one.shape[-2] == 1]
    assert len(of_last) + sum(one.shape[-2] == 11 for one in held) == len(held)
    shifted = rows is None and "token_shift" in ATTENTION[config.attention].keys_read(config)
    assert len(of_last) == config.n_layer * (config.token_shift and shifted)


@legal
def test_flops_of_a_step_are_those_of_the_accounts(tiny, keys):
    """Of one block on the meta device; BigBird masks what it does not attend to."""
    config = tiny(**keys)
    if ATTENTION[config.attention].decode is TokenMixer.decode:
        pytest.skip("it computes all of the past again")
    attention = ATTENTION["softmax" if config.attention == "bigbird" else config.attention]
    expected = attention.flops_per_token(config, 11) + FFN[config.ffn].flops_per_token(config, 11)
    with torch.device("meta"):
        model, x, pos = GPT(config), torch.zeros(1, 1, 24), torch.zeros(1, dtype=torch.int64)
        cache = model.new_cache(1, 11).blocks[0]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.blocks[0](x, model.position, pos, cache)
    assert counter.get_total_flops() == expected


@compiled
@torch.no_grad()
def test_one_graph_for_all_steps(build, keys):
    torch._dynamo.reset()
    model = recorded(build(block_size=70, **keys))
    tokens = torch.randint(0, 100, (2, 65))
    cache, compiler = with_garbage(model.new_cache(2), 3.0), Counter()
    model.decode(tokens[:, :5], cache)
    step = Decoder(model, compiler)
    for token in tokens[:, 5:].split(1, dim=1):
        logits = step(token, cache)
    assert compiler.graphs == 2  # embedding, block
    torch.testing.assert_close(logits, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)
    cache.clear()  # another text of the batch
    step(tokens[:, :1], cache)
    assert compiler.graphs == 2  # embedding, block


@mixers
@torch.no_grad()
def test_compiled_steps_in_bfloat16(build, attention):
    """They multiply and add in float32 where the matrix products of eager steps round."""
    torch._dynamo.reset()
    model = recorded(build(scale=1.0, attention=attention)).bfloat16()
    tokens = torch.randint(0, 100, (2, 9))
    cache, expected = with_garbage(model.new_cache(2), 3.0), model(tokens).float()
    step = Decoder(model, "eager")
    for t in range(9):
        logits = step(tokens[:, t : t + 1], cache)
        assert logits.dtype == torch.bfloat16
        tolerance = 3e-2 * expected.abs().max().item()
        torch.testing.assert_close(logits.float(), expected[:, t], rtol=0, atol=tolerance)


@pytest.mark.skipif(bool(missing_for_compile()), reason="needs a C++ compiler")
@mixers
@torch.no_grad()
def test_compiled_steps_equal_eager_ones(build, attention):
    """The real compiler, tuned; it must keep the order of what is written and what is read."""
    torch._dynamo.reset()
    model = build(attention=attention, n_layer=1).eval()
    tokens = torch.randint(0, 100, (2, 17))
    cache = with_garbage(model.new_cache(2), 3.0)
    whole = model(tokens)
    step = Decoder(model, "tuned")
    torch._dynamo.utils.counters.clear()
    for t in range(17):
        logits = step(tokens[:, t : t + 1], cache)
        torch.testing.assert_close(logits, whole[:, t], rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert cache.filled.item() == 17


@torch.no_grad()
def uncached(model, tokens, count, window, generator=None, **keys):
    """The whole window, each time: [B, T] -> [B, count]"""
    context = tokens
    for _ in range(count):
        logits = model(context[:, -window:])[:, -1].float()
        context = torch.cat((context, sample_token(logits, generator=generator, **keys)[:, None]), dim=1)
    return context[:, tokens.shape[1] :]


@torch.no_grad()
def check_greedy(model, length, window):
    """30 tokens after a prompt: each is the likeliest by a forward pass, up to rounding."""
    context = torch.randint(0, 100, (1, length))
    for token in model.generate(context[0].tolist(), 30, temperature=0, window=window):
        logits = model(context[:, -window:])[0, -1]
        assert logits[token] > logits.max() - 1e-5
        context = torch.cat((context, torch.tensor([[token]])), dim=1)
    assert context.shape[1] == length + 30


@legal
def test_generates_what_the_forward_pass_would(build, keys):
    """30 greedy tokens, from prompts of one token up to more than the window."""
    model = recorded(build(**keys))
    for length, window in ((1, 17), (12, 12), (25, 17)):
        check_greedy(model, length, window)


@pytest.mark.parametrize("position", ["rope", "none", "sinusoidal", "expe", "exqpe"])
def test_generates_beyond_the_block_where_nothing_is_absolute(build, position):
    check_greedy(build(position=position).eval(), 9, 50)


@mixers
def test_samples_as_the_forward_pass_would(build, attention):
    """Same seed, same text: the draws are those of a generation without a cache."""
    model = build(attention=attention).eval()
    for keys in ({}, {"top_k": 20, "temperature": 0.8}, {"top_p": 0.9, "temperature": 1.5}):
        prompt = torch.tensor([[3, 1, 4]])
        expected = uncached(model, prompt, 40, 17, torch.Generator().manual_seed(5), **keys)
        found = model.generate([3, 1, 4], 40, generator=torch.Generator().manual_seed(5), **keys)
        assert list(found) == expected[0].tolist()


@mixers
def test_generates_batches(build, attention):
    model = build(attention=attention).eval()
    prompts = torch.randint(0, 100, (3, 6))
    for keys in ({"temperature": 0}, {"top_k": 20, "top_p": 0.9}):
        generators = (torch.Generator().manual_seed(1) for _ in range(2))
        expected = uncached(model, prompts, 30, 17, next(generators), **keys)
        found = torch.stack(list(model.generate(prompts, 30, generator=next(generators), **keys)), dim=1)
        assert torch.equal(found, expected)
    alone = [list(model.generate(prompt.tolist(), 30, temperature=0)) for prompt in prompts]
    together = model.generate(prompts, 30, temperature=0)
    assert torch.stack(list(together), dim=1).tolist() == alone


def test_each_token_is_read_once(build, monkeypatch):
    """Until the window slides: then it is read whole."""
    model, read, decode = build().eval(), [], GPT.decode

    def watched(self, tokens, cache):
        read.append(tokens.shape[1])
        return decode(self, tokens, cache)

    monkeypatch.setattr(GPT, "decode", watched)
    assert len(list(model.generate([1, 2, 3], 17))) == 17
    assert read == [3] + [1] * 14 + [17] * 2
    read.clear()
    assert len(list(model.generate([1] * 20, 2))) == 2
    assert read == [17, 17]
    assert list(model.generate([1], 0)) == []


@mixers
def test_generates_with_compiled_steps(build, attention):
    """One graph for several texts; the prompt and a window that slides are not its business."""
    torch._dynamo.reset()
    model, compiler = build(attention=attention).eval(), Counter()
    step = Decoder(model, compiler)
    for prompt in ([3, 1, 4], [1, 5, 9]):
        expected = list(model.generate(prompt, 20, temperature=0))
        assert list(model.generate(prompt, 20, temperature=0, step=step)) == expected
    assert compiler.graphs == 2  # embedding, block


def test_sampling_filters_row_by_row():
    logits = torch.randn(5, 50)
    for keys in ({"top_k": 3}, {"top_p": 0.3}, {"temperature": 0}, {"top_k": 10, "top_p": 0.5}):
        kept = [{int(sample_token(row, **keys)) for _ in range(300)} for row in logits]
        drawn = torch.stack([sample_token(logits, **keys) for _ in range(100)], dim=1)
        for row, allowed in zip(drawn.tolist(), kept, strict=True):
            assert set(row) <= allowed


def test_exactly_top_k_tokens_are_kept():
    """Of equal logits those with the lower ids, in each row by itself."""
    rows = torch.tensor([[1.0] * 10, [0, 2, 1, 1, 1, 0, 0, 0, 0, 3]])
    for k, expected in ((1, [{0}, {9}]), (3, [{0, 1, 2}, {9, 1, 2}]), (10, [set(range(10))] * 2)):
        drawn = torch.stack([sample_token(rows, top_k=k) for _ in range(400)], dim=1)
        assert [set(row) for row in drawn.tolist()] == expected
