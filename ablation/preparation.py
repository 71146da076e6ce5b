"""Before the first run of an ablation starts: find every mistake, and show the plan."""

from ablation.execution import steps_so_far
from ablation.plan import Plan
from ablation.product import Planned
from configurator import ConfigError
from corpus import DataError
from reports.plural import counted
from training.checkpoint import CheckpointError
from training.config import DEFAULTS, TrainConfig
from training.inputs import open_data, open_source

# the keys that `open_data` reads
OF_THE_DATA = (
    *("dataset", "block_size", "vocab_size", "eval_tokens"),
    *("batch_size", "gradient_accumulation_steps", "score_source"),
    *("model", "encoder_layers", "init_from"),
)


def prepare(plan: Plan, runs: list[Planned], parallel: int, remarks: list[str]):
    """Find the finished runs, check the others, and print the plan. Raises ConfigError."""
    for line in remarks:  # before mistakes that may come of what they say
        print(line, flush=True)
    plan.find_finished()
    check(plan, runs)
    for line in announcement(plan, runs, parallel):
        print(line, flush=True)


def check(plan: Plan, runs: list[Planned]):
    """Check the data sets of the unfinished runs; raises ConfigError with all mistakes."""
    mistakes: dict[str, None] = {}
    seen = set()
    for run in runs:
        if unknown := run.config.keys() - DEFAULTS.keys():
            told = f"{run.name} is on the list with keys that train.py does not know: {', '.join(unknown)}"
            mistakes[told] = None
            continue
        if run.name in plan.done or (data := tuple(run.config[key] for key in OF_THE_DATA)) in seen:
            continue
        seen.add(data)
        try:
            config = TrainConfig(**run.config)
            opened, _ = open_data(config)
            if config.init_from:
                open_source(config, opened)
        except (CheckpointError, DataError, OSError) as error:
            mistakes[str(error)] = None
    if mistakes:
        raise ConfigError(list(mistakes))


def announcement(plan: Plan, runs: list[Planned], parallel: int) -> list[str]:
    """The plan in words: all runs, the finished ones, and how much is left to train."""
    todo = [run for run in runs if run.name not in plan.done]
    lines = [f"  {run.name}{': done' if run.name in plan.done else ''}" for run in runs]
    tokens = sum(run.tokens - run.tokens_at(steps_so_far(plan.folder / run.name)) for run in todo)
    done = [run for arm in plan.arms() for run in arm.runs]
    hours = sum(run.evaluations[run.last_step]["seconds"] for run in done) / 3600
    arms = len({run.arm for run in runs})
    how = "one after the other" if parallel == 1 else f"{parallel} at a time"
    lines.append(
        f"{counted(len(runs), 'run')} of {counted(arms, 'arm')} in {plan.folder}, "
        + f"{len(runs) - len(todo)} of them done"
        + (f" (the finished runs on the list took {hours:.2f} hours)" if hours else "")
        + f"; to train: {counted(len(todo), 'run')}, {how}, {tokens:,} tokens"
    )
    if others := len(plan.runs.keys() - {run.name for run in runs}):
        come = "runs on the list come" if others > 1 else "run on the list comes"
        lines.append(f"{others} more {come} from earlier commands: finished ones are in the table")
    return lines
