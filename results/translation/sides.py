"""How many validation pairs have a side that stands in training word for word.

python data/libreoffice/prepare.py --language=fr --tokenizer=bpe:8192     # or another set of pairs
python results/translation/sides.py data/libreoffice/en_fr_bpe8192
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from corpus.loader import Dataset


def pairs(folder: str, split: str) -> list[tuple[bytes, bytes]]:
    """The tokens of both sides of each pair; a pair is source, end, target, end."""
    data = Dataset(folder, split, 1)
    ends = np.flatnonzero(data.tokens == data.meta["end_of_text"]) + 1
    sides = [side.tobytes() for side in np.split(data.tokens, ends)[:-1]]
    return list(zip(sides[::2], sides[1::2], strict=True))


def main(folder: str):
    train, validation = pairs(folder, "train"), pairs(folder, "val")
    sources, targets = map(set, zip(*train, strict=True))
    either = sum(source in sources or target in targets for source, target in validation)
    whole = len({*validation} & {*train})
    print(
        f"{folder}: of {len(validation):,} validation pairs, {either:,} have a side that is in training "
        f"({either / len(validation):.1%}), {whole:,} are there as a whole"
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(name)
