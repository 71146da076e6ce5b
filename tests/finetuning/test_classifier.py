"""The head reads the last token of a text, whatever stands behind it; batches and orders."""

import numpy as np
import pytest
import torch
from torch.nn.utils import get_total_norm

from corpus.tokenizer import BytesTokenizer
from finetune import FinetuneConfig
from finetuning import loop
from finetuning.classifier import Classifier
from finetuning.glue import Example
from finetuning.inputs import MULTIPLE, by_length, encode, padded, shortened, steps_in_epoch, training_order
from finetuning.tasks import TASKS
from layers import ATTENTION, FFN
from tests.model_variants import BLOCKS
from training.optimizer import Optimizer

MODELS = [{"attention": attention, "ffn": ffn} for attention in ATTENTION for ffn in FFN]
MODELS += [{**keys, "attention": "softmax"} for keys in BLOCKS if "cattn_value_heads" not in keys]
MODELS += [{**keys, "attention": "cattn_m"} for keys in BLOCKS if "cattn_value_heads" in keys]
MODELS += [{"position": "learned", "attention": "cattn_m", "cattn_strict": True}]
TEXTS = ["a", "bc", "many words", "as many as fit.."]  # with end-of-text 2 to 17 tokens


def inputs_of(*texts, max_length=17):
    examples = [Example((text,) if isinstance(text, str) else text, i % 2) for i, text in enumerate(texts)]
    return encode(examples, BytesTokenizer(), max_length, "test")


def test_two_texts_stay_apart_where_the_tokenizer_drops_line_breaks():
    class WithoutSpace(BytesTokenizer):
        def encode(self, text):
            return super().encode(text.strip())

    examples = [Example(texts, 0) for texts in (("ab", "c"), ("a", "bc"))]
    tokens = encode(examples, WithoutSpace(), 17, "test").tokens
    assert [row.tolist() for row in tokens] == [[256, 97, 98, 256, 99], [256, 97, 256, 98, 99]]


def small(inputs):
    """Bytes as tokens of the tests' vocabulary of 100."""
    for row in inputs.tokens:
        row %= 100
    return inputs


@torch.no_grad()
@pytest.mark.parametrize("keys", MODELS, ids=lambda keys: " ".join(map(str, keys.values())))
def test_padding_changes_nothing(build, keys):
    """A text by itself, at its own length, and the same text among longer ones, whatever the padding."""
    classifier = Classifier(build(**keys), 3).eval()
    classifier.classes.weight.normal_()
    inputs = small(inputs_of(*TEXTS))
    alone = [
        classifier(torch.from_numpy(row.astype(np.int64))[None], torch.tensor([len(row)]))
        for row in inputs.tokens
    ]
    for padding in (0, 99):
        tokens, lengths, _ = padded(inputs, np.arange(len(TEXTS)), padding, 17)
        assert tokens.shape == (len(TEXTS), 17)
        together = classifier(tokens, lengths)
        torch.testing.assert_close(together, torch.cat(alone), atol=2e-5, rtol=1e-4)
    assert together.std(0).min() > 1e-3  # the texts differ to the model


def test_the_head_reads_the_last_token(build):
    model = build()
    classifier = Classifier(model, 2).eval()
    inputs = small(inputs_of(*TEXTS))
    tokens, lengths, labels = padded(inputs, np.array([2, 0]), 5, 17)
    logits = classifier(tokens, lengths)
    for row, tokens_alone, length in zip(logits, tokens, lengths, strict=True):
        h = model.hidden(tokens_alone[None, :length])
        expected = classifier.classes.weight @ h[0, -1]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)
    expected = -sum(logits.log_softmax(-1)[i, label] for i, label in enumerate(labels))
    torch.testing.assert_close(classifier(tokens, lengths, labels), expected)


def test_encoding():
    single, pair = inputs_of("ab", "c"), inputs_of(("ab", "cde"), ("", "c"))
    assert [row.tolist() for row in single.tokens] == [[256, 97, 98], [256, 99]]
    assert [row.tolist() for row in pair.tokens] == [[256, 97, 98, 10, 99, 100, 101], [256, 10, 99]]
    assert single.labels.tolist() == pair.labels.tolist() == [0, 1]
    assert single.cut == pair.cut == 0


def test_long_examples_are_cut():
    single = inputs_of("abcdefghij", "ab", max_length=8)
    pair = inputs_of(("abcdefg", "xyz"), ("abc", "xyz"), max_length=8)
    texts = [bytes(row[1:].astype(np.uint8)) for inputs in (single, pair) for row in inputs.tokens]
    assert texts == [b"abcdefg", b"ab", b"abc\nxyz", b"abc\nxyz"]
    assert single.cut == pair.cut == 1


@pytest.mark.parametrize("room", range(1, 14))
@pytest.mark.parametrize("lengths", [(0, 5), (3, 9), (6, 6), (9, 3), (5, 0), (7, 6)])
def test_the_longer_text_is_cut(lengths, room):
    first, second = (list(range(n)) for n in lengths)
    expected = [first[:], second[:]]
    while len(expected[0]) + len(expected[1]) > room:
        longer = 0 if len(expected[0]) > len(expected[1]) else 1
        expected[longer].pop()
    assert shortened((first, second), room) == expected


def test_padded_widths():
    inputs = inputs_of("a" * 9, "b")
    tokens, lengths, labels = padded(inputs, np.array([0, 1]), 7, 32)
    assert tokens.shape == (2, 2 * MULTIPLE)
    assert lengths.tolist() == [10, 2]
    assert labels.tolist() == [0, 1]
    assert set(tokens[1, 2:].tolist()) == {7}
    assert padded(inputs, np.array([0]), 7, 13)[0].shape == (1, 13)  # never beyond the model's block


def test_an_epoch_is_every_example_once():
    random = np.random.Generator(np.random.PCG64(0))
    inputs = inputs_of(*("x" * random.integers(1, 200) for _ in range(1000)), max_length=256)
    batches = training_order(inputs, 4, seed=1, epoch=0)
    assert len(batches) == steps_in_epoch(inputs, 4) == 250
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    again, other = (training_order(inputs, 4, seed=1, epoch=epoch) for epoch in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other, strict=True))
    lengths = np.array([len(row) for row in inputs.tokens])
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < np.ptp(lengths) / 10  # little padding
    middles = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(middles, np.arange(250))[0, 1]) < 0.2  # not from short to long
    assert len(training_order(inputs, 64, 1, 0)) == steps_in_epoch(inputs, 64) == 16


def test_evaluation_reads_every_example_longest_first():
    inputs = inputs_of("aaa", "a", "aaaaa", "aa")
    assert [batch.tolist() for batch in by_length(inputs, 3)] == [[2, 0, 3], [1]]


@pytest.mark.parametrize("training", [True, False])
def test_predicting_leaves_the_mode_as_it_was(build, training):
    classifier = Classifier(build(), 2).train(training)
    loop.predict(classifier, small(inputs_of(*TEXTS)), 0, 2, torch.device("cpu"), "float32")
    assert {module.training for module in classifier.modules()} == {training}


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_the_rate_rises_and_falls_and_gradients_are_clipped(build, monkeypatch, clip):
    rates, norms, step = [], [], Optimizer.step

    def noted(self, **keys):
        rates.append({group["lr"] for group in self.param_groups})
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norms.append(float(get_total_norm([w.grad for w in weights if w.grad is not None])))
        return step(self, **keys)

    monkeypatch.setattr(Optimizer, "step", noted)
    train = small(inputs_of(*TEXTS * 4))
    config = FinetuneConfig(["x"], batch_size=2, epochs=2, warmup_share=0.25, grad_clip=clip)
    keys = (0, 1e-3, 1, config, torch.device("cpu"), "float32", "test")
    loop.finetune(Classifier(build(), 2), TASKS["rte"], train, {"validation": train}, *keys)
    rise, fall = [1e-3 * n / 5 for n in range(1, 5)], [1e-3 * (1 - n / 11) for n in range(12)]
    assert [some.pop() for some in rates] == pytest.approx(rise + fall)
    assert (max(norms) < 1.001e-3) == (clip > 0)


@torch.no_grad()
def test_logits_of_classes_are_not_rounded(build):
    classifier, tokens = Classifier(build(), 3).eval(), torch.randint(100, (2, 5))
    with torch.autocast("cpu", torch.bfloat16):
        logits = classifier(tokens, torch.tensor([5, 3]))
    assert not torch.equal(logits, logits.bfloat16().float())
