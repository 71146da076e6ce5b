"""Translations -> a table of scores, and translations.txt."""

from host.disk import append_whole

import dataclasses
import sys
from pathlib import Path

from reports import markdown_table
from translation import scores
from translation.sources import SourceTexts


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


def measured(name: str, chosen: SourceTexts, translations: list[str], tokenizer: str) -> dict:
    """The scores of the translations by `name`, and of the sources in their place, for JSON.

    tokenizer: sacrebleu's, for BLEU.
    """
    references = list(map(one_line, chosen.references))
    found = {
        "texts": len(references),
        "left_out": chosen.left_out,
        "bleu_tokenizer": tokenizer,
        "scores": {},
    }
    # a copy scores above 0: technical terms, names and numbers are the same in both languages
    for row, texts in {name: translations, "copy of the source": chosen.texts}.items():
        result, found["signatures"] = scores.score(list(map(one_line, texts)), references, tokenizer)
        found["scores"][row] = dataclasses.asdict(result)
    return found


def table(found: dict) -> str:
    """found: of `measured`, with seconds and new_tokens."""
    texts, bleu = f"{found['texts']:,}", f"BLEU tok:{found['bleu_tokenizer']}"
    rows = [
        {"translation": name, bleu: f"{row['bleu']:.2f}", "chrF2": f"{row['chrf']:.2f}", "texts": texts}
        for name, row in found["scores"].items()
    ]
    signatures = [f"{metric}: {signature}" for metric, signature in found["signatures"].items()]
    speed = f"{found['new_tokens']:,} tokens in {found['seconds']:.1f} s"
    return "\n".join([markdown_table.table(rows), "", *signatures, speed])


def keep(path: Path, heading: str, chosen: SourceTexts, translations: list[str]) -> bool:
    """Appends the translations to a file. False, after saying why, where it cannot be written."""
    lines = [f"--- {heading} ---"]
    for place, (text, translation) in enumerate(zip(chosen.texts, translations, strict=True)):
        lines += ["", f"source:      {one_line(text)}", f"translation: {translation}"]
        if chosen.references is not None:
            lines.append(f"reference:   {one_line(chosen.references[place])}")
    try:
        append_whole(path, "\n".join(lines) + "\n\n")
    except OSError as error:
        print(f"translate.py: {error}", file=sys.stderr)
        return False
    return True
