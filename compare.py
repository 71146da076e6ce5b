"""One table and one picture of several runs.

python compare.py out/demo_dense out/demo_cofrgenet --plot=out/demo.png
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import configurator
from benchmarks.report import table
from model import flops_per_token, model_config, parameter_counts
from training.log import RunFolderError, draw_losses, read_log


@dataclass
class CompareConfig:
    """One table and one picture of several runs."""

    runs: list[str]  # run folders of train.py, separated by spaces or commas
    plot: str = "out/compare.png"  # where the picture goes

    def check(self) -> list[str]:
        return [] if self.plot.endswith(".png") else [f"plot must end in .png, not {self.plot!r}"]


COLUMNS = {
    "run": "run",
    "parameters": "parameters",
    "body": "without embeddings",
    "flops": "training MFLOPs/token",
    "tokens": "tokens trained",
    "loss": "validation loss",
    "bits_per_byte": "bits per byte",
    "best": "lowest",
    "speed": "tokens/s",
    "minutes": "minutes",
}
# keys of what the validation loss is measured on
SCORED = ("dataset", "block_size", "eval_tokens")
# keys that say where a run lives or how it is watched, not what it is
INCIDENTAL = {"out_dir", "resume", "wandb_log", "wandb_project", "wandb_run_name", "keep_checkpoints"}


def main(argv: list[str]):
    config = configurator.parse(CompareConfig, argv, positional="runs")
    try:
        runs = {run: read_run(Path(run)) for run in config.runs}
    except RunFolderError as error:
        sys.exit(f"compare.py: {error}")
    names = [Path(run).name for run in runs]
    if len(set(names)) == len(names):
        runs = dict(zip(names, runs.values(), strict=True))
    rows = [row(run, *parts) for run, parts in runs.items()]
    print(table([{COLUMNS[key]: cell for key, cell in cells.items()} for cells in rows]))
    for line in differences({run: parts[0] for run, parts in runs.items()}):
        print(line)
    try:
        Path(config.plot).parent.mkdir(parents=True, exist_ok=True)
        draw_losses({run: records for run, (_, records) in runs.items()}, Path(config.plot))
    except OSError as error:
        sys.exit(f"compare.py: {error}; choose another --plot")
    print(f"curves: {config.plot}")


def read_run(folder: Path) -> tuple[dict, list[dict]]:
    """(config, log records) of a run folder that was evaluated at least once."""
    try:
        config = json.loads((folder / "config.json").read_text())
        model_config(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder} is no run folder of train.py ({error})") from None
    records = read_log(folder)
    if not any("val_loss" in record for record in records):
        raise RunFolderError(f"{folder} has no evaluation in its log yet")
    return config, records


def row(run: str, config: dict, records: list[dict]) -> dict[str, str]:
    model = model_config(config)
    counts = parameter_counts(model)
    evaluations = [record for record in records if "val_loss" in record]
    # the first record's rate has the compiler in it
    rates = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
    body = counts["attention"] + counts["ffn"] + counts["norm"]
    final = evaluations[-1]
    return {
        "run": run,
        "parameters": f"{sum(counts.values()):,}",
        "body": f"{body:,}",
        "flops": f"{3 * flops_per_token(model) / 1e6:,.1f}",
        "tokens": f"{final['tokens']:,}",
        "loss": f"{final['val_loss']:.4f}",
        "bits_per_byte": f"{final['val_bits_per_byte']:.4f}",
        "best": f"{min(e['val_bits_per_byte'] for e in evaluations):.4f}",
        "speed": f"{statistics.median(rates[1:] or rates or [0]):,.0f}",
        "minutes": f"{final['seconds'] / 60:.1f}",
    }


def differences(configs: dict[str, dict]) -> list[str]:
    """One line for each key in which the runs differ."""
    keys = sorted({key for config in configs.values() for key in config} - INCIDENTAL)
    lines = []
    for key in keys:
        values = [config.get(key) for config in configs.values()]
        if any(value != values[0] for value in values):
            lines.append(f"differs: {key} = {', '.join(map(repr, values))}")
            if key in SCORED:
                lines[-1] += "; their validation losses are of different tokens"
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
