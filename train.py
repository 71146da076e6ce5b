"""Pretrain one model.

    python train.py config/demo_dense.py
    python train.py config/cofrgenet_f.py config/size/small.py --batch_size=4 --out_dir=out/f_small

config -> data -> model -> loop. The keys and their defaults stand in TrainConfig and in model.py;
`python train.py --help` lists them all.
"""

import dataclasses
import hashlib
import json
import math
import shutil
import sys
import sysconfig
import time
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

import configurator
from data import DataError
from data.loader import Dataset, Loader
from model import GPT, ModelConfig, flops_per_token, model_config, parameter_counts
from training import checkpoint
from training.checkpoint import CheckpointError
from training.log import Log, RunFolderError, open_run, start_wandb, write_whole
from training.optimizer import adamw
from training.schedule import learning_rate


@dataclass
class TrainConfig(ModelConfig):
    """Pretrain one model. Defaults are nanoGPT's for GPT-2 (124M)."""

    # run
    out_dir: str = "out/gpt2"  # run folder: config.json, log.jsonl, loss.png, ckpt/
    resume: bool = False  # go on from out_dir's last checkpoint; from scratch where there is none
    seed: int = 1337  # of the weights, the order of the data and dropout
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 if native
    compile: bool = True  # torch.compile the training step; on a CPU this needs a C++ compiler
    # data
    dataset: str = "data/openwebtext/gpt2"  # folder with train.bin, val.bin and meta.json
    batch_size: int = 12  # sequences in a micro-batch
    gradient_accumulation_steps: int = 40  # micro-batches in a step
    # optimisation
    max_iters: int = 600_000  # steps in all
    learning_rate: float = 6e-4  # peak, after the warmup
    min_lr: float = 6e-5  # at the last step, where the cosine ends
    warmup_iters: int = 2000  # steps of linear warmup
    weight_decay: float = 0.1  # of matrices and embeddings; never of ladders, norms, biases
    beta1: float = 0.9  # AdamW
    beta2: float = 0.95  # AdamW
    grad_clip: float = 1.0  # largest gradient norm; 0: no clipping
    # watching
    log_interval: int = 10  # steps between training records
    eval_interval: int = 2000  # steps between evaluations
    eval_tokens: int = 1_048_576  # validation tokens scored, the same ones each time
    checkpoint_interval: int = 2000  # steps between checkpoints; a new best is saved besides
    keep_checkpoints: int = 2  # newest checkpoints kept, next to the best
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "cofrgenet"  # wandb project
    wandb_run_name: str | None = None  # wandb run; None: the run folder's name

    def check(self) -> list[str]:
        wrong = super().check()
        positive = "batch_size gradient_accumulation_steps max_iters log_interval eval_interval eval_tokens"
        for key in (*positive.split(), "checkpoint_interval", "keep_checkpoints", "learning_rate"):
            if not getattr(self, key) > 0:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        for key in ("min_lr", "warmup_iters", "weight_decay", "grad_clip", "seed"):
            if not getattr(self, key) >= 0:
                wrong.append(f"{key} must not be below 0, not {getattr(self, key)}")
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), float) and math.isinf(value):
                wrong.append(f"{field.name} must be finite, not {value}")
        if not self.out_dir:
            wrong.append("out_dir is empty: give the run a folder of its own, such as out/mine")
        if self.seed >= 2**32:
            wrong.append(f"seed must be below 2^32, not {self.seed}")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                wrong.append(f"{key} must be in [0, 1), not {getattr(self, key)}")
        if self.min_lr > self.learning_rate:
            wrong.append(f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}")
        if self.warmup_iters >= self.max_iters:
            wrong.append(f"warmup_iters={self.warmup_iters} leaves nothing of max_iters={self.max_iters}")
        if self.device == "cuda" and not torch.cuda.is_available():
            wrong.append("device=cuda, but torch sees no GPU; use --device=cpu")
        if int(environ.get("WORLD_SIZE", 1)) > 1:
            wrong.append(f"WORLD_SIZE={environ['WORLD_SIZE']}: train.py runs in one process, on one device")
        return wrong


class TrainingError(RuntimeError):
    """Training cannot go on; says why and what to do."""


# what may change when a run goes on: nothing that the later losses depend on, but for rounding and, on
# another device, dropout
FREE_ON_RESUME = {
    *("out_dir", "resume", "device", "compile", "dataset", "log_interval", "eval_interval"),
    *("checkpoint_interval", "keep_checkpoints", "wandb_log", "wandb_project", "wandb_run_name"),
}


def main(argv: list[str]):
    config = configurator.parse(TrainConfig, argv, saved=saved_config)
    try:
        device = choose_device(config)
        data, validation = open_data(config)
        with open_run(config.out_dir, config.resume) as folder:
            train(config, device, folder, data, validation)
    except (DataError, CheckpointError, RunFolderError, TrainingError, OSError) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        saved = checkpoint.numbered(Path(config.out_dir) / "ckpt")
        where = f"goes on from {saved[-1].name}" if saved else "starts again: there is no checkpoint yet"
        sys.exit(f"train.py: interrupted; --resume=True --out_dir={config.out_dir} {where}")


def saved_config(values: dict) -> Path | None:
    """A resumed run has the configuration that it was started with, where the command line says nothing."""
    path = Path(values["out_dir"]) / "config.json"
    return path if values["resume"] and path.is_file() else None


def train(config: TrainConfig, device: torch.device, folder: Path, data: Dataset, validation: np.ndarray):
    """Train from scratch or from the run folder's last checkpoint, up to config.max_iters steps.

    validation: the windows [count, block_size + 1] that every evaluation scores.
    """
    restored = restore(folder, config, data) if config.resume else None
    torch.manual_seed(config.seed)
    with torch.device("meta"):
        model = GPT(model_config(config))
    model.to_empty(device=device).init_weights()
    optimizer = adamw(model, config.learning_rate, config.weight_decay, (config.beta1, config.beta2))
    step, best, seconds, wandb_id = 0, math.inf, 0.0, None
    if restored is not None:
        path, content = restored
        checkpoint.load_weights(model, content, path)
        optimizer.load_state_dict(content["optimizer"])
        step, best, seconds = content["step"], content["best_val_loss"], content["seconds"]
        wandb_id = content["wandb_id"]
        print(f"resuming from {path}, step {step:,} of {config.max_iters:,}")
        del restored, content
    elif config.resume:
        print(f"{folder} holds no checkpoint: starting from scratch")
    announce(config, data, device)

    wandb_run = None
    if config.wandb_log:
        name = config.wandb_run_name or folder.name
        wandb_run = start_wandb(config.wandb_project, name, folder, dataclasses.asdict(config), wandb_id)
        wandb_id = wandb_run.id
    write_whole(folder / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    log = Log(folder, step, wandb_run)
    tokenizer = data.tokenizer().to_json()
    samples_per_step = config.batch_size * config.gradient_accumulation_steps
    tokens_per_step = samples_per_step * config.block_size
    # the compiled model trains, the plain one evaluates: other shapes must not recompile it
    training_model = (
        torch.compile(model, fullgraph=True, dynamic=False) if use_compiler(config, device) else model
    )
    loader = Loader(data, config.batch_size, config.seed, device, first_sample=step * samples_per_step)
    parameters = list(model.parameters())
    clock = Clock(device, seconds)
    logged_at = (step, clock.seconds())
    losses = torch.zeros((), device=device)
    bar = tqdm(
        total=config.max_iters, initial=step, unit="step", dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30.0,
    )  # fmt: skip

    def evaluate_and_log(seconds) -> bool:
        """Whether this is the lowest validation loss since training began."""
        nonlocal best
        result = evaluate(model, validation, data.target_bytes(validation), config)
        log.add({"step": step, "tokens": step * tokens_per_step, "seconds": seconds, **result})
        log.draw()
        bar.write(
            f"step {step:>7,}: validation loss {result['val_loss']:.4f}, perplexity "
            f"{result['val_perplexity']:.2f}, {result['val_bits_per_byte']:.4f} bits per byte",
            file=sys.stdout,
        )
        improved = step > 0 and result["val_loss"] < best
        best = result["val_loss"] if improved else best
        return improved

    def save(seconds, improved):
        content = {
            "step": step,
            "config": dataclasses.asdict(config),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "tokenizer": tokenizer,
            "data": fingerprint(data),
            "best_val_loss": best,
            "seconds": seconds,
            "wandb_id": wandb_id,
        }
        log.sync()
        checkpoint.save(folder / "ckpt", step, content, config.keep_checkpoints, improved)

    def due(interval) -> bool:
        return step % interval == 0 or step == config.max_iters

    if step == 0:
        with clock.paused() as seconds:
            evaluate_and_log(seconds)
    while step < config.max_iters:
        model.train()
        # dropout's randomness is a function of the step, so that a resumed run repeats it
        torch.manual_seed(seed_of(config.seed, step))
        rate = learning_rate(
            step, config.max_iters, config.warmup_iters, config.learning_rate, config.min_lr
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses.zero_()
        for _ in range(config.gradient_accumulation_steps):
            tokens, targets = next(loader)
            with autocast(config, device):
                loss = training_model(tokens, targets) / config.gradient_accumulation_steps
            loss.backward()
            losses += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        bar.update()

        # nothing below runs at most steps: on a GPU it would wait for the step to end
        if due(config.log_interval):
            now = clock.seconds()
            speed = (step - logged_at[0]) * tokens_per_step / (now - logged_at[1])
            logged_at = (step, now)
            log.add(
                {
                    "step": step, "tokens": step * tokens_per_step, "seconds": now, "loss": losses.item(),
                    "learning_rate": rate, "grad_norm": norm.item(), "tokens_per_second": speed,
                }
            )  # fmt: skip
            bar.set_postfix_str(f"loss {losses.item():.3f}, {speed:,.0f} tokens/s", refresh=False)
        evaluating, saving = due(config.eval_interval), due(config.checkpoint_interval)
        if evaluating or saving or due(config.log_interval):
            # before anything is saved: a checkpoint never holds what such a step left behind
            check_finite(losses.item(), norm.item(), step, folder)
        if evaluating or saving:
            with clock.paused() as seconds:
                improved = evaluating and evaluate_and_log(seconds)
                if saving or improved:
                    save(seconds, improved)
    bar.close()
    log.close()
    print(f"done: {step:,} steps, {step * tokens_per_step:,} tokens; curve: {folder / 'loss.png'}")
    print(f"sample with: python sample.py {folder}")


def seed_of(seed: int, step: int) -> int:
    """A generator on the CPU heeds the low 32 bits only: all of them must depend on both numbers."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {step}".encode(), digest_size=7).digest())


def check_finite(loss: float, norm: float, step: int, folder: Path):
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingError(
            f"loss {loss} and gradient norm {norm} at step {step}; the checkpoints in {folder / 'ckpt'} "
            "are from before. Try a lower learning_rate, gradient clipping, or cf_pole='positive'"
        )


def choose_device(config: TrainConfig) -> torch.device:
    """The device; sets config.dtype where it was auto: half precision that is emulated only costs time."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if config.dtype == "auto":
        if name == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            # older releases of PyTorch do not say
            abilities = getattr(torch.cpu, "get_capabilities", dict)()
            native = abilities.get("avx512_bf16") or abilities.get("amx_bf16")
        config.dtype = "bfloat16" if native else "float32"
    return torch.device(name)


def open_data(config: TrainConfig) -> tuple[Dataset, np.ndarray]:
    """The training split, opened and checked, and the fixed validation windows [count, block_size + 1].

    Sets config.vocab_size where it was None. Raises DataError before anything is built.
    """
    samples_per_step = config.batch_size * config.gradient_accumulation_steps
    data = Dataset(config.dataset, "train", config.block_size, config.vocab_size, samples_per_step)
    config.vocab_size = config.vocab_size or data.meta["vocab_size"]
    data.windows(0, samples_per_step, config.seed)  # refuses tokens that the vocabulary does not have
    validation = Dataset(config.dataset, "val", config.block_size, config.vocab_size)
    windows = validation.validation_windows(max(1, config.eval_tokens // config.block_size))
    # what an evaluation and a checkpoint will need must not be found missing hours later
    data.target_bytes(windows)
    data.tokenizer()
    return data, windows


def fingerprint(data: Dataset) -> dict:
    """What tells one data set from another, wherever its folder lies."""
    return {"tokenizer": data.meta["tokenizer"]["hash"], "splits": data.meta["splits"]}


def restore(folder: Path, config: TrainConfig, data: Dataset):
    """(path, content) of the last checkpoint, or None. Raises CheckpointError where the run differs."""
    # best.pt alone: the first checkpoint was cut off between its two names
    found = [*folder.glob("ckpt/best.pt"), *checkpoint.numbered(folder / "ckpt")]
    if not found:
        return None
    path = found[-1]
    content = checkpoint.load(path)
    wrong = [
        f"{key} was {content['config'].get(key)!r}, now {value!r}"
        for key, value in dataclasses.asdict(config).items()
        if key not in FREE_ON_RESUME and content["config"].get(key) != value
    ]
    if content["data"] != fingerprint(data):
        wrong.append(f"{config.dataset} holds other data than the run was trained on")
    if wrong:
        raise CheckpointError(
            f"{path} cannot go on with this configuration: {'; '.join(wrong)}. Leave these as they "
            "were, or start a new run with another --out_dir"
        )
    return path, content


def announce(config: TrainConfig, data: Dataset, device: torch.device):
    model = model_config(config)
    counts = parameter_counts(model)
    total = sum(counts.values())
    body = total - counts["embedding"] - counts["position"]
    tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size
    epochs = config.max_iters * tokens / len(data.tokens)
    print(configurator.format_config(config))
    print(
        f"data: {config.dataset}, {len(data.tokens):,} training tokens, "
        f"vocabulary {data.meta['vocab_size']:,}\n"
        f"model: {total:,} parameters, {body:,} without embeddings, "
        f"{3 * flops_per_token(model) / 1e6:,.1f} MFLOPs per token in training\n"
        f"run: {config.max_iters:,} steps of {tokens:,} tokens, {config.max_iters * tokens:,} in all "
        f"({epochs:.2f} epochs), on {device}",
        flush=True,
    )


def missing_for_compile() -> list[str]:
    """What torch.compile lacks on a CPU."""
    missing = []
    if not any(map(shutil.which, filter(None, (environ.get("CXX"), "g++", "clang++")))):
        missing.append("a C++ compiler (Debian: apt-get install g++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    return missing


def use_compiler(config: TrainConfig, device: torch.device) -> bool:
    if config.compile and device.type == "cpu" and (missing := missing_for_compile()):
        print(f"torch.compile lacks {' and '.join(missing)}: training goes on without it, slower")
        return False
    if config.compile:
        print("compiling at the first step: that takes a minute or so", flush=True)
    return config.compile


def autocast(config, device: torch.device):
    return torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16")


@torch.no_grad()
def evaluate(model, windows, text_bytes, config) -> dict[str, float]:
    """Score every target token of `windows` [count, block_size + 1] once.

    Returns mean loss in nats per token, perplexity, and bits per byte; `text_bytes` is the size of the
    text that the targets stand for.
    """
    model.eval()
    device = next(model.parameters()).device
    nats = 0.0
    for rows in torch.from_numpy(windows).split(config.batch_size):
        rows = rows.to(device)
        with autocast(config, device):
            nats += model(rows[:, :-1], rows[:, 1:]).item() * rows[:, 1:].numel()
    loss = nats / windows[:, 1:].size
    return {
        "val_loss": loss,
        "val_perplexity": math.exp(min(loss, 700)),
        "val_bits_per_byte": nats / math.log(2) / text_bytes,
    }


class Clock:
    """Seconds spent in training, evaluations and checkpoints left out."""

    def __init__(self, device: torch.device, seconds: float = 0.0):
        self.device, self.before, self.since = device, seconds, time.perf_counter()

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.before + time.perf_counter() - self.since

    @contextmanager
    def paused(self):
        seconds = self.seconds()
        start = time.perf_counter()
        yield seconds
        self.since += time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1:])
