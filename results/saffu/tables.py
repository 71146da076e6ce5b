"""The paper's Tables 1 to 4 on our data: explicit SAFFU of all sizes, and what they must beat.

    python data/bible/prepare.py --tokenizer=bpe:2848
    python data/sotu/prepare.py --tokenizer=bpe:2848 --out=data/sotu/bpe2848
    OMP_NUM_THREADS=1 python results/saffu/tables.py run      # tables.csv, ngrams.csv; about an hour
    python results/saffu/tables.py check                      # five of the rows again, by train.py
    python results/saffu/tables.py page                       # tables.md and tables.png from the CSVs

`run` goes on where an earlier one ended: each row is written when it is known.
"""

import csv
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402

import configurator  # noqa: E402
from evaluation.ngrams import NAMES, Ngrams  # noqa: E402
from reports import picture  # noqa: E402
from results.saffu import cells, page  # noqa: E402

FOLDER = Path(__file__).parent
DATA = {"bible": "data/bible/bpe2848", "sotu": "data/sotu/bpe2848"}
MODES = ("sum", "cat")
KEYS = ("data", "b", "r", "block", "radius", "other")  # other: keys of train.py, as --other is given
FOUND = ("loss", "loss without end", "bits per byte")
MEASURED = tuple(f"{split} {name}" for split in ("train", "dev", "held") for name in ("perplexity", *FOUND))
COLUMNS = (*KEYS, *MEASURED, "seconds")
OF_PAPER = ("table", *KEYS[1:5], "train perplexity", "dev perplexity")
OF_NGRAMS = ("data", "model", *MEASURED[:8])
TEMPERATURES = (4, 2, 1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625)
ATTENTIONS = ("saffu_attention=negated", "saffu_attention=uniform")
HIDDEN = (64, 128, 512, 1024)
CHECKED = (("2", "2", "sum", "sum"), ("4", "8", "cat", "sum"), ("32", "8", "sum", "cat"),
           ("16", "16", "cat", "cat"), ("128", "2", "sum", "cat"))  # fmt: skip
CLOSE = 1e-4  # nats


@dataclass
class StudyConfig:
    """Explicit SAFFU of all sizes on two data sets, and n-gram models of the same tokens."""

    what: Literal["run", "check", "page"]  # compute the rows, compute some by train.py, or write the page
    out: str = "out/saffu_tables"  # folder of the runs of `check`


def planned() -> list[dict[str, str]]:
    """The keys of all rows, those of the same units one after the other."""
    rows = [("bible", b, r, block, radius, "")
            for b, r, radius, block in itertools.product(page.SIZES, page.SIZES, MODES, MODES)]  # fmt: skip
    of_speeches = itertools.product(page.SIZES, MODES, MODES)
    rows += [("sotu", b, 8, block, radius, "") for b, radius, block in of_speeches]
    for b, blocks in ((32, MODES), (128, ("sum",)), (128, ("cat",))):
        for data, other in itertools.product(DATA, ATTENTIONS):
            rows += [
                (data, b, 8, block, radius, other) for radius, block in itertools.product(MODES, blocks)
            ]
    for data in DATA:
        others = [f"saffu_hidden={bits}" for bits in (*HIDDEN, None)]
        others += [f"saffu_temperature={t}" for t in TEMPERATURES]
        others += [f"saffu_hidden=None saffu_temperature={t}" for t in TEMPERATURES if t <= 1]
        rows += [(data, 32, 8, "sum", "cat", other) for other in [*others, "saffu_priming=mean"]]
    return [dict(zip(KEYS, map(str, row), strict=True)) for row in rows]


def known(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV, none if there is no such file. Ends the program if it has other columns."""
    if not path.exists():
        return []
    with path.open() as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if tuple(reader.fieldnames or ()) != columns:
        sys.exit(
            f"tables.py: {path} has the columns {reader.fieldnames}, not {list(columns)}: move it away"
        )
    return rows


def append(path: Path, columns: tuple[str, ...], row: dict[str, object]):
    """Adds a row, and the header where the file is new; numbers get six digits behind the point."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: f"{v:.6f}" if isinstance(v, float) else v for key, v in row.items()})


def columns_of(split: str, found: dict[str, float]) -> dict[str, float]:
    return {f"{split} {name}": value for name, value in found.items()} | {
        f"{split} perplexity": math.exp(found["loss"])
    }


def run():
    path = FOLDER / "tables.csv"
    done = {tuple(row[key] for key in KEYS) for row in known(path, COLUMNS)}
    left = [row for row in planned() if tuple(row.values()) not in done]
    for name, folder in DATA.items():
        count_ngrams(name, folder)
    with tqdm(total=len(left), unit=" models", dynamic_ncols=True) as bar:
        for row in computed(left):
            append(path, COLUMNS, row)
            bar.update()


def computed(rows: list[dict[str, str]]) -> Iterator[dict[str, object]]:
    """The rows with their results. Units are kept as long as the next row needs them."""
    by = lambda *keys: lambda row: [row[key] for key in keys]  # noqa: E731
    for (_, other), group in itertools.groupby(rows, by("data", "other")):
        corpus = None
        for _, of_block in itertools.groupby(group, by("b")):
            source, blocks = None, {}
            for _, of_radius in itertools.groupby(of_block, by("r", "radius")):
                radius = None
                for row in of_radius:
                    start = time.process_time()
                    config = config_of(row)
                    corpus = corpus or cells.Corpus(config, held="temperature" in other)
                    if config.saffu_hidden is None:
                        found = cells.whole(config, corpus)
                    else:
                        source = source or cells.counted(config, corpus)
                        if row["block"] not in blocks:
                            blocks[row["block"]] = cells.unit(config, "block", corpus, source)
                        radius = radius or cells.unit(config, "radius", corpus, source)
                        found = cells.joined(config, corpus, [blocks[row["block"]], radius])
                    seconds = f"{time.process_time() - start:.1f}"
                    results = [columns_of(split, values) for split, values in found.items()]
                    yield row | {key: v for one in results for key, v in one.items()} | {"seconds": seconds}


def config_of(row: dict[str, str]):
    """The run of train.py of a row."""
    other = dict(one.split("=") for one in row["other"].split())
    sizes = {"saffu_block": row["b"], "saffu_radius": row["r"]}
    modes = {"saffu_block_mode": row["block"], "saffu_radius_mode": row["radius"]}
    return cells.config_of(DATA[row["data"]], **sizes, **modes, **other)


def count_ngrams(name: str, folder: str):
    """Writes the rows of a data set into ngrams.csv, unless they are there."""
    path = FOLDER / "ngrams.csv"
    if name in {row["data"] for row in known(path, OF_NGRAMS)}:
        return
    corpus = cells.Corpus(cells.config_of(folder))
    model = Ngrams(corpus.pieces, len(corpus.bytes), f"n-grams of {name}")
    rows = {order: {"data": name, "model": order} for order in NAMES}
    for split, windows in corpus.scored.items():
        found = [model.probabilities(window) for window in windows.numpy()]
        nats = torch.from_numpy(-np.log(np.concatenate(found, axis=1)))
        targets = windows[:, 1:].flatten()
        for row, of_order in zip(rows.values(), nats, strict=True):
            row |= columns_of(split, cells.summary(of_order, targets, corpus))
    for row in rows.values():
        append(path, OF_NGRAMS, row)


def check(out: Path):
    """Compares rows with runs of train.py. Ends the program with status 1 where one differs."""
    rows = {tuple(row[key] for key in KEYS): row for row in known(FOLDER / "tables.csv", COLUMNS)}
    wrong = 0
    for sizes in CHECKED:
        if (row := rows.get(("bible", *sizes, ""))) is None:
            sys.exit(
                f"tables.py: tables.csv has no row of b, r, block, radius = {', '.join(sizes)}: run first"
            )
        folder = out / "_".join(sizes)
        if not (ROOT / folder / "log.jsonl").exists():
            keys = ("saffu_block", "saffu_radius", "saffu_block_mode", "saffu_radius_mode")
            given = [f"--{key}={value}" for key, value in zip(keys, sizes, strict=True)]
            given += [f"--dataset={DATA['bible']}", "--saffu_only=True", "--saffu_tuning=0"]
            given += [f"--out_dir={folder}", "--resume=True"]
            subprocess.run(
                [sys.executable, "train.py", "config/paper/saffu.py", *given], cwd=ROOT, check=True
            )
        records = map(json.loads, (ROOT / folder / "log.jsonl").read_text().splitlines())
        (loss,) = (record["val_loss"] for record in records if "val_loss" in record)
        difference = abs(loss - float(row["dev loss"]))
        wrong += difference > CLOSE
        print(f"b, r, block, radius = {', '.join(sizes)}: {row['dev loss']} here, {loss:.6f} by train.py")
    if wrong:
        sys.exit(f"tables.py: {wrong} of {len(CHECKED)} differ by more than {CLOSE} nats")


def write_page():
    rows, ngrams, published = read()
    (FOLDER / "tables.md").write_text(page.text(rows, ngrams, published))
    picture.write(page.draw(rows, ngrams), FOLDER / "tables.png", own=True)


def read() -> tuple[page.Rows, page.Rows, page.Rows]:
    """The rows of the models, those of n-grams, and the paper's."""
    found = known(FOLDER / "tables.csv", COLUMNS), known(FOLDER / "ngrams.csv", OF_NGRAMS)
    return *found, known(FOLDER / "published.csv", OF_PAPER)


if __name__ == "__main__":
    options = configurator.parse(StudyConfig, sys.argv[1:], positional="what", files=False)
    if options.what == "run":
        run()
    elif options.what == "check":
        check(Path(options.out))
    else:
        write_page()
