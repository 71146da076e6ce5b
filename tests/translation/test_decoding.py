"""Translations in batches: those of each source by itself."""

import itertools
import random

import pytest
import torch

from corpus.tokenizer import BytesTokenizer
from evaluation.models import Loaded
from translation import decoding
from translation.decoding import Decoding, batches, translate

END = 256


@pytest.fixture
def loaded(build):
    """A random model of bytes with a larger vocabulary, which ends some texts."""
    model = build(vocab_size=300, block_size=40, position="rope").eval()
    with torch.no_grad():
        model.embedding.weight[END] *= 4
    return Loaded(
        "random", None, model, BytesTokenizer(), model.config, END, torch.device("cpu"), "float32"
    )


@pytest.fixture
def sources():
    random.seed(5)
    return [[random.randrange(256) for _ in range(random.choice((1, 3, 4, 9)))] for _ in range(23)]


def alone(loaded, source, new, **keys):
    """What the model writes after one prompt, up to the end."""
    stream = loaded.model.generate([END, *source, END], new, below=257, **keys)
    return list(itertools.takewhile(lambda token: token != END, stream))


@torch.no_grad()
@pytest.mark.parametrize("how", [Decoding(batch_size=4), Decoding(beams=1), Decoding(0.7, top_k=1)])
def test_equal_to_each_source_alone(loaded, sources, how):
    if how.top_k:
        how = Decoding(temperature=0.7, top_k=1, batch_size=3)
    found = translate(loaded, sources, how)
    expected = [alone(loaded, source, 40 + 1 - 2 - len(source), temperature=0) for source in sources]
    assert found == expected
    assert len({len(text) for text in found}) > 1
    assert max(map(len, found)) > 20


@torch.no_grad()
def test_beams_of_a_batch(loaded, sources):
    how, sources = Decoding(beams=3, length_penalty=0.4, max_new_tokens=12), sources[:8]
    together = translate(loaded, sources, how)
    assert together == [translate(loaded, [source], how)[0] for source in sources]
    assert together != translate(loaded, sources, Decoding())


@torch.no_grad()
def test_equal_sources_are_translated_once_unless_tokens_are_drawn(loaded, monkeypatch):
    decoded, given = decoding._decoded, []

    def counting(loaded, step, sources, *rest):
        given.extend(sources)
        return decoded(loaded, step, sources, *rest)

    monkeypatch.setattr(decoding, "_decoded", counting)
    sources = [[1, 2], [3], [1, 2], [1, 2]]
    for how in (Decoding(max_new_tokens=5), Decoding(beams=2, max_new_tokens=5)):
        found = translate(loaded, sources, how)
        assert found == [translate(loaded, [source], how)[0] for source in sources]
        assert given[:2] == [[1, 2], [3]]
        assert len(given) == 2 + len(sources)
        given.clear()
    one, _, two, three = translate(loaded, sources, Decoding(temperature=1.0, max_new_tokens=5))
    assert len(given) == 4
    assert one != two != three


@torch.no_grad()
def test_how_long_a_translation_may_be(loaded, sources):
    """What --max_new_tokens says, or 50 more than the source, and no more than the block has room for."""
    loaded.tokenizer.end_of_text = loaded.end_of_text = 255  # the random model never writes it
    for how, longest in (
        (Decoding(max_new_tokens=7), lambda n: 7),
        (Decoding(beams=2, max_new_tokens=7), lambda n: 7),
        (Decoding(), lambda n: 40 + 1 - 2 - n),
    ):
        lengths = [len(text) for text in translate(loaded, sources, how)]
        assert lengths == [longest(len(source)) for source in sources]
    loaded.model.config.block_size = 200
    assert [len(text) for text in translate(loaded, [[1, 2]], Decoding())] == [52]


@torch.no_grad()
@pytest.mark.parametrize("beams", [None, 2])
def test_a_translation_may_repeat_its_source_but_not_itself(loaded, beams):
    source = [1, 2, 1, 2, 3]

    def forced(tokens, cache=None):
        """1 2 3 again and again"""
        logits = torch.full((len(tokens), 300), -20.0)
        logits[:, 7] = -10.0
        logits[torch.arange(len(tokens)), tokens[:, -1] % 3 + 1] = 0.0
        cache.filled.add_(tokens.shape[1])
        return logits

    loaded.model.decode = forced
    assert translate(loaded, [source], Decoding(beams=beams, max_new_tokens=6)) == [[2, 3, 1, 2, 3, 1]]
    how = Decoding(beams=beams, no_repeat_ngram=2, max_new_tokens=6)
    (found,) = translate(loaded, [source], how)
    assert found[:4] == [2, 3, 1, 2]
    assert found[4] != 3
    assert len(set(itertools.pairwise(found))) == 5


def test_batches(sources):
    found = list(batches(sources, 3))
    assert sorted(itertools.chain.from_iterable(found)) == list(range(len(sources)))
    lengths = [{len(sources[place]) for place in places} for places in found]
    assert all(len(one) == 1 for one in lengths)
    assert all(len(places) <= 3 for places in found)
    assert lengths == sorted(lengths, key=max, reverse=True)
    assert list(batches([], 3)) == []


def test_the_sampling_is_seeded(loaded, sources):
    one, two, other = (
        translate(loaded, sources, Decoding(temperature=1.0, top_p=0.9, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == two != other


def test_names_for_a_table():
    assert str(Decoding()) == "greedy"
    assert str(Decoding(beams=5, no_repeat_ngram=3)) == "5 beams, length_penalty 1, no_repeat_ngram 3"
    assert str(Decoding(temperature=0.5)) == "temperature 0.5, top_k None, top_p None, seed 1337"
