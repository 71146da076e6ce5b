"""A family at a size -> the configuration of its runs.

The rules are the same for every family and size:

- Length: tokens = tokens_per_parameter x the size that was asked for, in whole fifths of a run. The size
  asked for and not the exact number of parameters, so that all families of a size see the same batches and
  their losses can be paired by seed.
- Batch: the recipe's at every size. In the range of one study, a rule for batches would be one more thing
  to sweep; the learning rate is swept for this batch.
- Learning rate: swept at the smallest size and at a larger one, for each family by itself, and a power of
  the width through both everywhere. For Adam's rates of matrices, Yang et al. (2022) have the power -1; for
  whole models whose tokens grow with their size, between -0.75 and -1.6 has been published. One power for
  all families would handicap some (results/scaling). A power that is given is checked: half and twice the
  rate are trained too.
- min_lr and muon_learning_rate keep their ratio to the learning rate.
- Warmup: the recipe's steps, but at most a tenth of the size's shortest run in the command that was first
  to train the size. Later lengths have the same, or one surface would mix two recipes.
- Evaluations and checkpoints: at every fifth. With lr_schedule=wsd the decay is the last fifth, so that a
  checkpoint lies where it begins, from which longer runs go on.
"""

from host.disk import write_whole

import dataclasses
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path

from ablation.product import Planned, folder_name
from comparison.labels import text
from models.architecture import ModelConfig
from models.kinds import flops_per_token
from scaling.command import Family
from scaling.sizing import Size
from training import checkpoint
from training.config import TrainConfig
from training.log import read_log

FIFTHS = 5


@dataclass
class Scaled(Planned):
    """A run of a study: also its family, size, tokens per parameter, and training FLOPs and seconds of a
    token.
    """

    family: str
    size: str
    ratio: float
    flops: int
    seconds: float = math.nan  # until they are measured
    shared: int = 0  # tokens that it does not train, because a shorter run has trained them
    after: str | None = None  # name of that run

    def work(self, tokens: int) -> float:
        """Hours: small models reach fewer FLOPs in one."""
        return max(0, tokens - self.shared) * self.seconds / 3600

    @property
    def rate(self) -> float:
        return self.config["learning_rate"]


def tokens_per_step(config: TrainConfig) -> int:
    return config.batch_size * config.gradient_accumulation_steps * config.block_size


def steps(config: TrainConfig, size: Size, ratio: float) -> int:
    """Steps of a run: a multiple of five, the nearest to ratio x size tokens."""
    return FIFTHS * max(1, round(size.target * ratio / tokens_per_step(config) / FIFTHS))


def warmup_of(config: TrainConfig, size: Size, shortest: float) -> int:
    """Steps of the warmup of a size whose shortest runs have so many tokens per parameter."""
    return min(config.warmup_iters, steps(config, size, shortest) // 10)


def moved_rate(rate: float, width: int, to_width: int, exponent: float) -> float:
    """The learning rate at another width, in three digits."""
    return float(f"{rate * (width / to_width) ** exponent:.3g}")


def run_of(
    family: Family, model: ModelConfig, size: Size, ratio: float, rate: float, seed: int, warmup: int
) -> Scaled:
    """One run. model: the family's at this size, with its vocabulary. warmup: steps, see `warmup_of`."""
    recipe = family.config
    length = steps(recipe, size, ratio)
    ratio_of = rate / recipe.learning_rate
    muon = recipe.muon_learning_rate and float(f"{recipe.muon_learning_rate * ratio_of:.3g}")
    config = dataclasses.replace(
        recipe,
        **vars(model),
        seed=seed,
        max_iters=length,
        learning_rate=rate,
        min_lr=float(f"{recipe.min_lr * ratio_of:.3g}"),
        muon_learning_rate=muon,
        warmup_iters=warmup,
        eval_interval=length // FIFTHS,
        checkpoint_interval=length // FIFTHS,
        keep_checkpoints=4,  # the one before the decay stays, even if that is interrupted twice
    )
    arm = f"{family.name}_{size.label}_tokens={ratio:g}_learning_rate={text(rate)}"
    return Scaled(
        name=folder_name(f"{arm}_seed={seed}"),
        arm=arm,
        config=dataclasses.asdict(config),
        family=family.name,
        size=size.label,
        ratio=ratio,
        flops=3 * flops_per_token(model),
    )


def chained(runs: list[Scaled]) -> list[Scaled]:
    """Runs that differ in their length alone, shortest first: each goes on from the one before.

    With lr_schedule=wsd, a run is the same as a longer one until its decay begins, to the bit where the
    device repeats itself. So each run starts from a copy of the shorter run's checkpoint of that step
    (`head_start`): all lengths together cost the longest run and the decays of the others. The run itself
    is an ordinary one. Without the copy it trains from the first step and ends with the same losses.

    Not with another schedule, where a shorter run has other rates from the first step on, nor with the
    dyadic schedule, where its depths wake at other steps: each length is then a run of its own.
    """
    for before, run in itertools.pairwise(runs):
        if run.config["lr_schedule"] == "wsd" and not run.config["dyadic"]:
            run.after, run.shared = before.name, before.tokens // FIFTHS * (FIFTHS - 1)
    return runs


def head_start(folder: Path, before: Scaled, run: Scaled) -> int:
    """Copy the checkpoint from which `before` began to decay, and its log up to there, into the folder of
    a longer run -> its step; 0 where there is nothing to copy, or where the longer run has begun.

    The log comes first: a run folder without a checkpoint starts anew, whatever its log says.
    """
    begins = before.config["max_iters"] // FIFTHS * (FIFTHS - 1)
    path, target = folder / before.name / "ckpt" / f"step_{begins:08d}.pt", folder / run.name
    if not path.is_file() or checkpoint.numbered(target / "ckpt"):
        return 0
    (target / "ckpt").mkdir(parents=True, exist_ok=True)
    records = [record for record in read_log(folder / before.name) if record["step"] <= begins]
    write_whole(target / "log.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    checkpoint.copy(path, target / "ckpt" / path.name)
    return begins
