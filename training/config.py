"""The keys of a training run."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from corpus import DataError, mixture
from layers import ATTENTION, FFN
from models.architecture import ModelConfig
from training import saffu_passes
from training.distributed import max_restarts
from training.hardware import missing_gpu
from training.sharding import gpus, mistakes


@dataclass
class TrainConfig(ModelConfig):
    """Pretrain one model. Defaults are nanoGPT's for GPT-2 (124M)."""

    # run
    out_dir: str = "out/gpt2"  # run folder: config.json, log.jsonl, loss.png, ckpt/
    resume: bool = False  # continue from the last checkpoint in out_dir; start anew if there is none
    init_from: str | None = None  # start from a run, a model folder, gpt2, gpt2-medium, -large or -xl
    seed: int = 1337  # seed of the weights, the order of the data and dropout
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # dtype of matrix products
    compile: bool = True  # torch.compile the training step; on a CPU this needs a C++ compiler
    cuda_graph: bool = True  # on one GPU: launch forward and backward pass at once, which is faster
    deterministic: bool = False  # on a GPU: attention too has the same numbers in each run
    activation_checkpointing: bool = False  # recompute each block in the backward pass: less memory, slower
    sharding: Literal["none", "full", "hybrid"] = "none"  # ranks share weights and optimizer state
    sharding_ranks: int | None = None  # hybrid: ranks that share one model; None: those of a machine
    distributed_timeout: float = 600.0  # seconds that a rank waits for the others before it exits
    # data
    dataset: str = "data/openwebtext/gpt2"  # prepared folder, or a mixture: folder:weight,folder:weight
    verify_data: bool | None = None  # read and check all training data first; None: if half of it is read
    score_source: bool = False  # pairs: the training loss is of the source's tokens too
    batch_size: int = 12  # sequences in a micro-batch
    gradient_accumulation_steps: int = 40  # micro-batches per step, over all ranks together
    # optimisation
    max_iters: int = 600_000  # number of steps
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for linear maps of the blocks, else AdamW
    learning_rate: float = 6e-4  # peak learning rate, after the warmup
    muon_learning_rate: float | None = None  # muon: peak learning rate of Muon; None: learning_rate
    lr_schedule: Literal["cosine", "linear", "wsd", "rsqrt"] = "cosine"  # shape of the decay
    min_lr: float = 6e-5  # learning rate at the end of the schedule; rsqrt: the lowest
    warmup_iters: int = 2000  # steps of linear warmup
    wsd_decay_iters: int | None = None  # wsd: steps of the decay; None: a fifth of max_iters
    weight_decay: float = 0.1  # weight decay of matrices and embeddings; norms and biases have none
    decay_ladders: bool = False  # apply weight decay to the matrices of ladders too
    ladder_lr: float = 1.0  # factor on the learning rate of the ladder weights
    beta1: float = 0.9  # AdamW: decay rate of the first moment
    beta2: float = 0.95  # AdamW: decay rate of the second moment
    label_smoothing: float = 0.0  # share of the target's probability that all tokens divide in training
    grad_clip: float = 1.0  # clip the gradient norm to this; 0: no clipping
    dyadic: bool = False  # train ladder weights of depth i only in the last max_iters / 2^i steps
    dyadic_iters: int | None = None  # dyadic: steps that are divided by 2^i; None: max_iters
    # start of model=saffu
    saffu_init: Literal["explicit", "prior", "random"] = "explicit"  # from counts, or random weights
    saffu_embeddings: Literal["cipher", "random"] = "cipher"  # bit-cipher by counts; random: not explicit
    saffu_tokens: int | None = None  # tokens that are counted, the run's first samples; None: an epoch
    saffu_tuning: int = 0  # further passes that tune the attention with the weights so far
    saffu_only: bool = False  # stop after the start: no step of training
    saffu_attention: Literal["printed", "negated", "uniform"] = "printed"  # sign of V; uniform: W = 0
    saffu_priming: Literal["bound", "mean"] = "bound"  # K of the decoders: K log K, or the mean norm of H
    saffu_output_priming: float | None = None  # K of the head; None: the number of units
    saffu_floor: float = 1e-12  # of co-occurrences, as a share of the largest one
    saffu_temperature: float = 1.0  # factor on the evidence of the decoders, not on the prior; 1: the paper
    # watching
    log_interval: int = 10  # steps between training records
    eval_interval: int = 2000  # steps between evaluations
    eval_tokens: int = 1_048_576  # validation tokens per evaluation, the same ones each time
    checkpoint_interval: int = 2000  # steps between checkpoints; a new best model is saved as well
    keep_checkpoints: int = 2  # number of newest checkpoints to keep, besides the best one
    checkpoint_format: Literal["whole", "sharded"] = "whole"  # sharded: all ranks write, in the background
    wandb_log: bool = False  # also log to Weights & Biases
    wandb_project: str = "cofrgenet"  # Weights & Biases: project
    wandb_run_name: str | None = None  # Weights & Biases: run name; None: name of the run folder
    # planning
    dry_run: bool = False  # print parameters, FLOPs, memory and hours, and train nothing
    dry_run_gpu: str = "H100"  # dry run: name of the GPU
    dry_run_gpus: int | None = None  # dry run: number of GPUs; None: torchrun's ranks, 1 without it
    dry_run_mfu: float = 0.4  # dry run: assumed MFU, a share of the peak FLOP rate

    def __post_init__(self):
        if self.saffu_only:
            self.max_iters = self.warmup_iters = 0

    def check(self) -> list[str]:
        wrong = super().check()
        own = [key for key in DEFAULTS if key.startswith("saffu_") and not hasattr(ModelConfig, key)]
        if self.model == "saffu":
            wrong += saffu_passes.mistakes(self)
        else:
            wrong += [
                f"{key}={getattr(self, key)} is a key of model=saffu, and this is model={self.model}"
                for key in own
                if getattr(self, key) != DEFAULTS[key]
            ]
        positive = "batch_size gradient_accumulation_steps max_iters log_interval eval_interval eval_tokens"
        positive += " checkpoint_interval keep_checkpoints learning_rate distributed_timeout"
        optional = "muon_learning_rate wsd_decay_iters dyadic_iters dry_run_gpus dry_run_mfu ladder_lr"
        for key in (*positive.split(), *optional.split()):
            if key == "max_iters" and self.saffu_only:
                continue
            if getattr(self, key) is not None and not getattr(self, key) > 0:
                wrong.append(f"{key} must be above 0, not {getattr(self, key)}")
        at_least_0 = "min_lr warmup_iters weight_decay grad_clip seed"
        for key in at_least_0.split():
            if not getattr(self, key) >= 0:
                wrong.append(f"{key} must not be below 0, not {getattr(self, key)}")
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), float) and math.isinf(value):
                wrong.append(f"{field.name} must be finite, not {value}")
        if not self.out_dir:
            wrong.append("out_dir is empty: give the run a folder of its own, such as out/mine")
        try:
            mixture.parse(self.dataset)
        except DataError as error:
            wrong.append(str(error))
        if self.encoder_layers > 0 and self.score_source:
            wrong.append(
                f"score_source=True, but encoder_layers={self.encoder_layers}: the encoder reads the "
                "source, and nothing predicts it; leave score_source out"
            )
        if self.seed >= 2**32:
            wrong.append(f"seed must be below 2^32, not {self.seed}")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                wrong.append(f"{key} must be in [0, 1), not {getattr(self, key)}")
        if not 0 <= self.label_smoothing < 1:
            wrong.append(f"label_smoothing must be in [0, 1), not {self.label_smoothing}")
        if self.lr_schedule == "rsqrt" and self.warmup_iters == 0:
            wrong.append(
                "lr_schedule=rsqrt is learning_rate sqrt(warmup_iters / step), 0 for warmup_iters=0: "
                "set it, such as to 400"
            )
        if self.min_lr > self.learning_rate:
            wrong.append(f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}")
        if self.warmup_iters >= self.max_iters and not self.saffu_only:
            wrong.append(f"warmup_iters={self.warmup_iters} leaves nothing of max_iters={self.max_iters}")
        if self.dry_run_mfu > 1:
            wrong.append(f"dry_run_mfu is a share, at most 1, not {self.dry_run_mfu}")
        if self.optimizer != "muon" and self.muon_learning_rate is not None:
            wrong.append(f"muon_learning_rate acts with optimizer=muon only, not with {self.optimizer}")
        if self.lr_schedule != "wsd" and self.wsd_decay_iters is not None:
            wrong.append(f"wsd_decay_iters acts with lr_schedule=wsd only, not with {self.lr_schedule}")
        elif self.warmup_iters < self.max_iters < self.warmup_iters + (self.wsd_decay_iters or 0):
            wrong.append(
                f"warmup_iters={self.warmup_iters} and wsd_decay_iters={self.wsd_decay_iters} are more "
                f"than max_iters={self.max_iters}"
            )
        known = self.attention in ATTENTION and self.ffn in FFN  # if not, that is said already
        for key in ("dyadic", "decay_ladders", "ladder_lr"):
            if getattr(self, key) != DEFAULTS[key] and known and not self.has_ladders:
                without = f"attention={self.attention} and ffn={self.ffn} have no ladders"
                without = without if self.model == "gpt" else f"model={self.model} has no ladders"
                without += f" with cf_control={self.cf_control}" if self.cf_control != "none" else ""
                instead = f"take --{key}={DEFAULTS[key]}, or a model with ladders (cattn_*, cffn_*)"
                wrong.append(f"{key}={getattr(self, key)}, but {without}: {instead}")
        if self.dyadic_iters is not None and self.dyadic_iters > self.max_iters > 0:
            wrong.append(f"dyadic_iters={self.dyadic_iters} is beyond max_iters={self.max_iters}")
        wrong += mistakes(self)
        if not self.dry_run:
            wrong += missing_gpu(self.device)
            if max_restarts() and not self.resume:
                wrong.append(
                    f"torchrun --max_restarts={max_restarts()} starts a run again in its folder, to go on "
                    "from the last checkpoint: add --resume=True"
                )
        ranks, key = gpus(self)
        if ranks > 0 and self.gradient_accumulation_steps % ranks:
            steps = self.gradient_accumulation_steps
            near = sorted({max(1, steps // ranks) * ranks, (steps // ranks + 1) * ranks})
            wrong.append(
                f"gradient_accumulation_steps={steps} is the micro-batches of all ranks together; "
                f"{key}={ranks} does not divide it: take {' or '.join(map(str, near))}"
                + (", or start as many ranks as divide it" if max_restarts() else "")
            )
        return wrong


DEFAULTS = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
# how ladders are trained: mistakes in a model that has none
OF_LADDERS = {"decay_ladders", "ladder_lr", "dyadic", "dyadic_iters"}
