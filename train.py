"""Pretrain one model.

    python train.py config/demo_dense.py
    python train.py config/cofrgenet_f.py config/size/small.py --dry_run=True
    torchrun --nproc_per_node=8 train.py config/cofrgenet_f.py

config -> data -> model -> loop. The keys and their defaults stand in training/config.py and in model.py;
`python train.py --help` lists them all.
"""

import contextlib
import dataclasses
import io
import os
import sys
from pathlib import Path

import torch

import configurator
from architecture import model_config
from data import DataError, mixture
from training import checkpoint
from training.checkpoint import CheckpointError
from training.config import TrainConfig, saved_config
from training.distributed import LostRankError, OtherRankError, Ranks, ends_process
from training.hardware import DeviceError, choose_device, choose_dtype, keep_freed_memory, peak_flops
from training.inputs import open_data, open_source, verify_training_data
from training.log import RunFolderError, open_run
from training.resume import fingerprint, restore
from training.stopping import Stop
from training.trainer import Trainer, TrainingError

ERRORS = (DataError, CheckpointError, RunFolderError, DeviceError, TrainingError, OSError)


def main(argv: list[str]):
    ranks = Ranks()
    # one rank on each machine says what is wrong with the command line
    with contextlib.redirect_stderr(sys.stderr if ranks.local_rank == 0 else io.StringIO()):
        try:
            config = configurator.parse(TrainConfig, argv, saved=saved_config)
        except SystemExit:
            ranks.let_another_speak(first=ranks.local_rank == 0)
            raise
    try:
        if config.dry_run:
            return plan(config)
        device = choose_device(config.device, ranks.local_rank)
        config.dtype = choose_dtype(config.dtype, device)
        keep_freed_memory(device)
        with ranks.joined(device, config.distributed_timeout), Stop(ranks.first) as stop:
            finished = run(config, ranks, device, stop)
        if not finished:
            sys.exit(stop.status)
    except OtherRankError:
        ranks.let_another_speak()
        sys.exit(1)
    except LostRankError as error:
        if error.speak:
            print(f"\ntrain.py: {error}. {how_to_go_on(config)}", file=sys.stderr, flush=True)
        os._exit(1)  # threads of the process group may wait for ever
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"train.py: rank {ranks.rank} is out of memory ({str(error).splitlines()[0]}). Take a smaller "
            "batch_size and as many more gradient_accumulation_steps, or activation_checkpointing=True; "
            f"--dry_run=True estimates what a step needs. {how_to_go_on(config)}"
        )
    except ERRORS as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        sys.exit(f"train.py: interrupted. {how_to_go_on(config)}")


def how_to_go_on(config: TrainConfig) -> str:
    saved = checkpoint.numbered(Path(config.out_dir) / "ckpt")
    where = f"goes on from {saved[-1].name}" if saved else "starts again: there is no checkpoint yet"
    return f"--resume=True --out_dir={config.out_dir} {where}"


def plan(config: TrainConfig):
    """What --dry_run=True prints; needs no data set."""
    from training import dry_run  # brings a part of PyTorch that no training needs

    folders, _ = mixture.parse(config.dataset)
    if all((Path(folder) / "meta.json").is_file() for folder in folders):
        data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
        config.vocab_size = config.vocab_size or data.meta["vocab_size"]
        vocabulary = f"{data.meta['vocab_size']:,} (of {config.dataset})"
    elif config.vocab_size:
        vocabulary = f"{config.vocab_size:,} (vocab_size)"
    else:
        config.vocab_size = 50257
        vocabulary = f"50,257 (GPT-2's: {config.dataset} is not prepared yet)"
    if config.dtype == "auto":
        known, native = (peak_flops(config.dry_run_gpu, dtype) for dtype in ("float32", "bfloat16"))
        config.dtype = "float32" if known and not native else "bfloat16"
    for line in dry_run.lines(config, model_config(config), vocabulary):
        print(line, flush=True)


def run(config: TrainConfig, ranks: Ranks, device: torch.device, stop: Stop) -> bool:
    """Check everything on every rank, claim the run folder, restore, train; whether it came to the end."""
    data, validation = ranks.agree(lambda: open_data(config), (DataError,))
    if config.dyadic and config.dyadic_iters is None:
        config.dyadic_iters = config.max_iters
    for what, value in (
        ("the configuration", dataclasses.asdict(config)),
        ("the data set", fingerprint(data)),
        ("PyTorch's version", torch.__version__),
    ):
        if difference := ranks.same(what, value):
            ranks.fail(TrainingError(f"{difference}: all ranks must be started alike"))
    folder = Path(config.out_dir)
    with contextlib.ExitStack() as claim:
        ranks.on_first(lambda: claim.enter_context(open_run(config.out_dir, config.resume)), ERRORS)
        restored = None
        if config.resume:
            shared = device.type == "cuda"  # one copy in memory for all ranks, who copy it to their GPUs
            restored = ranks.agree(lambda: restore(folder, config, fingerprint(data), shared), ERRORS)
            if ranks.same("the last checkpoint", restored and restored[0].name):
                message = f"not all ranks see the checkpoints of {folder}; it must be on a shared disk"
                ranks.fail(TrainingError(message))
        verify_training_data(config, data, ranks, resumed=restored is not None)
        source = None
        if restored is None and config.init_from:
            source = ranks.agree(lambda: open_source(config, data), ERRORS)
        return Trainer(config, ranks, device, folder, data, validation, restored, source).train(stop)


if __name__ == "__main__":
    with ends_process():
        main(sys.argv[1:])
