"""Five positional encodings on texts up to 16 times as long as those of training.

    python data/sotu/prepare.py
    python results/expe_extrapolation.py

Trains a tiny model for each on windows of 128 tokens, evaluates all of them to 2048, and prints the tables
that results/expe_extrapolation.md holds; its picture is losses.png. Run again, it goes on where it stopped.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402

POSITIONS = ("learned", "sinusoidal", "rope", "expe", "exqpe")


@dataclass
class StudyConfig:
    """Train a tiny model for each positional encoding and measure how far it extrapolates."""

    out: str = "out/expe_extrapolation"  # folder of the runs, the numbers and the picture
    dataset: str = "data/sotu/bpe4096"  # prepared data set, its validation documents long enough
    steps: int = 250  # of training, 2,048 tokens each
    seed: int = 1337  # of every run

    def check(self) -> list[str]:
        wrong = [] if self.steps > 20 else [f"steps must be above 20, not {self.steps}"]
        if not (ROOT / self.dataset / "val.bin").is_file():
            wrong.append(f"{self.dataset} is not prepared: python data/sotu/prepare.py")
        for name in ("numbers.json", "losses.png"):
            if (path := Path(self.out, name)).exists():
                wrong.append(f"{path} exists already, and nothing is overwritten: choose another --out")
        return wrong


def main(config: StudyConfig):
    out = Path(config.out).resolve()
    for position in POSITIONS:
        keys = {
            "out_dir": out / position, "dataset": config.dataset, "position": position, "seed": config.seed,
            "n_layer": 3, "n_head": 4, "n_embd": 128, "block_size": 128,
            "batch_size": 16, "gradient_accumulation_steps": 1, "max_iters": config.steps,
            "warmup_iters": 20, "learning_rate": 3e-3, "min_lr": 3e-4,
            "eval_interval": config.steps, "eval_tokens": 65_536, "checkpoint_interval": 50,
            "dtype": "float32", "compile": False, "resume": True,
        }  # fmt: skip
        run("train.py", *(f"--{key}={value}" for key, value in keys.items()))
    run(
        "evaluate.py", *(str(out / position) for position in POSITIONS),
        "--task=extrapolation", "--which=last", f"--texts={config.dataset}/val.bin", "--scales=1,0.5",
        "--compare=True", f"--json={out}/numbers.json", f"--plot={out}/losses.png",
    )  # fmt: skip


def run(script: str, *arguments: str):
    """One script of the repository; ends with its status where it fails."""
    print(f"== {script} {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, script, *arguments], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:]))
