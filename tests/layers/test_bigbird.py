"""Causal BigBird: its pattern against the paper's, its outputs against loops over tokens and blocks."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from layers.attention import SoftmaxAttention
from layers.bigbird import BigBird, attended_blocks
from model import GPT, parameter_counts
from models.architecture import ModelConfig

DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
# block, g, w, r of sequences of at most 17 tokens
PATTERNS = [
    (2, 1, 3, 1),
    (4, 1, 3, 3),
    (3, 2, 1, 1),
    (1, 0, 5, 2),
    (5, 0, 1, 0),
    (2, 3, 7, 2),
    (64, 1, 3, 3),
]
patterns = pytest.mark.parametrize("pattern", PATTERNS)
ignore_slow = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def keys(pattern, **more):
    names = ("bigbird_block", "bigbird_global", "bigbird_window", "bigbird_random")
    return {"attention": "bigbird", **dict(zip(names, pattern, strict=True)), **more}


def layer(config, index=0, dtype=torch.float32):
    torch.manual_seed(0)
    made = BigBird(config, index)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.3)
    return made.to(dtype)


def heads(length, n_head=3, batch=2, dtype=torch.float32):
    return [torch.randn(batch, n_head, length, 8, dtype=dtype) for _ in range(3)]


def naive_mask(made, pattern, length):
    """Token by token; of the layer it takes the random blocks only, and checks that they are allowed."""
    size, first, window, drawn = pattern
    mask = torch.zeros(made.n_head, length, length, dtype=torch.bool)
    for head in range(made.n_head):
        for t in range(length):
            i = t // size
            allowed = [j for j in range(i) if j >= first and j < i - (window - 1) / 2]
            random = [j for j in allowed if made.blocks[head, i, j]]
            assert len(random) == min(drawn, len(allowed))
            for s in range(t + 1):
                j = s // size
                mask[head, t, s] = j < first or abs(i - j) <= (window - 1) / 2 or j in random
    return mask


@patterns
@pytest.mark.parametrize("length", [1, 2, 13, 17])
def test_mask_is_the_papers_below_the_diagonal(tiny, pattern, length):
    made = layer(tiny(**keys(pattern)))
    mask = made.dense_mask(length)
    assert torch.equal(mask, naive_mask(made, pattern, length))
    assert not mask.triu(1).any()
    assert mask.diagonal(dim1=-2, dim2=-1).all()


@patterns
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_a_loop_over_tokens(tiny, pattern, dtype):
    made = layer(tiny(**keys(pattern)), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    x = torch.randn(2, 13, 24, dtype=made.qkv.weight.dtype)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        found = made(x)
    w = {name: p.detach().double() for name, p in made.named_parameters()}
    q, k, v = (x.double() @ w["qkv.weight"].T).chunk(3, -1)
    mask = naive_mask(made, pattern, 13)
    rows = torch.empty(2, 13, 24, dtype=torch.float64)
    for head in range(3):
        part = slice(8 * head, 8 * head + 8)
        for t in range(13):
            seen = mask[head, t].nonzero()[:, 0]
            scores = (k[:, seen, part] @ q[:, t, part, None])[..., 0] / 8**0.5
            rows[:, t, part] = (scores.softmax(-1)[:, None] @ v[:, seen, part])[:, 0]
    expected = rows @ w["proj.weight"].T
    tolerance = DTYPES[dtype] * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def by_blocks(made, q, k, v):
    """Each block of queries against the blocks that it attends to, and against no others."""
    size, length = made.block, q.shape[-2]
    out = torch.empty_like(v)
    cuts = [slice(s, min(s + size, length)) for s in range(0, length, size)]
    for head in range(made.n_head):
        for i, own in enumerate(cuts):
            seen = [j for j in range(i + 1) if made.blocks[head, i, j]]
            keys, values = (torch.cat([y[:, head, cuts[j]] for j in seen], dim=1) for y in (k, v))
            scores = q[:, head, own] @ keys.mT / q.shape[-1] ** 0.5
            tokens = own.stop - own.start
            future = torch.zeros(tokens, keys.shape[1], dtype=torch.bool, device=q.device)
            future[:, -tokens:] = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
            out[:, head, own] = scores.masked_fill(future, float("-inf")).softmax(-1) @ values
    return out


@patterns
@pytest.mark.parametrize("length", [1, 7, 17])
def test_masking_and_going_by_blocks_are_the_same(tiny, pattern, length):
    made = layer(tiny(**keys(pattern)))
    q, k, v = heads(length, dtype=torch.float64)
    torch.testing.assert_close(made.attend(q, k, v), by_blocks(made, q, k, v), rtol=0, atol=1e-12)


@patterns
def test_flops_are_those_of_going_by_blocks(tiny, pattern):
    config = tiny(**keys(pattern))
    made = layer(config)
    for length in (5, 17):
        with FlopCounterMode(display=False) as counter:
            made.proj(by_blocks(made, *heads(length, batch=1)).transpose(1, 2).flatten(-2))
            made.qkv(torch.zeros(1, length, 24))
        sizes = [min(made.block, length - start) for start in range(0, length, made.block)]
        mirrored = counter.get_total_flops() - 2 * 24 * length * 4 * 24 - 4 * 24 * sum(n * n for n in sizes)
        expected = (counter.get_total_flops() + mirrored) // length
        assert expected == BigBird.flops_per_token(config, length)


def test_flops_are_those_of_dense_attention_where_all_is_attended(tiny):
    for block in (1, 4, 17, 40):
        config = tiny(bigbird_block=block, bigbird_random=17, attention="bigbird")
        dense = SoftmaxAttention.flops_per_token(config, 17)
        assert BigBird.flops_per_token(config, 17) == dense


@ignore_slow
def test_grouped_queries_share_keys_and_values(tiny):
    """As with copies of the heads of k and v."""
    made = layer(tiny(**keys((16, 1, 3, 2), n_head=4, n_embd=32, n_kv_head=2, block_size=200)))
    (q, *_), (k, v, _) = heads(200, 4), heads(200, 2)
    expected = by_blocks(made, q, *(y.repeat_interleave(2, dim=1) for y in (k, v)))
    for attend in (made.attend, made.attend_by_tiles):
        torch.testing.assert_close(attend(q, k, v), expected, rtol=0, atol=2e-6)


@ignore_slow
@pytest.mark.parametrize(
    ("pattern", "block_size"),
    [((16, 1, 3, 2), 400), ((64, 1, 3, 0), 700), ((128, 1, 1, 1), 700), ((48, 0, 3, 1), 500)],
)
def test_masking_and_flex_attention_are_the_same(tiny, pattern, block_size):
    """Forward only: FlexAttention has no backward pass on the CPU."""
    made = layer(tiny(**keys(pattern, block_size=block_size)))
    for length in (block_size, 257, 128, 5):
        q, k, v = heads(length, batch=1)
        torch.testing.assert_close(made.attend_by_tiles(q, k, v), made.attend(q, k, v), rtol=0, atol=2e-6)


@pytest.mark.parametrize("pattern", [(16, 1, 3, 2), (64, 1, 3, 0), (128, 1, 1, 1), (48, 0, 3, 1)])
@pytest.mark.parametrize("length", [700, 400, 129, 1])
def test_tiles(tiny, pattern, length):
    """Skipped where the mask is empty, whole where it is full, and the mask is asked in all others."""
    made = layer(tiny(**keys(pattern, block_size=700)))
    found = made.tile_mask(length)
    tile = found.BLOCK_SIZE[0]
    assert tile % 128 == 0
    assert tile == pattern[0] or pattern[0] != 128
    mask = made.dense_mask(length)
    count = -(-length // tile)
    whole = torch.zeros(3, count, count, dtype=torch.bool)
    for head, i in ((head, i) for head in range(3) for i in range(count)):
        full = found.full_kv_indices[0, head, i, : found.full_kv_num_blocks[0, head, i]]
        whole[head, i, full.long()] = True
        for j in range(count):
            inside = mask[head, tile * i : tile * (i + 1), tile * j : tile * (j + 1)]
            assert found.to_dense()[0, head, i, j] == inside.any()
            if whole[head, i, j] or inside.numel() == tile**2:
                assert whole[head, i, j] == inside.all()
    if pattern[0] == 128 and length == 700:
        assert torch.equal(whole[:, :5, :5], made.blocks[:, :5, :5].tril(-1))


def test_flex_attention_compiles_into_one_graph(tiny, monkeypatch):
    """With its gradients: run without kernels they would work on the CPU, were they not refused."""
    torch._dynamo.reset()
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *heads: None)
    made = layer(tiny(**keys((16, 1, 3, 2), block_size=300)))
    compiled = torch.compile(made.attend_by_tiles, fullgraph=True, dynamic=False, backend="aot_eager")
    inputs = [y.requires_grad_() for y in heads(257)]
    found, expected = compiled(*inputs), made.attend(*inputs)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    gradients = (torch.autograd.grad((out * weight).sum(), inputs) for out in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("pattern", [(64, 1, 3, 3), (128, 1, 3, 2), (48, 1, 3, 1), (4, 1, 3, 1)])
@pytest.mark.parametrize("length", [1024, 700, 17])
def test_compiled_for_a_gpu_it_is_the_masked_attention(tiny, pattern, length):
    """FlexAttention's own kernels, forward and backward, in bfloat16."""
    torch._dynamo.reset()
    config = tiny(**keys(pattern, block_size=1024, n_embd=3 * 64))
    made = layer(config).cuda()
    made.init_weights()
    x = torch.randn(2, length, 3 * 64, device="cuda", requires_grad=True)
    results = []
    for call in (torch.compile(made, fullgraph=True, dynamic=False), made):
        with torch.autocast("cuda", torch.bfloat16):
            out = call(x)
        gradients = torch.autograd.grad(out.float().sin().sum(), [x, *made.parameters()])
        results.append([out, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-2 * expected.abs().max().item())


@pytest.mark.parametrize("block", [1, 2, 4, 17, 64])
def test_with_as_many_random_blocks_as_there_are_it_is_causal_attention(tiny, block):
    made = layer(tiny(**keys((block, 1, 3, 17))), dtype=torch.float64)
    assert torch.equal(made.dense_mask(17), torch.ones(3, 17, 17, dtype=torch.bool).tril())
    dense = SoftmaxAttention(tiny()).double()
    dense.load_state_dict(made.state_dict())
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(made(x), dense(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("drawn", "density"), [(0, 0.145), (1, 0.196), (3, 0.286), (5, 0.360)])
def test_density(drawn, density):
    """Of all 1024 x 1024 pairs, with blocks of 64 as published."""
    made = BigBird(ModelConfig(n_head=2, n_embd=4, bigbird_random=drawn))
    assert made.dense_mask(1024).double().mean().item() == pytest.approx(density, abs=5e-4)


def test_the_published_size_may_be_the_pairs_attended_to():
    """GPT2-xl with its attention weights times the density of r = 3: 1.21B."""
    config = ModelConfig(
        n_head=25, n_layer=48, n_embd=1600, vocab_size=50257, attention="bigbird", bias=True
    )
    made = BigBird(config)
    counts = parameter_counts(config)
    density = made.dense_mask(1024).double().mean().item()
    found = sum(counts.values()) - (1 - density) * counts["attention"]
    assert found / 1e9 == pytest.approx(1.21, abs=0.005)


def test_random_blocks_differ_by_layer_head_and_seed_only():
    def pattern(layer=0, **more):
        config = ModelConfig(**{"n_head": 4, "n_embd": 8, "bigbird_block": 16, **more})
        return torch.tensor(attended_blocks(config, layer))

    first = pattern()
    assert torch.equal(first, pattern())
    assert torch.equal(first, pattern(n_embd=16, dropout=0.1, n_layer=3))
    assert len({tuple(head.flatten().tolist()) for head in first}) == 4
    assert not torch.equal(first, pattern(layer=1))
    assert not torch.equal(first, pattern(bigbird_seed=1))
    assert torch.equal(first[:, :20, :20], pattern(block_size=320))
    assert torch.equal(first[:2], pattern(n_head=2))


def test_the_pattern_is_the_one_that_checkpoints_count_on():
    """The random block of each row of two heads: a checkpoint holds the seed alone."""
    config = ModelConfig(
        n_head=2, n_embd=4, block_size=8, bigbird_block=1, bigbird_random=1, bigbird_seed=1
    )
    blocks = attended_blocks(config, 2)
    drawn = [[int(blocks[head, i, 1 : i - 1].argmax()) + 1 for i in range(3, 8)] for head in range(2)]
    assert drawn == [[1, 1, 2, 2, 2], [1, 1, 3, 4, 1]]


def test_random_blocks_are_drawn_evenly():
    """Row 31 of 64 heads draws 3 of blocks 1 .. 29."""
    config = ModelConfig(n_head=64, n_embd=64, block_size=32, bigbird_block=1)
    drawn = torch.tensor(attended_blocks(config, 0))[:, 31, 1:30].sum(0)
    assert drawn.sum() == 64 * 3
    assert 0 < drawn.min() <= drawn.max() < 20


def test_the_pattern_survives_the_meta_device_and_is_not_saved(tiny):
    config = tiny(**keys((2, 1, 3, 1)), n_layer=3)
    plain = GPT(config)
    with torch.device("meta"):
        model = GPT(config)
    assert model.blocks[0].attention.blocks.is_meta
    model.to_empty(device="cpu").init_weights()
    for index, (block, other) in enumerate(zip(model.blocks, plain.blocks, strict=True)):
        expected = torch.tensor(attended_blocks(config, index))
        assert torch.equal(block.attention.blocks, expected)
        assert torch.equal(other.attention.blocks, expected)
    assert not torch.equal(plain.blocks[0].attention.blocks, plain.blocks[1].attention.blocks)
    assert not any(name.endswith("blocks") for name in model.state_dict())


@patterns
def test_a_prefix_gives_the_same_outputs(tiny, pattern):
    made = layer(tiny(**keys(pattern)), dtype=torch.float64)
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    for length in (1, 2, 11):
        torch.testing.assert_close(made(x[:, :length]), made(x)[:, :length], rtol=0, atol=1e-12)


@patterns
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_future_has_no_influence(tiny, pattern, dtype):
    made = layer(tiny(**keys(pattern)))
    x = torch.randn(2, 17, 24)
    for s in (1, 7, 16):
        changed = x.clone()
        changed[:, s:] += torch.randn(2, 17 - s, 24)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.no_grad():
            before, after = made(x), made(changed)
        assert torch.equal(before[:, :s], after[:, :s])
        assert not torch.equal(before[:, s:], after[:, s:])


@ignore_slow
@patterns
def test_rows_sum_to_one(tiny, pattern):
    made = layer(tiny(**keys(pattern)))
    q, k, v = heads(17)
    for attend in (made.attend, made.attend_by_tiles):
        torch.testing.assert_close(attend(q, k, torch.ones_like(v)), torch.ones_like(v))


def test_refuses_more_tokens_than_the_pattern_has(tiny):
    with pytest.raises(ValueError, match=r"18 tokens .*BigBird.* 17\b"):
        layer(tiny(attention="bigbird"))(torch.zeros(1, 18, 24))


def test_dropout_acts_on_weights_and_output_in_training(tiny):
    made = layer(tiny(attention="bigbird", dropout=0.5))
    x = torch.randn(2, 17, 24)
    assert 0.4 < (made(x) == 0).float().mean() < 0.6
    made.dropout.p = 0.0
    assert not torch.equal(made(x), made(x))
    assert torch.equal(made.eval()(x), made(x))


def test_counts(tiny):
    config = tiny(attention="bigbird", bias=True)
    found = sum(p.numel() for p in layer(config).parameters())
    assert found == BigBird.parameter_count(config) == SoftmaxAttention.parameter_count(config)
