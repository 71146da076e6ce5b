"""BLEU and chrF: numbers that were computed elsewhere, and what is said without sacrebleu."""

import sys

import pytest

from translation import TranslationError, scores


def test_known_scores():
    """Three sentences of Lavik's report."""
    found, signatures = scores.score(
        [
            "Min bok ligger på bordet .",
            "Jeg liker å sitte på skolen når jeg jobber.",
            "Hvem kan kanskje unngå døden?",
        ],
        [
            "Boken min ligger på bordet.",
            "Jeg liker å sitte på skolen når jeg jobber.",
            "Hvem kan vel unnslippe døden?",
        ],
    )
    assert (round(found.bleu, 2), round(found.chrf, 2)) == (69.39, 73.36)
    assert signatures["BLEU"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{scores.TESTED}"
    assert signatures["chrF2"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(TranslationError, match=r"BLEU and chrF need sacrebleu .*: pip install sacrebleu=="):
        scores.score(["a"], ["a"])
