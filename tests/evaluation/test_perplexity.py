"""Sliding-window perplexity against loops that score one token at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluation import EvaluationError, texts
from evaluation.models import load
from evaluation.perplexity import check_layout, perplexity, windows

transformers = pytest.importorskip("transformers")


def naive(logits_of, stream, window, stride):
    """(summed nats, tokens): the layout written out, every token from a forward pass of its own."""
    nats, scored = [], set()
    begin = 0
    while True:
        end = min(begin + window, len(stream))
        for place in range(begin + 1, end):
            if place in scored:
                continue
            seen = torch.tensor(stream[begin:place])[None]
            row = logits_of(seen)[0, -1].double()
            nats.append(-row.log_softmax(-1)[stream[place]].item())
            scored.add(place)
        if end == len(stream):
            return math.fsum(nats), len(nats)
        begin += stride


# shorter than the window, as long, one token more, a stride more, no multiple of the stride
LENGTHS = [1, 2, 15, 16, 17, 18, 22, 23, 40, 61]


@torch.no_grad()
@pytest.mark.parametrize("keys", [{}, {"position": "rope"}, {"attention": "cattn_m", "ffn": "cffn_gated"}])
def test_equal_to_a_loop_over_tokens(loaded, stream, keys):
    tiny = loaded(**keys)
    for stride in (6, 16):
        for n in LENGTHS:
            nats, tokens = naive(tiny.model, stream(n), 17, stride)
            found = perplexity(tiny, [stream(n)], stride, batch_size=3)
            assert found["tokens"] == tokens == n
            assert found["loss"] == pytest.approx(nats / tokens, abs=1e-6)
            assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
            assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / n, rel=1e-6)


@torch.no_grad()
def test_equal_to_the_logits_of_transformers(tmp_path, stream):
    from tests.training.transformers_models import drawn, gpt2

    theirs = drawn(gpt2(vocab_size=257, n_positions=32))
    theirs.save_pretrained(tmp_path / "gpt2")
    ours = load(str(tmp_path / "gpt2"), tokenizer="bytes")
    assert ours.block_size == 32
    assert ours.parameters >= sum(p.numel() for p in theirs.parameters())
    for n in (20, 31, 32, 75):
        nats, tokens = naive(lambda seen: theirs(seen).logits, stream(n), 32, 12)
        found = perplexity(ours, [stream(n)], 12)
        assert found["tokens"] == tokens
        assert found["loss"] == pytest.approx(nats / tokens, abs=1e-6)


def test_several_streams_weigh_by_their_tokens(loaded, stream):
    tiny = loaded()
    parts = [stream(n, seed=n) for n in (3, 50, 17, 29)]
    alone = [perplexity(tiny, [part], 5) for part in parts]
    together = perplexity(tiny, parts, 5)
    assert together["tokens"] == 3 + 50 + 17 + 29
    expected = sum(r["loss"] * r["tokens"] for r in alone) / together["tokens"]
    assert together["loss"] == pytest.approx(expected, abs=1e-7)
    assert together["windows"] == sum(r["windows"] for r in alone)


def test_the_batch_changes_nothing(loaded, stream):
    tiny = loaded(attention="bigbird", ffn="cffn_product")
    parts = [stream(n, seed=n) for n in (3, 50, 17, 29)]
    losses = [perplexity(tiny, parts, 5, batch_size=n)["loss"] for n in (1, 2, 7, 100)]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-7)


@given(st.integers(1, 200), st.integers(2, 40), st.data())
def test_each_token_is_scored_once(count, window, data):
    stride = data.draw(st.integers(1, window - 1))
    layout = list(windows(count, window, stride))
    scored = [place for _, first, end in layout for place in range(first, end)]
    assert scored == list(range(1, count))
    for number, (begin, first, end) in enumerate(layout):
        assert begin == number * stride
        assert begin < first < end <= begin + window
        if number:
            assert first - begin == window - stride  # the context of the first new token
            assert end - first == min(stride, count - first)


def test_the_layout_of_the_papers():
    assert list(windows(2100, 1024, 512)) == [
        (0, 1, 1024), (512, 1024, 1536), (1024, 1536, 2048), (1536, 2048, 2100),
    ]  # fmt: skip


def test_longer_windows_than_those_of_training(loaded, stream):
    rope = loaded(position="rope")
    found = perplexity(rope, [stream(60)], 10, window=40)
    nats, tokens = naive(rope.model, stream(60), 40, 10)
    assert found["loss"] == pytest.approx(nats / tokens, abs=1e-6)


def test_end_of_text_has_no_bytes(loaded):
    tiny = loaded()
    text = np.array([256, 65, 66, 256, 67, 256])
    found = perplexity(tiny, [text], 5)
    assert (found["tokens"], found["bytes"]) == (5, 3)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 5 / 3 / math.log(2))
    assert perplexity(tiny, [text[3:4].repeat(2)], 5)["bits_per_byte"] is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"stride": 17}, r"stride=17 .* 1 and 16"),
        ({"stride": 0}, r"stride=0 must lie"),
        ({"stride": 5, "window": 18}, r"window=18 .*block_size=17.*position=learned"),
        ({"stride": 1, "window": 1}, r"window of 1 token\b"),
    ],
)
def test_layouts_that_are_refused(loaded, stream, keys, said):
    tiny = loaded()
    with pytest.raises(EvaluationError, match=said):
        perplexity(tiny, [stream(30)], **keys)
    with pytest.raises(EvaluationError, match=said):
        check_layout("tiny", tiny.config, **keys)


def test_texts_that_are_refused(loaded):
    tiny = loaded()
    with pytest.raises(EvaluationError, match="no token to score"):
        perplexity(tiny, [np.array([256])], 5)
    with pytest.raises(EvaluationError, match=r"token 300.* 257"):
        perplexity(tiny, [np.array([256, 300])], 5)


@torch.no_grad()
def test_a_softcap_is_not_rounded_twice(build):
    """Under autocast too, losses of tokens are those of training."""
    model = build(logit_softcap=15.0).eval()
    model.embedding.weight.mul_(100)  # the head's too
    tokens = torch.randint(100, (8, 17), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.token_losses(tokens, tokens.flip(0))
        torch.testing.assert_close(losses.mean(), model(tokens, tokens.flip(0)), rtol=1e-5, atol=0)


def test_losses_of_tokens_are_those_of_training(build):
    """Their mean is what the model returns in training, with left-out targets and without."""
    model = build().eval()
    tokens = torch.randint(100, (3, 17), generator=torch.Generator().manual_seed(0))
    targets = tokens.flip(0).clone()
    torch.testing.assert_close(model.token_losses(tokens, targets).mean(), model(tokens, targets))
    targets[:, ::2] = -100
    losses = model.token_losses(tokens, targets)
    assert (losses[:, ::2] == 0).all()
    torch.testing.assert_close(losses.sum() / 24, model(tokens, targets))
    assert (model.token_losses(tokens, torch.full_like(targets, -100)) == 0).all()


def test_joins(tmp_path):
    """What stands between the documents of one text."""
    from corpus.tokenizer import BytesTokenizer

    text = texts.Documents("two", "end_of_text", None, {}, ["ab", "cd\n"])

    def of(join=None, **keys):
        found = text.streams(BytesTokenizer(), join, **keys)
        return ["".join("|" if i == 256 else chr(i) for i in stream) for stream in found]

    assert of() == ["|ab|cd\n"]
    assert of("blank_line") == ["|ab\n\ncd\n"]
    assert of("space") == ["|ab cd\n"]
    assert of("separate") == ["|ab", "|cd\n"]
    assert of("separate", max_tokens=3) == ["|ab", "|c"]
    assert of(max_tokens=2) == ["|ab"]
