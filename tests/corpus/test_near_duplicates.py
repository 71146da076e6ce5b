"""Near-duplicates, against counting the windows one by one."""

import random

import pytest

from corpus.near_duplicates import EVERY, WINDOW, NearDuplicates


def words(seed, count):
    letters = random.Random(seed)
    return ["".join(letters.choices("abcdefghij", k=5)) for _ in range(count)]


def shared(words, others):
    """The share of all windows of `words` that stand in `others`."""
    windows, known = (
        {tuple(text[i : i + WINDOW]) for i in range(len(text) - WINDOW + 1)} for text in (words, others)
    )
    return len(windows & known) / len(windows)


@pytest.mark.parametrize(("new", "kept"), [(1900, True), (1300, True), (700, False), (50, False)])
def test_against_all_windows(new, kept):
    first = words(0, 2000)
    text = words(1, new) + first[: 2000 - new]
    assert (shared(text, first) <= 0.5) == kept
    found = NearDuplicates()
    assert found.add(" ".join(first))
    assert found.add("\n".join(text).title() + ".") == kept


def test_what_several_texts_said_together():
    found, parts = NearDuplicates(), [words(seed, 400) for seed in range(3)]
    for part in parts:
        assert found.add(" ".join(part))
    assert not found.add(" ".join(word for part in parts for word in part))


def test_a_text_that_was_left_out_does_not_count():
    found, first, rest = NearDuplicates(0.5), words(0, 1000), words(1, 800)
    assert found.add(" ".join(first))
    assert not found.add(" ".join(first + rest))
    assert found.add(" ".join(rest))


def test_short_texts():
    found = NearDuplicates()
    assert found.add("n 1: a small dog")
    assert found.add("n 1: a small cat")
    assert not found.add("N 1: a  small cat!")
    assert found.add("")
    assert not found.add("...")


def test_one_in_every_window_is_sampled():
    count = 20_000
    sampled = len(NearDuplicates()._sample(words(0, count)))
    assert abs(sampled * EVERY / count - 1) < 0.1
