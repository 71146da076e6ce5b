"""OpenAI's protocol of perplexity: plain text, per word of the published text, LAMBADA's final words."""

import math

import pytest
import torch

from evaluation import EvaluationError, texts
from evaluation.gpt2_protocol import (
    RULES,
    billion_words,
    check_texts,
    final_words,
    penn_treebank,
    plain_text,
    score,
    wikitext,
)
from evaluation.report import perplexity as report


@pytest.mark.parametrize(
    ("rule", "published", "plain"),
    [
        (wikitext, "M @-@ 82 begins at M @-@ 120 .", "M-82 begins at M-120."),
        (wikitext, "about 1 @,@ 000 men , 2 @.@ 5 % of them ;", "about 1,000 men, 2.5% of them;"),
        (wikitext, "the film ( 1996 ) was her first", "the film (1996) was her first"),
        (wikitext, 'he said , " I do n\'t . " Then', 'he said, "I don\'t." Then'),
        (wikitext, "Valkyria 's men could 've won", "Valkyria's men could've won"),
        (wikitext, "= Robert Boulter =", "= Robert Boulter ="),
        (penn_treebank, "it is n't $ N or N", "it isn't $N or N"),
        (penn_treebank, "the company 's <unk> said", "the company's <unk> said"),
        (
            billion_words,
            "The U.S. has $ 5 bn ( £ 3 bn ) , it said .",
            "The U.S. has $5 bn (£3 bn), it said.",
        ),
        (billion_words, '" We \'ll see , " he said .', '"We\'ll see," he said.'),
    ],
)
def test_each_rule(rule, published, plain):
    assert rule(published) == plain


def documents(name, rows):
    known = texts.NAMED[name]
    return texts.Documents(name, known.join, known.stride, {}, rows)


def test_words_are_those_of_the_published_text():
    plain, words = plain_text(documents("wikitext2", ["", " = A = ", " It is n't 1 @,@ 000 . ", ""]))
    assert words == 3 + 7
    assert plain.documents == ["\n= A =\nIt isn't 1,000.\n"]
    plain, words = plain_text(documents("lm1b", ["He left .", "She , too , left ."]))
    assert (plain.documents, words) == (["He left.", "She, too, left."], 3 + 6)


def test_nats_are_divided_by_words(loaded):
    """Against a loop over the tokens of the plain text."""
    tiny = loaded()
    rows = ["It is n't so .", "No , sir ."]
    found = score(tiny, documents("ptb", rows), 8, None, 3, "ptb")
    plain = [256, *b"It isn't so . No , sir ."]
    nats, window, begin, scored = 0.0, 17, 0, set()
    while len(scored) < len(plain) - 1:
        for place in range(begin + 1, min(begin + window, len(plain))):
            if place not in scored:
                scored.add(place)
                row = tiny.model(torch.tensor(plain[begin:place])[None])[0, -1].double()
                nats -= row.log_softmax(-1)[plain[place]].item()
        begin += 8
    assert found["words"] == 9
    assert found["tokens"] == len(plain) - 1
    assert found["loss"] == pytest.approx(nats / 9, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / 9), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / (len(plain) - 1), rel=1e-5)


@torch.no_grad()
def test_final_words(loaded):
    """Against one forward pass a token; contexts longer than the block lose their beginning."""
    tiny = loaded()
    rows = ["a b cd", "a far longer context than seventeen ef", "x y", "it g"]
    nats, right = [], 0
    for row in rows:
        context, _, word = row.rpartition(" ")
        whole = [256, *context.encode(), *f" {word}".encode()]
        whole, length = whole[-18:], len(word) + 1
        sums, hit = 0.0, True
        for place in range(len(whole) - length, len(whole)):
            logits = tiny.model(torch.tensor(whole[:place])[None])[0, -1].double()
            sums -= logits.log_softmax(-1)[whole[place]].item()
            hit &= logits.argmax().item() == whole[place]
        nats.append(sums)
        right += hit
    for batch_size in (1, 3):
        found = final_words(tiny, rows, batch_size)
        assert found["loss"] == pytest.approx(sum(nats) / 4, rel=1e-5)
        assert found["accuracy"] == right / 4
        assert (found["words"], found["tokens"]) == (4, 3 + 3 + 2 + 2)
    assert score(tiny, documents("lambada", rows), 8, None, 3, "x")["loss"] == found["loss"]


def test_final_words_that_a_model_knows_are_right(loaded):
    tiny = loaded()
    with torch.no_grad():
        tiny.model.embedding.weight.zero_()  # all tokens alike: the first one is the likeliest
    assert final_words(tiny, ["a b"], 1)["accuracy"] == 0
    assert final_words(tiny, ["a b"], 1)["loss"] == pytest.approx(2 * math.log(257), rel=1e-6)


def test_what_it_does_not_know_is_refused(loaded):
    check_texts([*RULES, "lambada"])
    with pytest.raises(EvaluationError, match="ag_news is none of them"):
        check_texts(["ptb", "ag_news"])
    with pytest.raises(EvaluationError, match="a single word"):
        final_words(loaded(), ["word"], 1)
    with pytest.raises(EvaluationError, match="longer than block_size=17"):
        final_words(loaded(), ["a " + 17 * "b"], 1)


def test_the_table_says_its_protocol(loaded):
    tiny = loaded()
    found = {"lambada": final_words(tiny, ["a b"], 1)}
    shown = report({"tiny": found}, True)
    assert "protocol: gpt2, nats and perplexity per word" in shown
    assert "accuracy" in shown
    assert "within 3 % of OpenAI's GPT-2" in shown
    assert "published: GPT2-xl (1.5B), OWT" in shown
