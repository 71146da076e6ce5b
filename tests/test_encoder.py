"""The encoder-decoder: beside PyTorch's own Transformer, with padding, caches, beams and exact counts."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from decoding.beam import beam_search
from decoding.decoder import Decoder
from layers import ATTENTION, FFN
from layers.attention import SoftmaxAttention
from layers.cross_attention import CrossAttention
from model import GPT, cache_bytes_per_token, flops_per_token, parameter_counts
from models.architecture import ModelConfig
from models.compilation import compile_parts, eager

ENCODER = {"encoder_layers": 3, "vocab_size": 60}
OPTIONS = [
    {"bias": True, "n_kv_head": 1},
    {"position": "sinusoidal", "norm": "rmsnorm", "tie_embeddings": False},
    {"position": "rope", "token_shift": True},
    {"position": "expe", "n_head": 6, "n_kv_head": 2},
    {"position": "t5", "n_head": 6, "n_kv_head": 2, "t5_buckets": 8, "t5_max_distance": 12},
    {"position": "none", "ffn": "swiglu"},
    *({"ffn": ffn, "bias": True} for ffn in FFN if ffn.startswith("cffn")),
]
options = pytest.mark.parametrize("keys", OPTIONS, ids=lambda keys: " ".join(map(str, keys.values())))


def batch(rows=3, source=9, target=7):
    """(tokens, source, lengths)"""
    torch.manual_seed(3)
    tokens, sources = (torch.randint(0, 60, (rows, length)) for length in (target, source))
    return tokens, sources, torch.tensor([source, 1, 4])[:rows]


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_equals_pytorchs_transformer(build, activation):
    """torch.nn.Transformer with the norm first and biases, and the same weights."""
    keys = {"position": "none", "bias": True, "n_layer": 2, "mlp_activation": activation}
    model = build(**ENCODER, **keys).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs = nn.Transformer(24, 3, 3, 2, 96, 0.0, activation, batch_first=True, norm_first=True)

    def attention(module, weights):
        module.in_proj_weight.copy_(torch.cat([one.weight for one in weights[:-1]]))
        module.in_proj_bias.copy_(torch.cat([one.bias for one in weights[:-1]]))
        module.out_proj.load_state_dict(weights[-1].state_dict())

    def layer(module, block, norms):
        attention(module.self_attn, [block.attention.qkv, block.attention.proj])
        module.linear1.load_state_dict(block.ffn.up.state_dict())
        module.linear2.load_state_dict(block.ffn.down.state_dict())
        for number, norm in enumerate(norms, 1):
            getattr(module, f"norm{number}").load_state_dict(norm.state_dict())

    for module, block in zip(theirs.encoder.layers, model.encoder.blocks, strict=True):
        layer(module, block, [block.norm1, block.norm2])
    for module, block in zip(theirs.decoder.layers, model.blocks, strict=True):
        layer(module, block, [block.norm1, block.norm_cross, block.norm2])
        attention(module.multihead_attn, [block.cross.query, block.cross.key_value, block.cross.proj])
    theirs.encoder.norm.load_state_dict(model.encoder.norm.state_dict())
    theirs.decoder.norm.load_state_dict(model.norm.state_dict())
    tokens, source, lengths = batch()
    padding = torch.arange(source.shape[1]) >= lengths[:, None]
    expected = theirs.train()(
        model.embedding(source),
        model.embedding(tokens),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    torch.testing.assert_close(model.hidden(tokens, None, source, lengths), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [None, 1, 2])
def test_equations(tiny, dtype, groups):
    """softmax(q k^T / sqrt(D)) v over the tokens of a source, token by token."""
    config = tiny(n_head=6, n_kv_head=groups, bias=True)
    torch.manual_seed(0)
    _, _, lengths = batch()
    x, memory = torch.randn(3, 5, 24).to(dtype), torch.randn(3, 9, 24).to(dtype)
    own, cross = SoftmaxAttention(config).to(dtype).eval(), CrossAttention(config).to(dtype).eval()
    queries, rest = own.qkv.weight.double().split((24, 2 * own.widths[1]))
    biases = own.qkv.bias.double().split((24, 2 * own.widths[1]))
    parts = {"query": cross.query, "key_value": cross.key_value, "proj": cross.proj}
    of_cross = [part.weight.double() for part in parts.values()]
    of_cross += [part.bias.double() for part in parts.values()]
    of_own = [queries, rest, own.proj.weight.double(), *biases, own.proj.bias.double()]

    def naive(x, memory, w_q, w_kv, w_o, b_q, b_kv, b_o):
        x, memory, out = x.double(), memory.double(), torch.zeros(*x.shape, dtype=torch.float64)
        for row, length in enumerate(lengths.tolist()):
            kv = (memory[row, :length] @ w_kv.T + b_kv).view(length, 2, -1, 4)
            for token in range(x.shape[1]):
                q = (w_q @ x[row, token] + b_q).view(6, 4)
                heads = []
                for head in range(6):
                    k, v = kv[:, :, head // (6 // kv.shape[2])].unbind(1)
                    heads.append(((k @ q[head]) / 2).softmax(0) @ v)
                out[row, token] = w_o @ torch.cat(heads) + b_o
        return out

    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for found, expected in (
        (cross(x, memory, lengths), naive(x, memory, *of_cross)),
        (cross(x, cross.keys_and_values(memory), lengths), naive(x, memory, *of_cross)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    found, expected = own.encode(memory, lengths), naive(memory, memory, *of_own)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(
            found[row, :length].double(), expected[row, :length], rtol=tolerance, atol=tolerance
        )


@torch.no_grad()
@options
def test_padding_and_the_order_of_a_batch_change_nothing(build, keys):
    """Other padding, more padding (widths are multiples of 16, as in training), another order of rows.

    To the bit, but for ladders: a product of so few columns is computed in another order for more rows.
    """
    model = build(**ENCODER, **keys, block_size=32).eval()
    tokens, source, lengths = batch(source=16, target=16)
    expected = model(tokens, None, source, lengths)
    tolerance = 1e-5 if model.config.has_ladders else 0.0

    def check(found, expected):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)

    other = torch.where(torch.arange(16) < lengths[:, None], source, 7)
    check(model(tokens, None, other, lengths), expected)
    check(model(tokens, None, torch.nn.functional.pad(source, (0, 16), value=5), lengths), expected)
    order = torch.tensor([2, 0, 1])
    check(model(tokens[order], None, source[order], lengths[order]), expected[order])
    shorter = model(tokens, None, source, lengths.clamp(max=3))
    assert (shorter - expected)[0].abs().max() > 1e-3


@torch.no_grad()
@options
def test_who_sees_what(build, keys):
    """A target's token sees all of the source, and no later token of the target."""
    model = build(**ENCODER, **keys).eval()
    tokens, source, lengths = batch(1)
    seen = model(tokens, None, source, lengths)
    for place in range(9):
        changed = source.clone()
        changed[:, place] = (changed[:, place] + 1) % 60
        assert not (model(tokens, None, changed, lengths) == seen).all(-1).any()
    for place in range(7):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 60
        found = model(changed, None, source, lengths)
        assert torch.equal(found[:, :place], seen[:, :place])
        assert not torch.equal(found[:, place], seen[:, place])


@torch.no_grad()
@options
def test_cached_decoding_equals_the_whole_pass(build, keys):
    model = build(**ENCODER, **keys).eval()
    tokens, source, lengths = batch()
    whole = model(tokens, None, source, lengths)
    for pieces in ([1] * 7, [3, 1, 3], [7]):
        cache, end = model.new_cache(3, 7, None, source, lengths), 0
        for length in pieces:
            end += length
            found = model.decode(tokens[:, end - length : end], cache)
            torch.testing.assert_close(found, whole[:, end - 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.decode(tokens, None, source, lengths), whole[:, -1])
    losses = model.token_losses(tokens, tokens, source, lengths)
    torch.testing.assert_close(losses.mean(), model(tokens, tokens, source, lengths))


@torch.no_grad()
def test_beams(build):
    """Of a batch, those of each source alone; one beam is greedy; compiled steps find the same."""
    model = build(**ENCODER).eval()
    _, source, lengths = batch()
    read = {"source": source, "lengths": lengths}
    start = [[3]] * 3
    together = beam_search(model, start, 4, 12, 5, **read)
    for place in range(3):
        one = {name: held[place : place + 1] for name, held in read.items()}
        (alone,) = beam_search(model, start[:1], 4, 12, 5, **one)
        assert [found.tokens for found in alone] == [found.tokens for found in together[place]]
    assert len({tuple(ranked[0].tokens) for ranked in together}) == 3
    compiled = beam_search(model, start, 4, 12, 5, **read, step=Decoder(model, "eager"))
    assert [[one.tokens for one in ranked] for ranked in compiled] == [
        [one.tokens for one in ranked] for ranked in together
    ]
    greedy = torch.stack(list(model.generate(start, 20, temperature=0, **read)), dim=1)
    searched = beam_search(model, start, 1, 20, 99, **read)  # beyond the window of 17 too
    assert greedy.tolist() == [ranked[0].tokens for ranked in searched]


@options
def test_counts(tiny, keys):
    config = tiny(**ENCODER, **keys)
    with torch.device("meta"):
        model = GPT(config)
        tokens = torch.zeros(1, 17, dtype=torch.int64)
        lengths = torch.zeros(1, dtype=torch.int64)
    counts = parameter_counts(config)
    assert sum(counts.values()) == model.parameter_count()
    of_ffn = sum(p.numel() for block in model.stacks() for p in block.ffn.parameters())
    assert counts["ffn"] == of_ffn
    with FlopCounterMode(display=False) as counter:
        model(tokens, None, tokens, lengths)
    if keys.get("position") != "expe":  # all sequences of a batch share the products of its columns
        assert counter.get_total_flops() == 17 * flops_per_token(config)
    source, model = torch.zeros(1, 17, dtype=torch.int64), GPT(config).init_weights()
    cache = model.new_cache(1, 17, torch.bfloat16, source, torch.tensor([17]))
    held = sum(t.nbytes for block in (*cache.blocks, *cache.source[0]) for t in block if t.shape[-2] == 17)
    assert held == 17 * cache_bytes_per_token(config)


def test_every_parameter_gets_a_gradient_and_checkpointing_changes_none(build):
    model = build(**ENCODER, bias=True)
    tokens, source, lengths = batch()
    gradients = []
    for model.activation_checkpointing in (False, True):
        model.zero_grad()
        model(tokens, tokens, source, lengths).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for (name, _), one, other in zip(model.named_parameters(), *gradients, strict=True):
        assert one.any(), name
        assert torch.equal(one, other), name


@torch.no_grad()
def test_maps_to_the_residual_stream_start_smaller(tiny):
    """Two in each block of the encoder, three in each of the decoder."""
    torch.manual_seed(0)
    model = GPT(tiny(**ENCODER, n_embd=240, n_head=4)).init_weights()
    for block in model.encoder.blocks:
        for linear in (block.attention.proj, block.ffn.down):
            assert linear.weight.std() == pytest.approx(0.02 * 6**-0.5, rel=0.03)
    for block in model.blocks:
        for linear in (block.attention.proj, block.cross.proj, block.ffn.down):
            assert linear.weight.std() == pytest.approx(0.02 * 6**-0.5, rel=0.03)
        assert block.cross.query.weight.std() == pytest.approx(0.02, rel=0.03)


@options
def test_compiled_parts_give_the_same_losses(build, keys):
    torch._dynamo.reset()  # its limit counts what other tests have compiled, too
    model = build(**ENCODER, **keys)
    compile_parts(model, "eager", shapes=2)
    for inputs in (batch(), batch(target=5)):
        tokens, source, lengths = inputs
        with eager():
            expected = model(tokens, tokens, source, lengths)
        torch.testing.assert_close(model(tokens, tokens, source, lengths), expected)


def test_causal_attention_is_refused_in_the_encoder():
    for name, attention in ATTENTION.items():
        wrong = ModelConfig(n_embd=24, n_head=3, attention=name, encoder_layers=2).check()
        assert bool(wrong) != (name == "softmax") == attention.bidirectional
        if wrong:
            assert f"attention={name} is causal" in wrong[0]
    assert "must be at least 0" in ModelConfig(encoder_layers=-1).check()[0]


def test_a_model_with_an_encoder_needs_a_source(build):
    model = build(**ENCODER)
    tokens, _, lengths = batch()
    for call in (lambda: model(tokens), lambda: model.new_cache(3), lambda: list(model.generate([1], 3))):
        with pytest.raises(ValueError, match="encoder_layers=3: "):
            call()
    with pytest.raises(ValueError, match=r"18 tokens .*block_size=17"):
        model(tokens, None, torch.zeros(3, 18, dtype=torch.int64), lengths)
