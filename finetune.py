"""Fine-tune models on GLUE's tasks, several seeds each, and print one table over tasks and models.

    python finetune.py out/gpt2 out/cofrgenet_f --data_dir=glue --out_dir=out/glue
    python finetune.py exported/gpt2 --tasks=sst2,cola --learning_rates=1.25e-5,2.5e-5 --seeds=3

Without --data_dir the data comes from the Hugging Face hub. Finished results stay in out_dir: the same
command skips them. To train a language model on new text, see config/finetune_text.py.
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)
from host.disk import make_folder

import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

import configurator
from config_keys import AtLeast, Count, CountOrNone, Natural, NotNegative, Share
from corpus import DataError
from finetuning import glue, records
from finetuning.classifier import Classifier
from finetuning.glue import TaskData
from finetuning.loop import finetune
from finetuning.metrics import majority
from finetuning.report import report
from finetuning.subjects import SHORTEST, Encoded, Subject, encode_all, open_subjects
from finetuning.tasks import TASKS
from training import pretrained
from training.checkpoint import CheckpointError
from training.environment import environment
from training.hardware import DeviceError, choose_device, choose_dtype, keep_freed_memory, missing_gpu
from training.log import RunFolderError, write_whole

TABLE = "table.md"


@dataclass
class FinetuneConfig:
    """Fine-tune models on GLUE's tasks. Defaults are the paper's; (ours) marks what it leaves open."""

    models: list[str]  # run folders or checkpoints of train.py, model folders, or gpt2 from the hub
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest
    tasks: list[str] | None = None  # some of mnli,qqp,qnli,sst2,cola,mrpc,rte,wnli; None: all eight
    data_dir: str | None = None  # folder with GLUE's TSV files (MNLI/train.tsv and so on); None: the hub
    #: malformed rows of a TSV file that may be skipped; QQP's public file has some
    max_bad_rows: Natural = 0
    out_dir: str = "out/glue"  # gets results/ with one file for each finished seed, and table.md
    learning_rates: list[float] | None = None  # each is tried; None: 1.25e-5 with ladders, 2.5e-5 without
    seeds: Count = 5  # seeds per model, task and learning rate
    seed: Natural = 1  # first seed; the others count up from it
    epochs: CountOrNone = None  # None (ours): 10 for RTE, MRPC, WNLI and CoLA, 3 for the others
    batch_size: Count = 64  # examples per step
    micro_batch_size: CountOrNone = None  # examples in memory at once; None: batch_size
    #: longer examples are cut to so many tokens; None: the model's block_size
    max_length: Annotated[int | None, AtLeast(SHORTEST)] = None
    lr_schedule: Literal["linear", "cosine"] = "linear"  # shape of the decay to 0 (ours)
    warmup_share: Share = 0.06  # linear warmup, as a share of all steps (ours)
    #: on matrices and embeddings; never on norms, biases and ladders (ours)
    weight_decay: NotNegative = 0.01
    beta1: Share = 0.9  # AdamW: decay rate of the first moment
    beta2: Share = 0.999  # AdamW: decay rate of the second moment (ours)
    grad_clip: NotNegative = 1.0  # clip the gradient norm to this; 0: no clipping (ours)
    dropout: Share = 0.0  # probability of dropping an activation in training
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # dtype of matrix products

    def check(self) -> list[str]:
        wrong = []
        for rate in self.learning_rates or ():
            if not 0 < rate < math.inf:
                wrong.append(f"learning_rates must be above 0, not {rate}")
        if self.learning_rates == []:
            wrong.append("learning_rates is empty: name one rate or more, such as --learning_rates=2.5e-5")
        for task in self.tasks or ():
            if task not in TASKS:
                wrong.append(f"tasks: {task!r} is none of {', '.join(TASKS)}")
        if not self.models:
            wrong.append("models is empty: name a run folder, such as out/gpt2")
        if self.data_dir is not None and not Path(self.data_dir).is_dir():
            wrong.append(f"data_dir={self.data_dir} is not a folder")
        if (Path(self.out_dir) / "ckpt").is_dir():
            wrong.append(f"out_dir={self.out_dir} is a run folder of train.py: choose another folder")
        table = Path(self.out_dir) / TABLE
        if table.is_file() and not table.read_bytes().startswith(b"| model "):
            wrong.append(f"{table} is none of finetune.py's, and would be replaced: choose another out_dir")
        wrong += missing_gpu(self.device)
        return wrong


@dataclass
class Job:
    """One result, and the file that keeps it. record: the result; None until there is one."""

    subject: Subject
    data: TaskData
    learning_rate: float
    settings: dict
    path: Path
    record: dict | None


def main(argv: list[str]):
    config = configurator.parse(FinetuneConfig, argv, positional="models")
    try:
        device = choose_device(config.device)
        dtype = choose_dtype(config.dtype, device)
        keep_freed_memory(device)
        # find every mistake before the first step
        rates = config.learning_rates
        subjects = open_subjects(config.models, config.which, rates, config.max_length, config.dropout)
        data = read_tasks(config)
        inputs = encode_all(subjects, data)
        jobs = plan(config, subjects, data, dtype)
        done = sum(job.record is not None for job in jobs)
        make_folder(Path(config.out_dir))
        print(f"{len(jobs)} results, {done} of them already in {config.out_dir}; {device}, {dtype}")
        train(config, jobs, inputs, device, dtype)
        text = report([job.record for job in jobs])
        write_whole(Path(config.out_dir) / TABLE, text)
    except (DataError, CheckpointError, DeviceError, RunFolderError, OSError) as error:
        sys.exit(f"finetune.py: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"finetune.py: out of memory ({str(error).splitlines()[0]}). Take a smaller micro_batch_size, "
            "which changes only the rounding, or a smaller max_length. Finished results are kept"
        )
    except KeyboardInterrupt:
        sys.exit(
            f"finetune.py: interrupted. Finished results are in {config.out_dir}; the same command goes on"
        )
    print(text)
    print(f"table: {config.out_dir}/{TABLE}")


def read_tasks(config: FinetuneConfig) -> dict[str, TaskData]:
    """Raises DataError with what is wrong in each task."""
    data, wrong = {}, []
    for name in config.tasks or TASKS:
        task = TASKS[name]
        try:
            if config.data_dir is None:
                data[name] = glue.read_hub(task)
            else:
                data[name] = glue.read_folder(task, Path(config.data_dir), config.max_bad_rows)
        except DataError as error:
            wrong.append(str(error))
            continue
        if left_out := data[name].left_out:
            print(f"{task.title}: {left_out} malformed rows were skipped")
    if wrong:
        raise DataError("\n".join(wrong))
    return data


def plan(config, subjects: list[Subject], data: dict[str, TaskData], dtype: str) -> list[Job]:
    """All results, finished ones included. Raises RunFolderError where a file holds another result."""
    keys = ("batch_size", "lr_schedule", "warmup_share", "weight_decay", "beta1", "beta2", "grad_clip")
    common = {**{key: getattr(config, key) for key in (*keys, "dropout")}, "dtype": dtype}
    prints = {name: of_task.fingerprint() for name, of_task in data.items()}
    jobs = []
    for subject in subjects:
        for name, of_task in data.items():
            for rate in subject.learning_rates:
                for seed in range(config.seed, config.seed + config.seeds):
                    settings = {
                        "weights": subject.weights,
                        "tokenizer": subject.tokenizer.hash,
                        "data": prints[name],
                        "learning_rate": rate,
                        "seed": seed,
                        "epochs": config.epochs or of_task.task.epochs,
                        "max_length": subject.max_length,
                        **common,
                    }
                    path = records.place(Path(config.out_dir), subject.name, name, rate, seed)
                    jobs.append(Job(subject, of_task, rate, settings, path, records.read(path, settings)))
    return jobs


def train(config: FinetuneConfig, jobs: list[Job], inputs: Encoded, device: torch.device, dtype: str):
    """Compute the missing results, and write each one as soon as it is finished."""
    where = environment(device)
    held = None
    for number, job in enumerate(jobs, 1):
        # another process, for example on another GPU, may have finished it meanwhile
        job.record = job.record or records.read(job.path, job.settings)
        if job.record is not None:
            continue
        subject, task, seed = job.subject, job.data.task, job.settings["seed"]
        if held is not subject:
            held, weights = subject, pretrained.read_checked(subject.source)
            source = dataclasses.replace(subject.source, read=lambda weights=weights: weights)
        torch.manual_seed(seed)  # of the head
        classifier = Classifier(pretrained.build(source), len(task.labels)).to(device)
        sets = dict(inputs[subject.tokenizer.hash, subject.max_length, task.name])
        training = sets.pop("train")
        shown = f"{number}/{len(jobs)} {subject.name} {task.name} {job.learning_rate:g} seed {seed}"
        outcome = finetune(
            classifier, task, training, sets, subject.tokenizer.end_of_text,
            job.learning_rate, seed, config, device, dtype, shown,
        )  # fmt: skip
        job.record = {
            "model": subject.name,
            "path": str(subject.source.path),
            "step": subject.source.step,
            "task": task.name,
            "settings": job.settings,
            "data": {
                "train": len(training),
                "validation": {name: len(one) for name, one in sets.items()},
                "majority": {name: majority(one.labels) for name, one in sets.items()},
                "left_out": job.data.left_out,
            },
            **outcome,
            **where,
        }
        records.write(job.path, job.record)
        best = outcome["best"]
        accuracies = " / ".join(f"{100 * best[name]['accuracy']:.2f}" for name in sets)
        took = f"{outcome['seconds']:.0f} s"
        print(f"{shown}: {accuracies} % after epoch {best['epoch']}, {took}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
