"""How long saving a checkpoint stops training, for both formats, beside a plain copy in memory.

    python results/checkpoint_pause/run.py --repetitions=5 --csv=results/checkpoint_pause/pauses.csv
    python results/checkpoint_pause/run.py --table --csv=results/checkpoint_pause/pauses.csv

One process, GPT-2 small with AdamW's moments. The three forms take turns. After each save the writing is
waited for, so that it does not disturb the next form.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tqdm import tqdm

import configurator
from model import GPT
from models import architecture
from reports.markdown_table import table
from training import checkpoint
from training.distributed import Ranks
from training.sharded_checkpoint import Saver

ROOT = Path(__file__).resolve().parents[2]
FORMS = ("a copy in memory", "sharded", "whole")
COLUMNS = ("form", "repetition", "gigabytes", "pause", "until written")


def state():
    """(model, optimizer) of which every parameter has both moments."""
    files = [str(ROOT / "config/gpt2.py"), str(ROOT / "config/size/small.py")]
    config = configurator.parse(architecture.ModelConfig, files)
    config.vocab_size = 50_304
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def tensors(model, optimizer):
    yield from model.state_dict().values()
    for slot in optimizer.state.values():
        yield from slot.values()


def measure(form: str, model, optimizer, folder: Path, step: int, saver: Saver) -> tuple[float, float]:
    """(seconds that training waits, seconds until the checkpoint is on disk)."""
    content = {"step": step}
    start = time.perf_counter()
    if form == "sharded":
        saver.save(content, model, optimizer, best=False)
        pause = time.perf_counter() - start
        saver.finish()
        return pause, time.perf_counter() - start
    if form == "whole":
        content |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoint.save(folder, step, content, keep=1, best=False)
    else:
        copies = [tensor.clone() for tensor in tensors(model, optimizer)]
        seconds = time.perf_counter() - start
        del copies
        return seconds, seconds
    seconds = time.perf_counter() - start
    return seconds, seconds


def summary(rows: list[dict]) -> str:
    shown = []
    for form in FORMS:
        group = [row for row in rows if row["form"] == form]
        line = {"form": form, "GB": group[0]["gigabytes"]}
        for key in ("pause", "until written"):
            times = [float(row[key]) for row in group]
            if form == "a copy in memory" and key == "until written":
                line[f"{key}, s"] = ""
            else:
                line[f"{key}, s"] = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        shown.append(line)
    return table(shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary one")
    parser.add_argument("--table", action="store_true", help="print a summary of the CSV, measure nothing")
    options = parser.parse_args()
    if options.table:
        print(summary(list(csv.DictReader(options.csv.open()))))
        return
    torch.manual_seed(0)
    model, optimizer = state()
    size = sum(tensor.nbytes for tensor in tensors(model, optimizer)) / 1e9
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, options.csv.open("w") as file:
        folders = {form: Path(folder) / form.split()[0] for form in FORMS}
        saver = Saver(folders["sharded"], Ranks(), keep=1)
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for repetition in tqdm(range(options.repetitions + 1)):
            for form in FORMS:
                times = measure(form, model, optimizer, folders[form], repetition + 1, saver)
                if repetition:  # the first time, memory is new to the process
                    cells = (form, repetition, f"{size:.2f}", *(f"{seconds:.3f}" for seconds in times))
                    writer.writerow(dict(zip(COLUMNS, cells, strict=True)))
                    file.flush()


if __name__ == "__main__":
    main()
