"""Steps of decoding of the dense model, here and in other libraries, in turns.

    python results/speed/decoding_others.py
    python results/speed/decoding_others.py --gpt_fast=../gpt-fast    # a checkout, with its model too
    python results/speed/decoding_others.py --table                   # the tables of decoding_others.csv

GPT-2 small with random weights, half of a cache of 1,024 tokens full: `Decoder`, and transformers' class
with the same weights. gpt-fast has Llama's block: with a hidden width of 2,048, its blocks have as many
weights as those of GPT-2. Its model must take (tokens, positions), as at commit 03e10bc; later ones need
kernels of a GPU. Each decoder has a process of its own; they take turns, REPETITIONS times, each time
with the median of STEPS steps. Rows are appended as they are measured; what the file has is not measured
again.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from reports.plural import counted
from results.speed.turns import Rows, Worker, spread, started

DECODERS = {
    "Decoder": ("ours", "eager"),
    "Decoder, compiled": ("ours", "compiled"),
    "transformers, static cache": ("gpt2_static", "eager"),
    "transformers, static cache, compiled": ("gpt2_static", "compiled"),
    "transformers, dynamic cache": ("gpt2_dynamic", "eager"),
    "gpt-fast": ("gpt_fast", "eager"),
    "gpt-fast, compiled": ("gpt_fast", "compiled"),
}
# four sequences in bfloat16 take hours where a processor has no products of that dtype
KINDS = [("float32", "1"), ("float32", "4"), ("bfloat16", "1")]
STEPS, REPETITIONS = 10, 5
WARM_UP = 3  # steps, of which the first prepares or compiles


def measure(rows: Rows, dtype: str, sequences: str, threads: str, gpt_fast: str | None, overrides):
    names = [name for name in DECODERS if gpt_fast or "gpt-fast" not in name]
    wanted = [
        (name, dtype, sequences, threads, str(number))
        for number in range(1, REPETITIONS + 1)
        for name in names
    ]
    if not (wanted := [key for key in wanted if key not in rows.values]):
        return
    environment = {"OMP_NUM_THREADS": threads} | ({"GPT_FAST": gpt_fast} if gpt_fast else {})
    workers = {}
    for name in dict.fromkeys(key[0] for key in wanted):
        keys = (*DECODERS[name], dtype, sequences, threads, "config/gpt2.py", *overrides)
        workers[name] = Worker("decoding_worker.py", *keys, **environment)
    with started(workers, WARM_UP):
        for key in wanted:
            workers[key[0]].ask(STEPS)
            rows.add(key, workers[key[0]].answer())


def tables(rows: Rows) -> str:
    """Milliseconds of a step: the median (smallest to largest) of the repetitions."""
    lines = []
    for name in DECODERS:
        cells = {
            f"{dtype}, {counted(int(sequences), 'sequence')}": spread(rows.of(name, dtype, sequences))
            for dtype, sequences in KINDS
        }
        if any(cells.values()):
            lines.append({"decoder": name, **cells})
    return table(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--threads", default=str(os.cpu_count()))
    parser.add_argument("--gpt_fast", metavar="FOLDER", help="a checkout of pytorch-labs/gpt-fast")
    parser.add_argument("--table", action="store_true", help="print the table and measure nothing")
    given, overrides = parser.parse_known_args()  # keys of the model, such as --n_layer=2
    rows = Rows(given.csv, ["decoder", "dtype", "sequences", "threads", "repetition"], "ms")
    if not given.table:
        for dtype, sequences in KINDS:
            measure(rows, dtype, sequences, given.threads, given.gpt_fast, overrides)
    print(tables(rows))


if __name__ == "__main__":
    main()
