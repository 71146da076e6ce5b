"""The keys of a training run."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import config_keys
from config_keys import (
    FREE,
    FROM_HERE,
    INCIDENTAL,
    OF_LADDERS,
    Above,
    AtMost,
    Changes,
    Count,
    CountOrNone,
    Fixed,
    Natural,
    NotNegative,
    Positive,
    Seed,
    Share,
    With,
)
from corpus import DataError, mixture
from layers import ATTENTION, FFN
from models.architecture import ModelConfig
from training import profiling, saffu_passes, tracking
from training.distributed import max_restarts
from training.hardware import Device, missing_gpu
from training.sharding import gpus, mistakes

NEXT_SAMPLE = Changes("goes on at the next unread sample")
WAKES = Fixed("it moves the steps at which depths wake")
SAME_LOSSES = Changes("the same model and losses, up to rounding")


@dataclass
class RunKeys:
    MARKS = (FREE,)

    # run
    #: run folder: config.json, log.jsonl, loss.png, ckpt/
    out_dir: Annotated[str, INCIDENTAL] = "out/gpt2"
    #: continue from the last checkpoint in out_dir; start anew if there is none
    resume: Annotated[bool, INCIDENTAL] = False
    #: start from a run, a model folder, gpt2, gpt2-medium, -large or -xl, or the hub's OWNER/NAME
    init_from: Annotated[str | None, Fixed("the weights began there")] = None
    #: seed of the weights, the order of the data and dropout
    seed: Annotated[Seed, Fixed("it decides the order of the data, of which a part has been read")] = 1337
    device: Device = "auto"  # auto: a CUDA GPU if there is one; mps: Apple's, untried
    #: dtype of matrix products
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], FROM_HERE] = "auto"
    compile: bool = True  # torch.compile the training step; on a CPU this needs a C++ compiler
    cuda_graph: bool = True  # on one GPU: launch forward and backward pass at once, which is faster
    deterministic: bool = False  # on a GPU: attention too has the same numbers in each run
    activation_checkpointing: bool = False  # recompute each block in the backward pass: less memory, slower
    #: ranks share weights and optimizer state
    sharding: Annotated[Literal["none", "full", "hybrid"], SAME_LOSSES] = "none"
    #: hybrid: ranks that share one model; None: those of a machine
    sharding_ranks: Annotated[int | None, With("sharding", "hybrid"), SAME_LOSSES] = None
    #: seconds that a rank waits for the others before it exits
    distributed_timeout: Annotated[Positive, INCIDENTAL] = 600.0


@dataclass
class DataKeys:
    MARKS = (FREE,)

    # data
    dataset: str = "data/openwebtext/gpt2"  # prepared folder, or a mixture: folder:weight,folder:weight
    #: read and check all training data first; None: if half of it is read
    verify_data: Annotated[bool | None, INCIDENTAL] = None
    #: pairs: the training loss is of the source's tokens too
    score_source: Annotated[bool, Fixed("the loss so far is of other tokens")] = False
    batch_size: Annotated[Count, NEXT_SAMPLE] = 12  # sequences in a micro-batch
    #: micro-batches per step, over all ranks together
    gradient_accumulation_steps: Annotated[Count, NEXT_SAMPLE] = 40


@dataclass
class OptimisationKeys:
    MARKS = (FROM_HERE,)

    # optimisation
    #: number of steps
    max_iters: Annotated[
        int, Changes("the schedule is that of the new number, but for when ladder depths wake")
    ] = 600_000
    #: muon: for linear maps of the blocks, else AdamW
    optimizer: Annotated[
        Literal["adamw", "muon"], Fixed("the moments that were saved mean nothing to the other one")
    ] = "adamw"
    learning_rate: Positive = 6e-4  # peak learning rate, after the warmup
    #: muon: peak learning rate of Muon; None: learning_rate
    muon_learning_rate: Annotated[float | None, Above(0), With("optimizer", "muon")] = None
    lr_schedule: Literal["cosine", "linear", "wsd", "rsqrt"] = "cosine"  # shape of the decay
    min_lr: NotNegative = 6e-5  # learning rate at the end of the schedule; rsqrt: the lowest
    warmup_iters: Natural = 2000  # steps of linear warmup
    #: wsd: steps of the decay; None: a fifth of max_iters
    wsd_decay_iters: Annotated[CountOrNone, With("lr_schedule", "wsd")] = None
    weight_decay: NotNegative = 0.1  # weight decay of matrices and embeddings; norms and biases have none
    #: apply weight decay to the matrices of ladders too
    decay_ladders: Annotated[bool, OF_LADDERS] = False
    ladder_lr: Annotated[Positive, OF_LADDERS] = 1.0  # factor on the learning rate of the ladder weights
    beta1: Share = 0.9  # AdamW: decay rate of the first moment
    beta2: Share = 0.95  # AdamW: decay rate of the second moment
    label_smoothing: Share = 0.0  # share of the target's probability that all tokens divide in training
    grad_clip: NotNegative = 1.0  # clip the gradient norm to this; 0: no clipping
    #: train ladder weights of depth i only in the last max_iters / 2^i steps
    dyadic: Annotated[
        bool, OF_LADDERS, Fixed("depths that trained would fall asleep again, or the other way round")
    ] = False
    #: dyadic: steps that are divided by 2^i; None: max_iters
    dyadic_iters: Annotated[CountOrNone, OF_LADDERS, WAKES] = None


@dataclass
class SaffuStartKeys:
    MARKS = (With("model", "saffu"), Fixed("the weights began with it"))

    # start of model=saffu
    saffu_init: Literal["explicit", "prior", "random"] = "explicit"  # from counts, or random weights
    saffu_embeddings: Literal["cipher", "random"] = "cipher"  # bit-cipher by counts; random: not explicit
    saffu_tokens: CountOrNone = None  # tokens that are counted, the run's first samples; None: an epoch
    saffu_tuning: Natural = 0  # further passes that tune the attention with the weights so far
    #: stop after the start: no step of training
    saffu_only: Annotated[bool, Changes("training follows the explicit start")] = False
    saffu_attention: Literal["printed", "negated", "uniform"] = "printed"  # sign of V; uniform: W = 0
    saffu_priming: Literal["bound", "mean"] = "bound"  # K of the decoders: K log K, or the mean norm of H
    #: K of the head; None: the number of units
    saffu_output_priming: Annotated[float | None, Above(0)] = None
    saffu_floor: Annotated[Positive, AtMost(1)] = 1e-12  # of co-occurrences, as a share of the largest one
    #: factor on the evidence of the decoders, not on the prior; 1: the paper
    saffu_temperature: Positive = 1.0


@dataclass
class WatchingKeys:
    MARKS = (FREE,)

    # watching
    log_interval: Count = 10  # steps between training records
    eval_interval: Count = 2000  # steps between evaluations
    #: validation tokens per evaluation, the same ones each time
    eval_tokens: Annotated[Count, Fixed("the best validation loss so far is of other tokens")] = 1_048_576
    checkpoint_interval: Count = 2000  # steps between checkpoints; a new best model is saved as well
    #: number of newest checkpoints to keep, besides the best one
    keep_checkpoints: Annotated[Count, INCIDENTAL] = 2
    #: sharded: all ranks write, in the background
    checkpoint_format: Annotated[
        Literal["whole", "sharded"], INCIDENTAL, Changes("from the next checkpoint on")
    ] = "whole"


@dataclass
class PlanningKeys:
    MARKS = (INCIDENTAL,)

    # planning
    dry_run: bool = False  # print parameters, FLOPs, memory and hours, and train nothing
    dry_run_gpu: str = "H100"  # dry run: name of the GPU
    dry_run_gpus: CountOrNone = None  # dry run: number of GPUs; None: torchrun's ranks, 1 without it
    dry_run_mfu: Annotated[Positive, AtMost(1)] = 0.4  # dry run: assumed MFU, a share of the peak FLOP rate


@dataclass
class TrainConfig(
    PlanningKeys,
    profiling.Keys,
    tracking.Keys,
    WatchingKeys,
    SaffuStartKeys,
    OptimisationKeys,
    DataKeys,
    RunKeys,
    ModelConfig,
):
    """Pretrain one model. Defaults are nanoGPT's for GPT-2 (124M)."""

    def __post_init__(self):
        if self.saffu_only and (self.max_iters or self.warmup_iters):
            self.max_iters = self.warmup_iters = 0

    def check(self) -> list[str]:
        wrong = super().check()
        wrong += config_keys.idle(self)
        if self.model == "saffu":
            wrong += saffu_passes.mistakes(self)
        if self.max_iters < 1 and not self.saffu_only:
            wrong.append(f"max_iters must be at least 1, not {self.max_iters}")
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
        if self.lr_schedule == "rsqrt" and self.warmup_iters == 0:
            wrong.append(
                "lr_schedule=rsqrt is learning_rate sqrt(warmup_iters / step), 0 for warmup_iters=0: "
                "set it, such as to 400"
            )
        if self.min_lr > self.learning_rate > 0:
            above = f"min_lr={self.min_lr} is above learning_rate={self.learning_rate}"
            wrong.append(f"{above}: take --min_lr={self.learning_rate / 10:.4g}, a tenth")
        if self.warmup_iters >= self.max_iters > 0:
            tenth = self.max_iters // 10 or int(self.lr_schedule == "rsqrt")
            wrong.append(
                f"warmup_iters={self.warmup_iters} leaves nothing of max_iters={self.max_iters}: "
                f"take --warmup_iters={tenth}, a tenth"
            )
        if self.warmup_iters < self.max_iters < self.warmup_iters + (self.wsd_decay_iters or 0):
            wrong.append(
                f"warmup_iters={self.warmup_iters} and wsd_decay_iters={self.wsd_decay_iters} are more "
                f"than max_iters={self.max_iters}"
            )
        known = self.attention in ATTENTION and self.ffn in FFN  # if not, that is said already
        for key in sorted(config_keys.marked(TrainConfig, OF_LADDERS)):
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
            wrong += tracking.mistakes(self)
            wrong += profiling.mistakes(self, self.max_iters)
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

    def keys_read(self) -> set[str]:
        """The keys that the model, its optimizer and its schedules read."""
        own = {*DEFAULTS} - {*config_keys.names(ModelConfig)}
        own = {key for key in own if config_keys.acts(self, key)}
        own -= set() if self.has_ladders else config_keys.marked(TrainConfig, OF_LADDERS)
        # no With("dyadic", True): a resumed run brings its number, and is told why dyadic must stay
        return super().keys_read() | (own if self.dyadic else own - {"dyadic_iters"})


class RunConfig(TrainConfig):
    """What a run is: a config that leaves nothing open. Nothing writes to it: raises AttributeError."""

    def __setattr__(self, key, value):
        if key in vars(self):
            raise AttributeError(f"{key} of a run is {getattr(self, key)!r}, and stays so")
        super().__setattr__(key, value)


DEFAULTS = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
