"""The curves of several arms in one picture."""

import itertools
import math
import statistics
from collections.abc import Callable

from comparison.labels import labels
from comparison.runs import Arm, Run, different_tokenizers
from reports import picture
from reports.plural import counted

# horizontal axes of the figure: what is counted there, and the place of an evaluation of a run
AXES: dict[str, tuple[str, Callable[[Run, dict], float]]] = {
    "steps": ("steps", lambda run, evaluation: evaluation["step"]),
    "tokens": ("tokens", lambda run, evaluation: evaluation["tokens"]),
    "flops": ("flops", lambda run, evaluation: evaluation["tokens"] * run.training_flops),
    "hours": ("seconds", lambda run, evaluation: evaluation["seconds"]),
}
NATS = ("val_loss", "validation loss (nats per token)")
# nats per token of different tokenizers are of different tokens
BITS = ("val_bits_per_byte", "validation loss\n(bits per byte; tokenizers differ)")


def loss_key(arms: list[Arm]) -> tuple[str, str]:
    """(key of an evaluation, label) of the loss in which these arms can be compared."""
    return BITS if different_tokenizers(arms) else NATS


def curve(arm: Arm, against: str, key: str = "val_loss") -> list[tuple[float, float, float]]:
    """(place, mean, sample standard deviation over seeds) of the validation loss.

    One tuple for each step that all runs of the arm evaluated and at which all losses are finite. place:
    the mean over the runs on the axis `against`, in steps, tokens, FLOPs or seconds. key: of `loss_key`.
    """
    points = []
    for step in arm.steps:
        evaluations = [run.evaluations[step] for run in arm.runs]
        places = [AXES[against][1](*pair) for pair in zip(arm.runs, evaluations, strict=True)]
        losses = [evaluation[key] for evaluation in evaluations]
        if all(map(math.isfinite, losses)):
            deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
            points.append((statistics.fmean(places), statistics.fmean(losses), deviation))
    return points


@picture.drawing()
def draw(arms: list[Arm], against: str, look: picture.Look = picture.PLAIN, study: list[str] | None = None):
    """A figure of the validation loss of every arm, with a band of one standard deviation over seeds.

    study: the keys that the comparison is about, for the legend.
    """
    figure, ((axes,),) = picture.new(look)
    key, label = loss_key(arms)
    points = [curve(arm, against, key) if arm.runs else [] for arm in arms]
    size, where = picture.unit(AXES[against][0], max((p[-1][0] for p in points if p), default=0))
    seeds = {len(arm.runs) for arm in arms if arm.runs}
    names = look.names(labels(arms, study))
    handles, shown, seen = [], [], []
    for number, (arm, found, name) in enumerate(zip(arms, points, names, strict=True)):
        if not found:
            continue
        places, means, deviations = zip(*found, strict=True)
        places = [place / size for place in places]
        some = max(1, len(places) // 20)  # markers that touch each other are a thick line
        (line,) = axes.plot(places, means, **picture.line_style(number), markevery=some)
        low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
        if any(deviations):
            axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2, lw=0)
        whole = arm.given.get("init_from") is not None
        seen += [(places, low, whole), (places, high, whole)]
        handles.append(line)
        shown.append(name if len(seeds) == 1 else f"{name} ({counted(len(arm.runs), 'seed')})")
    axes.set_xlabel(where)
    axes.set_ylabel(label)
    if handles:
        picture.focus(axes, seen)
        inside = [_inside(axes, handle) for handle in handles]
        handles, shown = (list(itertools.compress(each, inside)) for each in (handles, shown))
        banded = max(seeds) > 1
        of = counted(max(seeds), "seed") if len(seeds) == 1 else "the seeds"
        title = f"mean ± standard deviation of {of}" if banded else None
        picture.legend(figure, axes, handles, shown, title)
    return figure


def _inside(axes, line) -> bool:
    """Whether a point of a line can be seen within the vertical limits."""
    low, high = axes.get_ylim()
    return any(low <= loss <= high for loss in line.get_ydata())
