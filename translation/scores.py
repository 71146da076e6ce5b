"""BLEU (Papineni et al. 2002) and chrF (Popovic 2015) as sacrebleu computes them (Post 2018).

The signature of a score names its tokenization, its smoothing and sacrebleu's version. Scores of different
signatures cannot be compared.
"""

from dataclasses import dataclass

from translation import TranslationError

TESTED = "2.6.0"


@dataclass
class Scores:
    """BLEU and chrF2 of a corpus, both 0 to 100."""

    bleu: float
    chrf: float


def check_installed():
    """Raises TranslationError, naming the command that installs it, where there is no sacrebleu."""
    try:
        import sacrebleu.metrics  # noqa: F401
    except ImportError as error:
        raise TranslationError(
            f"BLEU and chrF need sacrebleu ({error}): pip install sacrebleu=={TESTED}"
        ) from None


def score(hypotheses: list[str], references: list[str]) -> tuple[Scores, dict[str, str]]:
    """(scores of the corpus, {metric: signature}). Raises TranslationError without sacrebleu."""
    check_installed()
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(), CHRF()
    scores = Scores(*(metric.corpus_score(hypotheses, [references]).score for metric in (bleu, chrf)))
    return scores, {"BLEU": str(bleu.get_signature()), "chrF2": str(chrf.get_signature())}
