"""Ten translations of each model side by side, not chosen: evenly spaced held-out pairs.

    python results/translation/samples.py --out=out/translation_study

Reads what `study.py scores` left in the run folders (translations.txt), and writes samples.md beside this
script: the pairs of LibreOffice, with five beams, by the models of seed 1.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host.disk import write_whole  # noqa: E402

import configurator  # noqa: E402
from results.translation.study import MODELS, SMALL  # noqa: E402

SHOWN = 10
SECTION = "libreoffice"


@dataclass
class SamplesConfig:
    """Writes samples.md from the translations of `study.py scores`."""

    out: str = "out/translation_study"  # folder of the study's runs


def translated(file: Path) -> list[dict[str, str]]:
    """[{source, translation, reference}] of what five beams wrote of SECTION; ends without it."""
    text = file.read_text() if file.is_file() else ""
    parts = re.split(r"^--- (.*) ---$", text, flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if "5 beams" in heading and f"/{SECTION}/" in heading:
            pairs = text.strip().split("\n\n")
            lines = [[re.split(r":\s*", line, maxsplit=1) for line in pair.splitlines()] for pair in pairs]
            return [dict(pair) for pair in lines]
    sys.exit(f"{file} has nothing of {SECTION} with five beams: python results/translation/study.py scores")


def page(found: dict[str, list[dict[str, str]]]) -> str:
    """found: {model: its translations of the same pairs}"""
    first = next(iter(found.values()))
    lines = ["# Ten translations, not chosen", ""]
    if len(first) < SHOWN:
        sys.exit(
            f"{len(first)} pairs are translated, and {SHOWN} are shown: study.py scores without --limit"
        )
    step = len(first) // SHOWN
    lines += [f"One in {step} of {len(first):,} held-out pairs of LibreOffice; five beams, seed 1."]
    lines += ["SourceTexts and references: LibreOffice's help and interface, MPL-2.0."]
    for place in range(0, SHOWN * step, step):
        lines += ["", "| | |", "|---|---|", f"| source | {cell(first[place]['source'])} |"]
        lines += [f"| reference | {cell(first[place]['reference'])} |"]
        lines += [f"| {name} | {cell(pairs[place]['translation'])} |" for name, pairs in found.items()]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    return re.sub(r"([|<>*_`])", r"\\\1", text)


def main(config: SamplesConfig):
    found = {}
    for model in (model for model in MODELS if model not in SMALL):
        folders = sorted((Path(config.out) / "runs" / model.replace(" ", "_")).glob("*seed=1"))
        if not folders:
            sys.exit(
                f"{config.out} has no run of {model}, seed 1: python results/translation/study.py runs"
            )
        found[model] = translated(folders[0] / "translations.txt")
    write_whole(HERE / "samples.md", page(found))
    print(HERE / "samples.md")


if __name__ == "__main__":
    main(configurator.parse(SamplesConfig, sys.argv[1:]))
