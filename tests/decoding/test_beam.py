"""Beam search: beside greedy decoding, an enumeration of all texts, and transformers' own."""

import itertools
from functools import partial

import pytest
import torch

from decoding.beam import beam_search
from decoding.decoder import Decoder
from decoding.no_repeat import without_repeats
from layers import ATTENTION
from model import GPT
from models.architecture import ModelConfig
from tests.training.transformers_models import drawn, gpt2
from training import hugging_face


@pytest.fixture(scope="module")
def pair():
    """The same random GPT-2 in transformers and here. 13 tokens, so that an end comes often."""
    theirs = drawn(gpt2(vocab_size=13, n_positions=48), seed=3)
    config = hugging_face.model_config(theirs.config.to_dict())
    ours = GPT(config)
    ours.load_state_dict(hugging_face.our_weights(theirs.state_dict(), config, "memory"))
    return theirs, ours.eval()


PROMPTS = [[[3, 1, 4, 1, 5]], [[2], [9], [0]], [[6, 5, 3, 5, 7, 9, 6, 5], [1, 2, 3, 4, 5, 6, 7, 9]]]


@torch.no_grad()
@pytest.mark.parametrize("end", [8, 10])
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize(
    ("beams", "length_penalty", "size"),
    [
        (2, 1.0, 0),
        (5, 1.0, 0),
        (5, 1.0, 2),
        (3, 0.0, 0),
        (4, 2.0, 3),
        (3, -1.5, 0),
        (5, 0.6, 1),
        (12, 1.0, 2),
    ],
)
def test_equals_transformers(pair, end, prompts, beams, length_penalty, size):
    theirs, ours = pair
    expected = theirs.generate(
        torch.tensor(prompts), num_beams=beams, num_return_sequences=beams, length_penalty=length_penalty,
        no_repeat_ngram_size=size, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=end,
        attention_mask=torch.ones(len(prompts), len(prompts[0])), return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    forbid = partial(without_repeats, size=size, end=end) if size else None
    found = beam_search(ours, prompts, beams, 20, end, length_penalty, forbid)
    assert [len(ranked) for ranked in found] == [beams] * len(prompts)
    for place, one in enumerate(itertools.chain.from_iterable(found)):
        written = expected.sequences[place, len(prompts[0]) :].tolist()
        assert one.tokens == list(itertools.takewhile(lambda token: token != end, written))
        assert one.score == pytest.approx(float(expected.sequences_scores[place]), rel=1e-5, abs=1e-4)


@torch.no_grad()
def test_texts_end_or_are_cut(pair):
    """Both happen in the comparison above, and length_penalty chooses."""
    lengths = [len(one.tokens) for one in beam_search(pair[1], [[6, 5, 3, 5, 7, 9]], 5, 20, 8)[0]]
    assert min(lengths) < 10 < max(lengths) == 20
    lengths = [len(beam_search(pair[1], [[2]], 5, 20, 10, penalty)[0][0].tokens) for penalty in (-2.0, 2.0)]
    assert lengths[0] < lengths[1]


def greedy(model, prompts, new, end, **keys):
    """Texts of `generate`, up to the end."""
    drawn = torch.stack(list(model.generate(torch.tensor(prompts), new, temperature=0, **keys)), 1).tolist()
    return [list(itertools.takewhile(lambda token: token != end, row)) for row in drawn]


NEVER = 99  # an end that no text has
OPTIONS = [{"attention": name} for name in ATTENTION] + [
    {"attention": "softmax", "token_shift": True, "position": "rope"},
    {"attention": "softmax", "n_kv_head": 1, "position": "expe"},
    {"attention": "cattn_relative", "cattn_content": True, "token_shift": True},
    {"attention": "cattn_m", "cattn_heads": None, "cattn_strict": True, "ffn": "cffn_gated"},
]


@torch.no_grad()
@pytest.mark.parametrize("new", [13, 20])
@pytest.mark.parametrize("keys", OPTIONS, ids=lambda keys: " ".join(map(str, keys.values())))
def test_every_cache(build, monkeypatch, keys, new):
    """Reordered caches decode what the whole prefix does, also beyond the window; one beam is greedy."""
    model = build(vocab_size=12, **keys).eval()
    prompts = torch.randint(0, 12, (3, 4)).tolist()
    with_cache = beam_search(model, prompts, 4, new, NEVER, 0.5)
    found = beam_search(model, prompts, 1, new, NEVER)
    assert [one.tokens for (one,) in found] == greedy(model, prompts, new, NEVER)
    read, orders = [torch.tensor(prompts).repeat_interleave(4, 0)], []

    def whole(tokens, cache):
        """As if there was no cache: the prefix is read again in every step."""
        read.append(torch.cat((read[-1][orders[-1]], tokens), dim=1))
        return model.decode(read[-1])

    monkeypatch.setattr("model.Cache.reorder", lambda cache, rows: orders.append(rows))
    without = beam_search(model, prompts, 4, new, NEVER, 0.5, step=whole)
    assert len(orders) == min(new - 1, 13)  # then the window slides
    for ours, expected in zip(with_cache, without, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in expected]
        assert [one.score for one in ours] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert len({tuple(one.tokens) for one in with_cache[0]}) == 4


@torch.no_grad()
def test_each_prompt_keeps_its_source_beyond_the_window(build):
    model = build(vocab_size=12, block_size=6, encoder_layers=1).eval()
    prompts, source = torch.randint(0, 12, (3, 4)), torch.randint(0, 12, (3, 5))
    of_source = {"source": source, "lengths": torch.tensor([5, 2, 4])}
    together = beam_search(model, prompts, 3, 9, NEVER, **of_source)
    for row, found in enumerate(together):
        one = {name: held[row : row + 1] for name, held in of_source.items()}
        (alone,) = beam_search(model, prompts[row : row + 1], 3, 9, NEVER, **one)
        assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert len({tuple(found[0].tokens) for found in together}) == 3


@torch.no_grad()
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -2.0])
def test_enough_beams_find_all_texts(length_penalty):
    torch.manual_seed(1)
    keys = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 6, "vocab_size": 4}
    model = GPT(ModelConfig(**keys)).init_weights().eval()
    model.embedding.weight.mul_(40)
    end, prompt, new = 2, [0, 3], 4
    texts = [
        (*body, *closing)
        for n in range(new + 1)
        for body in itertools.product((0, 1, 3), repeat=n)
        for closing in ([(end,)] if n < new else [()])
    ]
    scores = {}
    for text in texts:
        tokens = torch.tensor([[*prompt, *text]])
        log_probs = model(tokens)[0, 1:-1].log_softmax(-1)
        total = log_probs[range(len(text)), list(text)].sum()
        scores[text] = float(total) / len(text) ** length_penalty
    expected = sorted(scores, key=scores.get, reverse=True)
    (found,) = beam_search(model, [prompt], 200, new, end, length_penalty)
    assert len(found) == len(texts) == 1 + 3 + 9 + 27 + 81
    assert [one.tokens for one in found] == [[t for t in text if t != end] for text in expected]
    assert [one.score for one in found] == pytest.approx([scores[text] for text in expected], rel=1e-5)


@torch.no_grad()
def test_compiled_steps_find_the_same(build):
    model = build(vocab_size=12).eval()
    prompts = [[1, 2, 3], [4, 4, 4]]
    expected = beam_search(model, prompts, 3, 10, 5)
    found = beam_search(model, prompts, 3, 10, 5, step=Decoder(model, "eager"))
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]


@torch.no_grad()
def test_only_tokens_below(build):
    (found,) = beam_search(build(vocab_size=64).eval(), [[1, 2]], 6, 12, 3, below=20)
    assert max(token for one in found for token in one.tokens) < 20


def test_weights_that_are_not_finite(build):
    model = build()
    model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="outputs are not finite"):
        beam_search(model, [[1]], 2, 3, end=0)


def test_what_it_refuses(build):
    model = build()
    with pytest.raises(ValueError, match="no tokens to continue"):
        beam_search(model, [[]], 2, 3, 0)
    with pytest.raises(ValueError, match="do not fit into block_size=17"):
        beam_search(model, [[1]], 2, 3, 0, window=18)
