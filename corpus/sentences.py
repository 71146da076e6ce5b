"""Aligned paragraphs in two languages -> aligned sentences.

A paragraph is cut where both sides have as many sentences, and stays whole elsewhere. Pairs that are no
translations of sentences are left out: fewer than 3 or more than 80 words in the source, a side more than
2.5 times as long as the other, two equal sides, and repetitions.
"""

import re
from collections.abc import Iterable, Iterator

from corpus.splits import Pair

Section = list[tuple[str, str]]  # (kind, text) of each block
# a blank behind the end of a sentence, perhaps with a closing mark, and before a capital, perhaps with an
# opening mark; not behind single letters, as in "e.g." and "J. Smith"
END = re.compile(
    r"""(?:(?<=[.!?…])(?<!\b[^\W\d_]\.)|(?<=[.!?…]["'”»)])|(?<=[.!?…]\s»))\s+"""
    r"""(?=["'“„«(]?\s?[^\W\d_a-zà-öø-ÿ])"""
)
WORDS = range(3, 81)
RATIO = 2.5  # of the numbers of characters


def sentences(paragraph: str) -> list[str]:
    return END.split(paragraph)


def aligned(source: str, target: str) -> list[tuple[str, str]]:
    """The sentences of both sides, or both sides whole."""
    sources, targets = sentences(source), sentences(target)
    return list(zip(sources, targets, strict=True)) if len(sources) == len(targets) else [(source, target)]


def pairs_of(paragraphs: Iterable[Pair]) -> list[Pair]:
    """The pairs of sentences of aligned paragraphs, each once, in order. They keep their groups."""
    found: dict[tuple[str, str], Pair] = {}
    for paragraph in paragraphs:
        for sides in aligned(paragraph.source, paragraph.target):
            source, target = (" ".join(side.split()) for side in sides)
            if source != target and fits(source, target):
                found.setdefault((source, target), Pair(source, target, paragraph.group))
    return list(found.values())


def fits(source: str, target: str) -> bool:
    lengths = len(source), len(target)
    return len(source.split()) in WORDS and max(lengths) <= RATIO * min(lengths)


def aligned_sections(source: list[Section], target: list[Section], group: str) -> Iterator[Pair]:
    """Pairs of the blocks of two texts with the same number of sections, where a section has the same kinds
    of blocks on both sides.
    """
    if len(source) != len(target):
        return
    for ours, theirs in zip(source, target, strict=True):
        if [kind for kind, _ in ours] == [kind for kind, _ in theirs]:
            yield from (Pair(a, b, group) for (_, a), (_, b) in zip(ours, theirs, strict=True))
