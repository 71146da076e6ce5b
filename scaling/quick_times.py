"""Hours of runs on this machine's processor, for dry runs: from a step or two of each model.

Eager, because compiling alone would take minutes, and with as few sequences as fit into a second or so.
"""

import dataclasses
import os

import torch
from tqdm import tqdm

from ablation.execution import steps_so_far
from ablation.plan import Plan
from ablation.product import Planned
from corpus import mixture
from models.architecture import ModelConfig, model_config
from models.kinds import flops_per_token, parameter_counts
from reports.plural import counted
from scaling.step_times import of_model, threads
from training.config import TrainConfig
from training.dry_run import duration

WANTED = 3e10  # FLOPs of a measured step
MOST = 3e11  # those of one sequence above which nothing is measured: a minute or more
BYTES = 16  # of a parameter: weight, gradient and AdamW's two moments
HOW = "measured in a few eager steps, without evaluations; compiled, it may be faster"


def of_token(config: TrainConfig, model: ModelConfig) -> float | None:
    """Seconds of a training token; None for a model that is too large to try on a processor or does not run
    on one, for a SAFFU, and for one of pairs.
    """
    sequence = 3 * flops_per_token(model) * config.block_size
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    too_large = sequence > MOST or BYTES * sum(parameter_counts(model).values()) > memory / 2
    if too_large or model.model != "gpt" or model.encoder_layers:
        return None
    batch_size = min(config.batch_size, max(1, int(WANTED / sequence)))
    sequences = config.batch_size * config.gradient_accumulation_steps
    values = {"device": "cpu", "compile": False, "batch_size": batch_size, "block_size": config.block_size}
    values |= {"dtype": config.dtype, "activation_checkpointing": config.activation_checkpointing}
    few = TrainConfig(**values, gradient_accumulation_steps=max(1, round(sequences / batch_size)))
    try:
        return min(of_model(few, model, 3))  # others may be using the processor
    except Exception:  # a layer of a package may raise anything where there is no GPU
        return None


def of_run(config: TrainConfig, model: ModelConfig, tokens: int) -> str | None:
    """How long a run takes here, in words; None where it would run on a GPU."""
    if on_gpu(config):
        return None
    seconds = of_token(config, model)
    if seconds is None:
        why = (
            "it is a SAFFU"
            if model.model == "saffu"
            else "the model is too large to try on a processor, or does not run on one"
        )
        return f"on this machine: not measured, because {why}"
    return f"{duration(tokens * seconds / 3600)} on this machine: {1 / seconds:,.0f} tokens/s, {HOW}"


def of_runs(plan: Plan, runs: list[Planned], parallel: int) -> str | None:
    """How long the unfinished ones of a plan take here, in words; None where they would run on a GPU."""
    todo = [run for run in runs if run.name not in plan.done]
    configs = [TrainConfig(**run.config) for run in todo]
    if not todo or any(map(on_gpu, configs)):
        return None
    seconds: dict[str, float | None] = {}
    hours, unknown = [], 0
    with threads(parallel):
        for run, config in tqdm(list(zip(todo, configs, strict=True)), "measuring", delay=2, leave=False):
            data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
            vocab_size = config.vocab_size or data.meta["vocab_size"]
            model = model_config(dataclasses.replace(config, vocab_size=vocab_size))
            of_step = (config.batch_size, config.gradient_accumulation_steps, config.dtype)
            key = str((vars(model), of_step, config.activation_checkpointing))
            if key not in seconds:
                seconds[key] = None if data.of_pairs else of_token(config, model)
            if seconds[key] is None:
                unknown += 1
                continue
            left = run.tokens - run.tokens_at(steps_so_far(plan.folder / run.name))
            hours.append(left * seconds[key] / 3600)
    left_out = f"{counted(unknown, 'run')} not measured: too large, for GPUs, of pairs, or a SAFFU"
    if unknown == len(todo):
        return f"on this machine: {left_out}"
    left_out = f"; {left_out}" if unknown else ""
    took = duration(max(sum(hours) / parallel, *hours))
    about = "" if took.startswith("less") else "about "
    return f"{about}{took} on this machine: {HOW}{left_out}"


def on_gpu(config: TrainConfig) -> bool:
    return config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
