"""Fine-tuning on sentiment: a dense GPT and a CoFrGeNet, pretrained and fine-tuned here, five seeds each.

    OMP_NUM_THREADS=1 python results/glue_sentiment/run.py > results/glue_sentiment/README.md

Sentences of film reviews, each rated by about twenty people, stand in for GLUE's SST-2. They come with the
package vaderSentiment (2.4 MB, fetched and not installed). The script writes them in SST-2's format and
calls finetune.py, as for GLUE's own data. It first pretrains two small models with the demo's configs. When
it is stopped and started again, it goes on where it was.
"""

import io
import json
import math
import os
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from corpus import DataError, packages  # noqa: E402
from corpus.splits import in_validation  # noqa: E402
from finetuning.report import accuracy, details  # noqa: E402
from models.architecture import model_config  # noqa: E402
from models.kinds import parameter_counts  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from training.log import write_whole  # noqa: E402

PACKAGE = "vaderSentiment==3.3.2"
INNER, FILE = "/hutto_ICWSM_2014.tar.gz", "movieReviewSnippets_GroundTruth.txt"
DATASET = "data/sotu/bpe4096"
MODELS = {"dense": "config/demo_dense.py", "ours": "config/ours/demo.py"}
# Smaller than the demo's models, so that ten fine-tunings take minutes. Compiling costs more than it saves.
SIZE = ["--n_layer=2", "--n_embd=128", "--compile=False"]
DEV = 0.15  # share of the sentences that are for validation


@dataclass
class SentimentConfig:
    """Pretrain two small models and fine-tune both on rated sentences."""

    out: str = "out/sentiment"  # folder for the data in SST-2's format, the two runs and the results
    learning_rates: list[float] | None = None  # of the fine-tuning, for both models; default: 5e-4 and 1e-3
    seeds: int = 5  # number of fine-tunings of each model at each learning rate
    epochs: int = 3  # epochs of each fine-tuning


def main(config: SentimentConfig):
    out = Path(os.path.relpath(config.out, ROOT))  # the scripts run in the root of the repository
    os.chdir(ROOT)
    examples, dropped = labelled(fetch())
    splits = {"train": [], "dev": []}
    for text, label in examples:
        splits["dev" if in_validation(text, DEV) else "train"].append((text, label))
    for split, rows in splits.items():
        path = out / "glue" / "SST-2" / f"{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    if not (ROOT / DATASET / "meta.json").is_file():
        call("data/sotu/prepare.py")
    for name, file in MODELS.items():
        call("train.py", file, *SIZE, f"--out_dir={out / name}", "--resume=True")
    rates = config.learning_rates or [5e-4, 1e-3]
    keys = [f"--learning_rates={','.join(map(str, rates))}", f"--seeds={config.seeds}"]
    keys += [f"--epochs={config.epochs}", f"--data_dir={out / 'glue'}", f"--out_dir={out / 'results'}"]
    call("finetune.py", *(str(out / name) for name in MODELS), "--tasks=sst2", *keys)
    records = [
        json.loads((out / "results/results" / name / f"sst2_lr{rate!r}_seed{seed}.json").read_text())
        for name in MODELS
        for rate in rates
        for seed in range(1, config.seeds + 1)
    ]
    print(page(out, config, splits, dropped, records), end="")


def fetch() -> list[list[str]]:
    """Returns [id, mean rating from -4 to 4, sentence] of every row. Raises DataError."""
    command = [*packages.PIP, "--no-binary", ":all:", PACKAGE]
    (inner,) = packages.files_of_package(command, lambda name: name.endswith(INNER)).values()
    with tarfile.open(fileobj=io.BytesIO(inner)) as opened:
        (member,) = (member for member in opened if member.name.endswith(FILE))
        text = opened.extractfile(member).read().decode("utf-8")
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()]


def labelled(rows: list[list[str]]) -> tuple[list[tuple[str, int]], Counter]:
    """Returns [(sentence, 1 if its rating is above 0, else 0)] and {reason: how many were dropped}."""
    examples, dropped = {}, Counter()
    for _, rating, sentence in rows:
        sentence, rating = sentence.strip(), float(rating)
        if rating == 0:
            dropped["rated 0"] += 1
        elif sentence in examples:
            dropped["repeated"] += 1
        else:
            examples[sentence] = int(rating > 0)
    return list(examples.items()), dropped


def call(script: str, *arguments: str):
    """Runs a script of the repository, with its output on stderr. Raises DataError if it fails."""
    command = [sys.executable, script, *arguments]
    print("$ python " + " ".join(command[1:]), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise DataError(f"{script} failed: see its message above, and call this script again")


def page(out: Path, config: SentimentConfig, splits: dict, dropped: Counter, records: list[dict]) -> str:
    models = []
    for name, file in MODELS.items():
        folder = out / name
        counts = parameter_counts(model_config(json.loads((folder / "config.json").read_text())))
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        last = [record for record in log if "val_loss" in record][-1]
        models.append(
            {
                "model": name,
                "config": file,
                "parameters": f"{sum(counts.values()):,}",
                "tokens of pretraining": f"{last['tokens']:,}",
                "bits per byte on speeches": f"{last['val_bits_per_byte']:.3f}",
            }
        )
    first, settings = records[-1], records[-1]["settings"]
    positive = {split: sum(label for _, label in rows) for split, rows in splits.items()}
    share = accuracy(records[: config.seeds])
    error = 100 * math.sqrt(share * (1 - share) / len(splits["dev"]))
    left_out = ", ".join(f"{count} {what}" for what, count in dropped.items())
    return f"""# Fine-tuning on sentiment: a dense GPT and our ladder model

{details(records)}

Accuracy on the validation sentences in percent, mean ± standard deviation over seeds. The epoch and the
learning rate (*) are the best ones on these same sentences, which makes the means a little too high; "after
the last epoch" leaves out the choice of an epoch. The standard deviation is over seeds on the same
sentences. The small number of sentences adds a standard error of {error:.1f} points, and a smaller
difference between two models says nothing.

{table(models)}

- Data, in place of GLUE's SST-2: {FILE} of `{PACKAGE}`.
  {len(splits["train"]):,} sentences for training ({positive["train"]:,} positive),
  {len(splits["dev"]):,} others for validation ({positive["dev"]:,} positive).
  A label is the sign of the mean rating; dropped: {left_out}.
  A hash of the sentence decides the split. The file does not say which sentences belong to one review, so
  sentences of one review may be in both splits.
- Models: the demo's configs with {" ".join(SIZE[:2])}, pretrained on presidents' speeches only. `ours` is a
  form of ours, not the papers'.
- Fine-tuning: batch {settings["batch_size"]}, {settings["epochs"]} epochs, AdamW, {settings["dtype"]}.
  Both models get the same learning rates. The published ones (1.25e-5, 2.5e-5) are for models a thousand
  times as large.
- {first["device"]};
  Python {first["python"]}, torch {first["torch"]}, commit {first["commit"]}.

    OMP_NUM_THREADS=1 python results/glue_sentiment/run.py > results/glue_sentiment/README.md
"""


if __name__ == "__main__":
    try:
        main(configurator.parse(SentimentConfig, sys.argv[1:]))
    except (DataError, OSError) as error:
        sys.exit(f"results/glue_sentiment/run.py: {error}")
