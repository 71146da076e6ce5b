"""Positional encodings on texts up to 16 times as long as those of training.

    python data/sotu/prepare.py
    OMP_NUM_THREADS=1 python results/expe_extrapolation/run.py --seeds=1,2

Trains a tiny model for each encoding and seed on windows of 128 tokens, evaluates all of them to 2048, and
prints the tables of README.md beside this file, mean and deviation over the seeds; their means are drawn in
losses.png. RoPE is there twice, with a base of 10,000 and with Llama 3's 500,000. Run again,
it goes on where it stopped.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from evaluation.figure import extrapolation  # noqa: E402
from reports import picture  # noqa: E402
from reports.markdown_table import table  # noqa: E402

ARMS = {name: {"position": name} for name in ("learned", "sinusoidal", "rope", "expe", "exqpe")}
ARMS["rope_500000"] = {"position": "rope", "rope_base": 500_000.0}


@dataclass
class StudyConfig:
    """Train tiny models for each positional encoding and measure how far they extrapolate."""

    out: str = "out/expe_extrapolation"  # folder of the runs, the numbers and the picture
    dataset: str = "data/sotu/bpe4096"  # prepared data set, its validation documents long enough
    steps: int = 1000  # of training, 4,096 tokens each
    tokens: int = 131_072  # of the validation text that are measured
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])  # of initialisation and data order

    def check(self) -> list[str]:
        wrong = [] if self.steps > 100 else [f"steps must be above 100, not {self.steps}"]
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            wrong.append(f"seeds must be given, each of them once, not {self.seeds}")
        if not (ROOT / self.dataset / "val.bin").is_file():
            wrong.append(f"{self.dataset} is not prepared: python data/sotu/prepare.py")
        return wrong


def main(config: StudyConfig):
    out = Path(config.out).resolve()
    for seed in config.seeds:
        for name, arm in ARMS.items():
            keys = {
                "out_dir": out / f"seed-{seed}" / name, "dataset": config.dataset, **arm, "seed": seed,
                "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 128,
                "batch_size": 32, "gradient_accumulation_steps": 1, "max_iters": config.steps,
                "warmup_iters": 100, "learning_rate": 3e-3, "min_lr": 3e-4,
                "eval_interval": config.steps // 4, "eval_tokens": 65_536, "checkpoint_interval": 200,
                "keep_checkpoints": 1, "resume": True,
            }  # fmt: skip
            run("train.py", *(f"--{key}={value}" for key, value in keys.items()))
        numbers = out / f"seed-{seed}" / "numbers.json"
        if not numbers.exists() or not current(json.loads(numbers.read_text()), config):
            numbers.unlink(missing_ok=True)
            run(
                "evaluate.py", *(str(out / f"seed-{seed}" / name) for name in ARMS),
                "--task=extrapolation", "--which=last", f"--texts={config.dataset}/val.bin",
                "--scales=1,0.5", f"--max_tokens={config.tokens}", f"--json={numbers}",
            )  # fmt: skip
    show([json.loads((out / f"seed-{seed}" / "numbers.json").read_text()) for seed in config.seeds], out)


def current(measured: dict, config: StudyConfig) -> bool:
    """Whether these numbers are of the models and the text that are asked for."""
    steps = {model["step"] for model in measured["models"]}
    return steps == {config.steps} and measured["settings"]["max_tokens"] == config.tokens


def run(script: str, *arguments: str):
    """One script of the repository; ends with its status where it fails."""
    print(f"== {script} {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, script, *arguments], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def show(measured: list[dict], out: Path):
    """The tables, and the picture of the means, of evaluate.py's JSON of each seed."""
    models = [model["name"] for model in measured[0]["models"]]
    by_model = {m: [s["models"][models.index(m)]["results"] for s in measured] for m in models}
    factors = [length["factor"] for length in by_model[models[-1]][0]["lengths"]]
    titles = {
        "loss": "all positions",
        "last": "the last 128 positions",
        "last_at_train_length": "the same tokens in windows of 128",
    }
    for key, title in titles.items():
        rows = []
        for model, results in by_model.items():
            row = {title: model}
            for number, factor in enumerate(factors):
                known = [r["lengths"][number][key] for r in results if number < len(r["lengths"])]
                spread = f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
                row[f"{128 * factor:,}"] = f"{statistics.mean(known):.3f}{spread}" if known else "refused"
            rows.append(row)
        print(f"\n{table(rows)}")
    rises = []
    for model, results in by_model.items():
        # of one model on the same tokens: what the seeds share cancels out
        known = [[length["loss"] - r["lengths"][0]["loss"] for length in r["lengths"]] for r in results]
        row = {"against 128, all positions": model}
        for number, factor in enumerate(factors[1:], 1):
            rise = [k[number] for k in known if number < len(k)]
            spread = f" ± {statistics.stdev(rise):.3f}" if len(rise) > 1 else ""
            row[f"{128 * factor:,}"] = f"{statistics.mean(rise):+.3f}{spread}" if rise else "refused"
        rises.append(row)
    print(f"\n{table(rises)}\n\n{measured[0]['models'][-1]['results']['tokens']:,} tokens measured")
    figure = extrapolation({model: mean(results) for model, results in by_model.items()})
    picture.write(figure, out / "losses.png", own=True)
    print(f"picture: {out / 'losses.png'}")


def mean(results: list[dict]) -> dict:
    """What evaluate.py says of one model, losses averaged over the seeds."""
    lengths = []
    for same in zip(*(r["lengths"] for r in results), strict=True):
        by_position = [statistics.mean(at) for at in zip(*(s["by_position"] for s in same), strict=True)]
        lengths.append(
            same[0] | {"loss": statistics.mean(s["loss"] for s in same), "by_position": by_position}
        )
    return results[0] | {"lengths": lengths}


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:]))
