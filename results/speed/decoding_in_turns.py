"""Steps of decoding at two commits, in turns: one process for each, of which one computes at a time.

    git worktree add ../old e8ca05e
    python results/speed/decoding_in_turns.py ../old . --csv=results/speed/decoding_in_turns.csv

GPT-2 small's width, half of the block in the cache. Each repetition is the median of STEPS steps of each
commit, one after the other. `path`: eager, or compiled by Inductor. Rows are appended as they are measured;
what the file has is not measured again.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
from pathlib import Path

SMALL = "config/size/small.py"
MODELS = {
    "dense": ["config/gpt2.py"],
    "F": ["config/cofrgenet_f.py", SMALL],
    "A": ["config/cofrgenet_a.py", SMALL],
    "full": ["config/cofrgenet.py", SMALL],
    "ours": ["config/ours/ladder_full.py", SMALL],
}
STEPS, REPETITIONS = 9, 5
FIELDS = ["model", "path", "dtype", "sequences", "threads", "old_ms", "new_ms"]

# runs at both commits, whose decoders have different names
WORKER = """
import sys, time
sys.path.insert(0, ".")
from host import openmp
import torch
import configurator
from model import GPT
from models.architecture import ModelConfig
try:
    from decoding.decoder import Decoder
except ImportError:
    from decoding.compiled import CompiledStep

path, dtype, sequences, threads, *files = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
config = configurator.resolve(ModelConfig, files)
config.vocab_size = 50257
model = GPT(config).init_weights().eval().to(getattr(torch, dtype))
compiled = path == "compiled"
if "Decoder" in globals():
    step = Decoder(model, "inductor" if compiled else None)
else:
    step = CompiledStep(model) if compiled else model.decode
cache, tokens = model.new_cache(int(sequences)), torch.randint(50257, (int(sequences), 1))
half = config.block_size // 2
with torch.no_grad():
    model.decode(torch.randint(50257, (int(sequences), half)), cache)
    for line in sys.stdin:
        cache.filled.fill_(half)
        start = time.perf_counter()
        step(tokens, cache)
        print(1e3 * (time.perf_counter() - start), flush=True)
"""


def measure(trees: list[str], model: str, *keys: str) -> list[list[float]]:
    """Medians of each repetition in milliseconds, one list for each tree."""
    command = [sys.executable, "-c", WORKER, *keys, *MODELS[model]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, cwd=tree, **pipes) for tree in trees]

    def one(worker):
        worker.stdin.write("\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    try:
        for worker in workers:
            for _ in range(3):  # the first prepares or compiles
                one(worker)
        found = [[] for _ in trees]
        for _ in range(REPETITIONS):
            steps = [[one(worker) for worker in workers] for _ in range(STEPS)]
            for number, times in enumerate(zip(*steps, strict=True)):
                found[number].append(statistics.median(times))
        return found
    finally:
        for worker in workers:
            worker.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs=2, metavar="TREE", help="the old and the new commit's working tree")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--paths", default="eager,compiled")
    parser.add_argument("--threads", default=str(os.cpu_count()))
    given = parser.parse_args()
    done = set()
    if given.csv.exists():
        with given.csv.open() as file:
            done = {tuple(row[key] for key in FIELDS[:5]) for row in csv.DictReader(file)}
    else:
        given.csv.write_text(",".join(FIELDS) + "\n")
    for dtype in given.dtypes.split(","):
        for path in given.paths.split(","):
            for sequences in ("1", "4"):
                for model in MODELS:
                    key = (model, path, dtype, sequences, given.threads)
                    if key in done:
                        continue
                    old, new = measure(given.trees, model, path, dtype, sequences, given.threads)
                    with given.csv.open("a") as file:
                        rows = csv.writer(file, lineterminator="\n")
                        rows.writerows(
                            [*key, f"{a:.3f}", f"{b:.3f}"] for a, b in zip(old, new, strict=True)
                        )
                    ratios = sorted(a / b for a, b in zip(old, new, strict=True))
                    print(
                        *key, f"{statistics.median(old):.1f} ms, {statistics.median(new):.1f} ms, "
                        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                        flush=True,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
