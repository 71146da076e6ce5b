"""How train.py ends when it cannot go on: one message, from one rank, and a status that is not 0."""

from host.disk import lacks_space

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from corpus import DataError
from training import checkpoint
from training.checkpoint import CheckpointError
from training.distributed import LostRankError, OtherRankError, Ranks, tell_torchrun
from training.hardware import DeviceError
from training.log import RunFolderError


class TrainingError(RuntimeError):
    """Training cannot go on; says why and what to do."""


# what a reader can mend; anything else is a bug and shows its traceback
ERRORS = (DataError, CheckpointError, RunFolderError, DeviceError, TrainingError, OSError)


@contextlib.contextmanager
def endings(ranks: Ranks, out_dir: str) -> Iterator[None]:
    """Turn what ends a run early into a message that says how to go on, and exit with status 1."""
    try:
        try:
            yield
        except (OtherRankError, LostRankError):
            raise
        except BaseException:
            ranks.speaks()
            raise
    except OtherRankError:
        ranks.let_another_speak()
        sys.exit(1)
    except LostRankError as error:
        if error.speak:
            print(f"train.py: {error}. {how_to_go_on(out_dir)}", file=sys.stderr, flush=True)
        os._exit(1)  # threads of the process group may wait for ever
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"train.py: rank {ranks.rank} is out of memory ({str(error).splitlines()[0]}). Take a smaller "
            "batch_size and as many more gradient_accumulation_steps, activation_checkpointing=True or, on "
            "several GPUs, sharding=full; --dry_run=True estimates what a step needs. "
            f"{how_to_go_on(out_dir)}"
        )
    except ERRORS as error:
        sys.exit(f"train.py: {error}" + (f". {how_to_go_on(out_dir)}" if lacks_space(error) else ""))
    except KeyboardInterrupt:
        sys.exit(f"train.py: interrupted. {how_to_go_on(out_dir)}")


@contextlib.contextmanager
def one_speaks(ranks: Ranks) -> Iterator[None]:
    """While the command line is read, only one rank on each machine says what is wrong with it."""
    speaks, said = ranks.local_rank == 0, io.StringIO()
    try:
        try:
            with contextlib.redirect_stderr(said):
                yield
        finally:
            print(said.getvalue() if speaks else "", end="", file=sys.stderr, flush=True)
    except SystemExit as end:
        if speaks and end.code:
            tell_torchrun(said.getvalue())
        ranks.let_another_speak(first=speaks)
        raise


def how_to_go_on(out_dir: str) -> str:
    if not (Path(out_dir) / "config.json").exists():
        return "No run was started"
    if saved := checkpoint.saved(Path(out_dir)):
        return f"--resume=True --out_dir={out_dir} goes on from {saved[-1].name}"
    return "The same command with --resume=True starts again: there is no checkpoint yet"
