"""The model: causal, documents apart, its counts in closed form, decoding equal to the forward pass."""

import dataclasses
import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from layers.saffu import SPECIAL
from models.architecture import ModelConfig
from models.kinds import built, flops_per_token, parameter_counts, without_embeddings
from models.saffu import Saffu

END = 3
KEYS = {
    "model": "saffu", "block_size": 17, "vocab_size": 50, "saffu_block": 6, "saffu_radius": 3,
    "saffu_block_width": 8, "saffu_radius_width": 7, "saffu_hidden": 10, "saffu_end_of_text": END,
}  # fmt: skip
VARIANTS = [
    {},
    {"saffu_block_mode": "cat", "saffu_radius_mode": "sum"},
    {"saffu_block": None},
    {"saffu_radius": None, "saffu_block": 30, "saffu_block_head": 4},
    {"saffu_hidden": None},
    {"saffu_hidden": None, "saffu_block_mode": "cat", "saffu_radius": 20, "saffu_radius_head": 1},
    {"saffu_block": 2, "saffu_radius": 2, "saffu_train_embeddings": True},
]


def config(**keys):
    return ModelConfig(**{**KEYS, **keys})


def model(scale=30.0, seed=0, **keys):
    """With weights large enough that every part matters."""
    torch.manual_seed(seed)
    made = built(config(**keys)).init_weights()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
        for unit in made.units:
            unit.embedding.abs_()
    return made


def tokens(length=17, batch=3, seed=1):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(50, (batch, length), generator=drawn).masked_fill_(
        torch.rand(batch, length, generator=drawn) < 0.1, END
    )


@torch.no_grad()
@pytest.mark.parametrize("keys", VARIANTS)
def test_no_token_sees_a_later_one(keys):
    made, given = model(**keys), tokens()
    before = made(given)
    for t in range(1, 17):
        for other in ((given[:, t] + 1) % 50, torch.full((3,), END)):
            changed = given.clone()
            changed[:, t] = other
            assert torch.equal(made(changed)[:, :t], before[:, :t])
    torch.testing.assert_close(before.softmax(-1).sum(-1), torch.ones(3, 17))


@torch.no_grad()
@pytest.mark.parametrize("keys", VARIANTS)
def test_every_token_within_reach_is_seen_and_none_of_another_document(keys):
    made = model(scale=10.0, **keys)
    given = torch.arange(4, 21)[None]
    block, radius = made.config.saffu_block or 2, made.config.saffu_radius or 1
    last = made(given)[0, -1]
    # the last block holds the tokens from (T - 1) // (b - 1) (b - 1) on
    reach = min(16 // (block - 1) * (block - 1), 17 - radius)
    for t in range(17):
        changed = given.clone()
        changed[:, t] = 30
        seen = not torch.equal(made(changed)[0, -1], last)
        assert seen == (t >= reach)
    given[:, 14] = END
    last = made(given)[0, -1]
    given[:, :14] = 30
    assert torch.equal(made(given)[0, -1], last)


@pytest.mark.parametrize("keys", VARIANTS)
def test_parameters_in_closed_form(keys):
    made = model(**keys)
    counts = parameter_counts(made.config)
    assert sum(counts.values()) == made.parameter_count()
    assert without_embeddings(counts) == counts["attention"] + counts["ffn"]


def test_parameters_of_the_papers_size():
    size = {"vocab_size": 2848, "saffu_block": 128, "saffu_radius": 8, "saffu_block_width": 128}
    for hidden in (256, 1024):
        counts = parameter_counts(config(**size, saffu_radius_width=32, saffu_hidden=hidden))
        frozen = (2848 + SPECIAL) * (128 + 32)
        assert sum(counts.values()) - frozen == 16_448 + 6_080 * hidden


@pytest.mark.parametrize("keys", VARIANTS)
def test_flops_in_closed_form(keys):
    """Counted for one prediction that is given its contexts alone: K places."""
    made = model(**keys)
    with FlopCounterMode(display=False) as counter:
        features = []
        for unit in made.units:
            X = torch.rand(unit.slots, unit.width)
            a = unit.weights((X[unit.head][None] @ X.mT)[None])[0]
            features.append((a.mT * X).flatten()[None] if unit.cat else a @ X)
        if made.config.saffu_hidden:
            pairs = zip(features, made.units, strict=True)
            features = [(h @ unit.decoder).softmax(-1) for h, unit in pairs]
        made.logits(torch.cat(features, -1))
    assert counter.get_total_flops() == flops_per_token(made.config)


@torch.no_grad()
@pytest.mark.parametrize("keys", VARIANTS)
def test_decoding_with_a_cache_equals_the_forward_pass(keys):
    made, given = model(**keys), tokens()
    whole = made(given)
    cache = made.new_cache(3)
    for begin, end in itertools.pairwise([0, 5, 6, 7, 12, 17]):
        wanted = torch.zeros(3, end - begin, dtype=torch.bool)
        wanted[:, -1] = True
        found = made.logits_at(given[:, begin:end], wanted, cache)
        torch.testing.assert_close(found, whole[:, end - 1])
    with pytest.raises(ValueError, match=r"18 tokens .*cache.* 17\b"):
        made.decode(given[:, :1], cache)
    cache.clear()
    torch.testing.assert_close(made.decode(given, cache), whole[:, -1])


def test_generation_goes_beyond_the_window():
    made = model()
    written = list(made.generate([END, 5, 6], 40, generator=torch.Generator().manual_seed(1)))
    assert len(written) == 40
    again = list(made.generate([END, 5, 6], 40, generator=torch.Generator().manual_seed(1)))
    assert again == written
    greedy = list(made.generate([END, 5], 4, temperature=0))
    context = [END, 5]
    for token in greedy:
        assert int(made(torch.tensor([context]))[0, -1].argmax()) == token
        context.append(token)


@torch.no_grad()
def test_losses():
    made, given, targets = model(), tokens(), tokens(seed=2)
    targets[0, :4] = -100
    losses = made.token_losses(given, targets)
    assert (losses[0, :4] == 0).all()
    scored = targets != -100
    torch.testing.assert_close(losses[scored].mean(), made(given, targets))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(given, targets), made(given, targets).float())
        assert made(given).dtype == torch.float32
        assert torch.equal(made.token_losses(given, targets), losses)
    longer = made(tokens(40))
    assert longer.isfinite().all()


def test_frozen_embeddings_get_no_gradient():
    for trained in (False, True):
        made = model(saffu_train_embeddings=trained)
        made(tokens(), tokens(seed=2)).backward()
        for unit in made.units:
            assert (unit.embedding.grad is not None) == trained
            assert unit.attention.grad.norm() > 0
            assert unit.decoder.grad.norm() > 0


def test_mistakes_are_told():
    def wrong(**keys):
        return " ".join(config(**keys).check())

    assert wrong() == ""
    assert "n_layer=3 is a key of model=gpt" in wrong(n_layer=3)
    assert "saffu_radius=3 is a key of model=saffu" in " ".join(ModelConfig(saffu_radius=3).check())
    assert "both None" in wrong(saffu_block=None, saffu_radius=None)
    assert "saffu_block must be at least 2" in wrong(saffu_block=1)
    assert "saffu_radius_head must be a slot" in wrong(saffu_radius_head=4)
    assert "2^5 - 1 bit-vectors" in wrong(saffu_block_width=5)
    assert "take at least 6" in wrong(saffu_hidden=5)
    assert "no token of a vocabulary of 50" in wrong(saffu_end_of_text=50)
    with pytest.raises(ValueError, match="vocab_size is not set"):
        Saffu(config(vocab_size=None))


def test_keys_without_effect_are_named():
    given = config(saffu_block=None, saffu_block_width=9)
    assert given.unused_keys() == ["saffu_block_width=9"]
    assert config().unused_keys() == []
    assert dataclasses.replace(given, saffu_block=4).unused_keys() == []
