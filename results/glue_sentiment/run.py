"""Fine-tuning on sentiment: a dense GPT and a CoFrGeNet, pretrained and fine-tuned here, five seeds each.

    OMP_NUM_THREADS=1 python results/glue_sentiment/run.py > results/glue_sentiment/README.md

Sentences of film reviews, each rated by twenty people or so, stand in for GLUE's SST-2: they come with a
package of the registry (vaderSentiment, 2.4 MB, fetched and not installed), are written in SST-2's format
and go through finetune.py as GLUE's own would. Pretrains two small models by the demo's configs first.
Stopped and started again, it goes on where it was.
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
from architecture import model_config  # noqa: E402
from data import DataError, packages  # noqa: E402
from data.encoding import in_validation  # noqa: E402
from finetuning.report import accuracy, details  # noqa: E402
from markdown_table import table  # noqa: E402
from model import parameter_counts  # noqa: E402
from training.log import write_whole  # noqa: E402

PACKAGE = "vaderSentiment==3.3.2"
INNER, FILE = "/hutto_ICWSM_2014.tar.gz", "movieReviewSnippets_GroundTruth.txt"
DATASET = "data/sotu/bpe4096"
MODELS = {"dense": "config/demo_dense.py", "ours": "config/ours/demo.py"}
# smaller than the demo's, so that ten fine-tunings fit into minutes; compiling costs more than it saves
SIZE = ["--n_layer=2", "--n_embd=128", "--compile=False"]
DEV = 0.15  # share of the sentences that is validation


@dataclass
class SentimentConfig:
    """Pretrain two small models and fine-tune both on rated sentences."""

    out: str = "out/sentiment"  # the data in SST-2's format, the two runs and the results
    learning_rates: list[float] | None = None  # of the fine-tuning; None: 5e-4 and 1e-3, for both models
    seeds: int = 5  # fine-tunings of each model at each rate
    epochs: int = 3  # of each


def main(config: SentimentConfig):
    out = Path(os.path.relpath(config.out, ROOT))  # the scripts are called in the repository
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
    """[id, mean rating from -4 to 4, sentence] of every row; raises DataError."""
    command = [*packages.PIP, "--no-binary", ":all:", PACKAGE]
    (inner,) = packages.files_of_package(command, lambda name: name.endswith(INNER)).values()
    with tarfile.open(fileobj=io.BytesIO(inner)) as opened:
        (member,) = (member for member in opened if member.name.endswith(FILE))
        text = opened.extractfile(member).read().decode("utf-8")
    return [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()]


def labelled(rows: list[list[str]]) -> tuple[list[tuple[str, int]], Counter]:
    """[(sentence, 1 where its rating is above 0, 0 where it is below)], and what was dropped."""
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
    """A script of the repository, what it says on the error stream; raises DataError where it fails."""
    command = [sys.executable, script, *arguments]
    print("$ python " + " ".join(command[1:]), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise DataError(f"{script} failed: what it said stands above")


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
    return f"""# Fine-tuning on sentiment: a dense GPT and a CoFrGeNet

{details(records)}

Accuracy on the validation sentences in percent, mean ± standard deviation over seeds, after the epoch and
at the learning rate (*) that are best on those very sentences, which makes the means a little too high;
"after the last epoch" is without the choice of an epoch. The deviation is that of seeds on the same
sentences; that so few sentences stand for all others adds a standard error of {error:.1f} points, and
a smaller difference between two models says nothing.

{table(models)}

- Data, in the place of GLUE's SST-2: {FILE} of `{PACKAGE}`.
  {len(splits["train"]):,} sentences to train on ({positive["train"]:,} positive),
  {len(splits["dev"]):,} others for validation ({positive["dev"]:,} positive).
  A label is the sign of the mean rating; dropped: {left_out}.
  The split is decided by a hash of the sentence. The file does not say which sentences are of one
  review, so that a review's sentences may stand on both sides.
- Models: the demo's configs with {" ".join(SIZE[:2])}, pretrained on presidents' speeches only.
- Fine-tuning: batch {settings["batch_size"]}, {settings["epochs"]} epochs, AdamW, {settings["dtype"]}.
  Both models get the same rates. The published ones (1.25e-5, 2.5e-5) are for models a thousand times as
  large.
- {first["device"]};
  Python {first["python"]}, torch {first["torch"]}, commit {first["commit"]}.

    OMP_NUM_THREADS=1 python results/glue_sentiment/run.py > results/glue_sentiment/README.md
"""


if __name__ == "__main__":
    try:
        main(configurator.parse(SentimentConfig, sys.argv[1:]))
    except (DataError, OSError) as error:
        sys.exit(f"glue_sentiment.py: {error}")
