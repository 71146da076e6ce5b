"""sample.py from its start to its end at two commits, in turns: until the first token, and until the last.

    git worktree add ../old e8ca05e
    python results/speed/sample_in_turns.py ../old .
    python results/speed/sample_in_turns.py ../old . --table   # the table of sample_in_turns.csv

Models of GPT-2 small's width with random weights, exported by each commit for itself; greedy, NEW tokens
after a prompt of 1 token and of 500. Embeddings of all but printable bytes are 0, so that the likeliest
token is never the end of the text. Rows are appended as they are measured; what the file has is not
measured again.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reports.markdown_table import table
from reports.plural import counted
from results.speed.decoding_in_turns import MODELS
from results.speed.turns import Rows

TREES, PROMPTS = ("old", "new"), ("1", "500")
NEW, ROUNDS = 300, 5

# runs at both commits
EXPORT = """
import sys
sys.path.insert(0, ".")
from host import openmp
from pathlib import Path
import torch
import configurator
from corpus.tokenizer import BytesTokenizer
from model import GPT
from models.architecture import ModelConfig
from training import pretrained

folder, *files = sys.argv[1:]
torch.manual_seed(0)
config = configurator.resolve(ModelConfig, ["--vocab_size=50257", *files])
model = GPT(config).init_weights()
model.embedding.weight.data[:32] = model.embedding.weight.data[127:] = 0
model(torch.randint(257, (1, 64)))  # in training mode: ladders have the range of what they have seen
source = pretrained.Source(Path("random"), config, model.state_dict, BytesTokenizer().to_json())
pretrained.export(source, Path(folder))
"""


def seconds(tree: str, folder: str, prompt: int) -> tuple[float, float]:
    """Until the first of NEW tokens is printed, and until sample.py has ended. Raises RuntimeError where it
    prints another number of tokens.
    """
    start = "x" * (prompt - 1)  # an end-of-text token comes first
    keys = [f"--start={start}", f"--max_new_tokens={NEW}", "--temperature=0", "--device=cpu"]
    begin, printed, first = time.perf_counter(), b"", None
    before = len(f"--- sample 1 of 1 ---\n{start}")
    command = [sys.executable, "sample.py", folder, *keys]
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, bufsize=0) as process:
        while piece := process.stdout.read(4096):
            printed += piece
            if first is None and len(printed) > before:
                first = time.perf_counter() - begin
    if process.returncode or len(printed) != before + NEW + len("\n"):
        raise RuntimeError(f"{command[1:]} in {tree} printed {printed[before:]!r}, not {NEW} tokens")
    return first, time.perf_counter() - begin


def measure(rows: Rows, trees: dict[str, str], model: str, overrides: list[str]):
    wanted = [
        (model, prompt, tree, str(number))
        for number in range(1, ROUNDS + 1)
        for prompt in PROMPTS
        for tree in TREES
    ]
    wanted = [key for key in wanted if (*key, "end") not in rows.values]
    with tempfile.TemporaryDirectory() as parent:
        folders = {}
        for tree in dict.fromkeys(key[2] for key in wanted):
            folders[tree] = str(Path(parent, tree))
            command = [sys.executable, "-c", EXPORT, folders[tree], *MODELS[model], *overrides]
            subprocess.run(command, cwd=trees[tree], stdout=subprocess.DEVNULL, check=True)
        for key in wanted:
            first, end = seconds(trees[key[2]], folders[key[2]], int(key[1]))
            rows.add((*key, "first token"), first)
            rows.add((*key, "end"), end)


def tables(rows: Rows) -> str:
    """Median seconds of both commits, and the median of old / new (smallest to largest) of the rounds."""
    lines = []
    for model, prompt in itertools.product(MODELS, PROMPTS):
        line = {"model": model, "prompt": counted(int(prompt), "token")}
        for until in ("first token", "end"):
            numbers = [str(number) for number in range(1, ROUNDS + 1)]
            pairs = [[rows.values.get((model, prompt, t, n, until)) for t in TREES] for n in numbers]
            if pairs := [pair for pair in pairs if None not in pair]:
                old, new = map(statistics.median, zip(*pairs, strict=True))
                ratios = sorted(a / b for a, b in pairs)
                spread = f"{statistics.median(ratios):.2f}; {ratios[0]:.2f} to {ratios[-1]:.2f}"
                line[f"s until the {until}, old, new"] = f"{old:.1f}, {new:.1f} ({spread})"
        if len(line) > 2:
            lines.append(line)
    return table(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "trees", nargs="*", metavar="TREE", help="the old and the new commit's working tree"
    )
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--models", default="dense,full")
    parser.add_argument("--table", action="store_true", help="print the table and measure nothing")
    given, overrides = parser.parse_known_args()  # keys of the model, such as --n_layer=2
    rows = Rows(given.csv, ["model", "prompt", "tree", "round", "until"], "seconds")
    if not given.table:
        for model in given.models.split(","):
            measure(rows, dict(zip(TREES, given.trees, strict=True)), model, overrides)
    print(tables(rows))


if __name__ == "__main__":
    main()
