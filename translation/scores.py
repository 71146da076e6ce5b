"""BLEU (Papineni et al. 2002) and chrF (Popovic 2015) as sacrebleu computes them (Post 2018).

The signature of a score names its tokenization, its smoothing and sacrebleu's version. Scores of different
signatures cannot be compared.
"""

from host.packages import install

import re
from dataclasses import dataclass

from translation import TranslationError

TESTED = "2.6.0"
SCRIPTS = (
    "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",  # Han
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",  # kana
    "\u1100-\u11ff\uac00-\ud7af",  # Hangul
    "\u0e00-\u109f\u1780-\u17ff",  # Thai, Lao, Tibetan, Burmese, Khmer: no blanks between words
)


@dataclass
class Scores:
    """BLEU and chrF2 of a corpus, both 0 to 100."""

    bleu: float
    chrf: float


def tokenizer_of(references: list[str]) -> str:
    """sacrebleu's tokenizer for the language of the references, by its script.

    13a splits at blanks and punctuation, so a sentence of a script without blanks would be one word.
    """
    text = "".join(references)
    han, kana, hangul, unspaced = (len(re.findall(f"[{letters}]", text)) for letters in SCRIPTS)
    found = {"ja-mecab" if kana > han / 10 else "zh": han + kana, "ko-mecab": hangul, "char": unspaced}
    best = max(found, key=found.get)
    return best if found[best] > sum(map(str.isalpha, text)) / 5 else "13a"


def check_installed(tokenizer: str = "13a"):
    """Raises TranslationError, naming the command that installs it, without sacrebleu or its tokenizer."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise TranslationError(
            f"BLEU and chrF need sacrebleu ({error}): {install(f'sacrebleu=={TESTED}')}"
        ) from None
    try:
        BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError):
        raise TranslationError(
            f"BLEU of these references needs sacrebleu's tokenizer {tokenizer}: "
            f"{install(f'sacrebleu[{tokenizer[:2]}]=={TESTED}')}, or give --bleu_tokenizer=char, whose "
            "scores are higher and can be compared with each other only"
        ) from None


def score(
    hypotheses: list[str], references: list[str], tokenizer: str = "13a"
) -> tuple[Scores, dict[str, str]]:
    """(scores of the corpus, {metric: signature}). Raises TranslationError without sacrebleu."""
    check_installed(tokenizer)
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(tokenize=tokenizer), CHRF()
    scores = Scores(*(metric.corpus_score(hypotheses, [references]).score for metric in (bleu, chrf)))
    return scores, {"BLEU": str(bleu.get_signature()), "chrF2": str(chrf.get_signature())}
