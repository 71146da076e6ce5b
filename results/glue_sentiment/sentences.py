"""Rated sentences of film reviews in the format of GLUE's SST-2: out/sentiment/glue/SST-2/*.tsv.

    python results/glue_sentiment/sentences.py

They come with the package vaderSentiment (2.4 MB, fetched and not installed), each rated by about twenty
people from -4 to 4. The label is 1 if the mean rating is above 0, else 0. A hash of the sentence decides
the split.
"""

import io
import sys
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from corpus import DataError, packages  # noqa: E402
from corpus.splits import in_validation  # noqa: E402
from training.log import write_whole  # noqa: E402

PACKAGE = "vaderSentiment==3.3.2"
INNER, FILE = "/hutto_ICWSM_2014.tar.gz", "movieReviewSnippets_GroundTruth.txt"
OUT = ROOT / "out/sentiment/glue/SST-2"
DEV = 0.15  # share of the sentences that are for validation


def fetch() -> list[list[str]]:
    """[id, mean rating from -4 to 4, sentence] of every row. Raises DataError."""
    command = [*packages.PIP, "--no-binary", ":all:", PACKAGE]
    (inner,) = packages.files_of_package(command, lambda name: name.endswith(INNER)).values()
    with tarfile.open(fileobj=io.BytesIO(inner)) as opened:
        (member,) = (member for member in opened if member.name.endswith(FILE))
        text = opened.extractfile(member).read().decode("utf-8")
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()]


def labelled(rows: list[list[str]]) -> tuple[dict[str, int], Counter]:
    """({sentence: label}, {reason: how many were dropped})"""
    examples, dropped = {}, Counter()
    for _, rating, sentence in rows:
        sentence, rating = sentence.strip(), float(rating)
        if rating == 0:
            dropped["rated 0"] += 1
        elif sentence in examples:
            dropped["repeated"] += 1
        else:
            examples[sentence] = int(rating > 0)
    return examples, dropped


def main():
    examples, dropped = labelled(fetch())
    splits = {"train": {}, "dev": {}}
    for text, label in examples.items():
        splits["dev" if in_validation(text, DEV) else "train"][text] = label
    OUT.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = "".join(f"{text}\t{label}\n" for text, label in rows.items())
        write_whole(OUT / f"{split}.tsv", f"sentence\tlabel\n{lines}")
        print(f"{OUT / split}.tsv: {len(rows):,} sentences, {sum(rows.values()):,} positive")
    print("dropped: " + ", ".join(f"{count} {what}" for what, count in dropped.items()))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    try:
        main()
    except (DataError, OSError) as error:
        sys.exit(f"results/glue_sentiment/sentences.py: {error}")
