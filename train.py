"""Pretrain one model.

    python train.py config/demo_dense.py
    python train.py config/cofrgenet_f.py config/size/small.py --dry_run=True
    torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py

config -> data -> model -> optimizer -> loop: `run` puts them together. training/config.py holds the keys of
a run with their defaults, models/architecture.py those of a model; `python train.py --help` lists them all.
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

import torch

import configurator
from corpus import DataError
from corpus.loader import Dataset
from corpus.mixture import Mixture
from models.architecture import model_config
from models.kinds import built
from models.language_model import LanguageModel
from training import causality, checkpoint, explicit_start, sharding
from training.checkpoint import CheckpointError
from training.config import TrainConfig
from training.distributed import Ranks, ends_process
from training.endings import ERRORS, TrainingError, endings, one_speaks
from training.hardware import choose_device, choose_dtype, flushed_denormals, keep_freed_memory
from training.inputs import open_data, open_source, resolved, saved_config, verify_training_data
from training.log import open_run
from training.optimizer import Optimizer, adamw, muon
from training.reporting import Report, announcement
from training.resume import Progress, fingerprint, later_bests, load_state, restore
from training.schedule import Dyadic
from training.stopping import Stop
from training.surgery import initialise
from training.trainer import Trainer


def main(argv: list[str]):
    ranks = Ranks()
    with one_speaks(ranks):
        config = configurator.parse(TrainConfig, argv, saved=saved_config)
    with endings(ranks, config.out_dir):
        if config.dry_run:
            if not ranks.first:  # a plan is one for all ranks
                return
            from scaling import quick_times
            from training import dry_run  # brings a part of PyTorch that no training needs

            return dry_run.show(config, quick_times.of_run)
        device = choose_device(config.device, ranks.local_rank)
        if config.deterministic:
            # what PyTorch demands for it; read when the first matrix product runs
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        keep_freed_memory(device)
        with (
            flushed_denormals(device, config.model == "saffu"),
            ranks.joined(device, config.distributed_timeout),
            Stop(ranks.first) as stop,
        ):
            finished = run(config, choose_dtype(config.dtype, device), ranks, device, stop)
        if not finished:
            sys.exit(stop.status)


def run(given: TrainConfig, dtype: str, ranks: Ranks, device: torch.device, stop: Stop) -> bool:
    """Check everything on every rank, claim the run folder, build or restore, train.

    given: what the user said, which leaves values open. Returns whether the run came to its end; a signal
    stops it earlier.
    """
    tried = ranks.on_first(lambda: causality.check(model_config(given), device), (TrainingError,))
    for warning in tried or []:
        ranks.say(warning)
    data, validation = ranks.agree(lambda: open_data(given), (DataError,))
    config = resolved(given, data, dtype)
    check_alike(config, data, ranks)
    folder = Path(config.out_dir)
    with contextlib.ExitStack() as claim:
        ranks.on_first(lambda: claim.enter_context(open_run(config.out_dir, config.resume)), ERRORS)
        restored = None
        if config.resume:
            # one copy in memory for all ranks, who copy it to their GPUs or read a part of it
            shared = device.type == "cuda" or (config.sharding != "none" and ranks.world > 1)
            # one rank of each machine compares the checksums
            found = (folder, config, fingerprint(data), shared, ranks.local_rank == 0, ranks.world)
            restored = ranks.agree(lambda: restore(*found), ERRORS, long=True)
            if ranks.same("the last checkpoint", restored and restored[0].name):
                message = f"not all ranks see the checkpoints of {folder}; it must be on a shared disk"
                ranks.fail(TrainingError(message))
        verify_training_data(config, data, ranks, resumed=restored is not None)
        source = None
        if restored is None and config.init_from:
            source = ranks.agree(lambda: open_source(config, data), ERRORS)

        torch.manual_seed(config.seed)
        model = ranks.agree(lambda: build_model(config, device, ranks), (TrainingError,))
        optimizer = build_optimizer(config, model)
        scaler = torch.amp.GradScaler(device.type, enabled=config.dtype == "float16")
        dyadic = Dyadic(model, config.dyadic_iters) if config.dyadic else None
        progress, changes, start, records = Progress(), {}, None, 0
        if restored is not None:
            path, content, changes = restored
            # of a finished run too, which saves nothing more
            ranks.on_first(lambda: checkpoint.remove_left_overs(folder / "ckpt"), ERRORS)
            start, records = content.get("start"), content.get("records", 0)
            state = (path, content, model, optimizer, scaler)
            progress = ranks.agree(lambda: load_state(*state), (CheckpointError,), long=True)
            ranks.say(f"resuming from {path}, step {progress.step:,} of {config.max_iters:,}")
            later = later_bests(path, progress) if ranks.first else []
            for line in [*changes.values(), *later]:
                ranks.say(f"  {line}")
        elif config.resume:
            begin = f"at {config.init_from}" if config.init_from else "from scratch"
            ranks.say(f"{folder} holds no checkpoint: starting {begin}")
        if source is not None:
            for line in ranks.agree(lambda: initialise(model, source), (CheckpointError,), long=True):
                ranks.say(line)

        ranks.say(announcement(config, data, ranks.world, device, dyadic))
        if config.sharding != "none":
            ranks.say(sharding.summary(config, ranks))
        report = Report(config, given, ranks, device, folder, progress, changes, records, data.unit)
        parts = (model, optimizer, scaler, dyadic, progress, report)
        trainer = Trainer(config, ranks, device, data, validation, *parts)
        if config.model == "saffu" and not progress.step and not explicit_start.run(trainer, start, stop):
            return False
        return trainer.train(stop)


def check_alike(config: TrainConfig, data: Dataset | Mixture, ranks: Ranks):
    """Raises TrainingError where a rank was started with another configuration, data set or PyTorch."""
    for what, value in (
        ("the configuration", dataclasses.asdict(config)),
        ("the data set", fingerprint(data)),
        ("PyTorch's version", torch.__version__),
    ):
        if difference := ranks.same(what, value):
            ranks.fail(TrainingError(f"{difference}: all ranks must be started alike"))


def build_model(config: TrainConfig, device: torch.device, ranks: Ranks) -> LanguageModel:
    """Built on the meta device, so that weights are drawn once, and where they are to be. With sharding no
    rank ever holds all of them; every rank draws all, in one order, and keeps its part.

    Raises TrainingError where a module cannot be built, or, naming it, leaves a parameter without a value.
    """
    try:
        with torch.device("meta"):
            model = built(model_config(config))
        if config.sharding != "none" and ranks.world > 1:
            with ranks.waiting("the weights of the other ranks"):
                sharding.shard(model, sharding.mesh(config, ranks, device))
                model = model.to_empty(device=device).init_weights(sharding.held_whole)
        else:
            model = model.to_empty(device=device).init_weights()
    except ValueError as error:
        raise TrainingError(f"the model cannot start: {error}") from None
    model.activation_checkpointing = config.activation_checkpointing
    model.label_smoothing = config.label_smoothing
    return model


def build_optimizer(config: TrainConfig, model: LanguageModel) -> Optimizer:
    betas = (config.beta1, config.beta2)
    keys = (config.learning_rate, config.weight_decay, betas, config.decay_ladders)
    if config.optimizer == "muon":
        # bfloat16 where the run uses it anyway; what trains in float16 may not have it
        half = config.dtype == "bfloat16"
        return muon(model, *keys, torch.bfloat16 if half else torch.float32)
    return adamw(model, *keys)


if __name__ == "__main__":
    with ends_process():
        main(sys.argv[1:])
