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
- Warmup: the recipe's steps, but at most a tenth of the run.
- Evaluations and checkpoints: at every fifth.
"""

import dataclasses
import math
from dataclasses import dataclass

from ablation.product import Planned, folder_name
from comparison.labels import text
from models.architecture import ModelConfig
from models.kinds import flops_per_token
from scaling.command import Family
from scaling.sizing import Size
from training.config import TrainConfig

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

    def work(self, tokens: int) -> float:
        """Hours: small models reach fewer FLOPs in one."""
        return tokens * self.seconds / 3600

    @property
    def rate(self) -> float:
        return self.config["learning_rate"]


def tokens_per_step(config: TrainConfig) -> int:
    return config.batch_size * config.gradient_accumulation_steps * config.block_size


def steps(config: TrainConfig, size: Size, ratio: float) -> int:
    """Steps of a run: a multiple of five, the nearest to ratio x size tokens."""
    return FIFTHS * max(1, round(size.target * ratio / tokens_per_step(config) / FIFTHS))


def moved_rate(rate: float, width: int, to_width: int, exponent: float) -> float:
    """The learning rate at another width, in three digits."""
    return float(f"{rate * (width / to_width) ** exponent:.3g}")


def run_of(family: Family, model: ModelConfig, size: Size, ratio: float, rate: float, seed: int) -> Scaled:
    """One run. model: the family's at this size, with its vocabulary."""
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
        warmup_iters=min(recipe.warmup_iters, max(1, length // 10)),
        eval_interval=length // FIFTHS,
        checkpoint_interval=length // FIFTHS,
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
