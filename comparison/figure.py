"""The curves of several arms in one picture."""

import io
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from comparison.runs import Arm, Run
from training.log import write_whole

# horizontal axes of the figure: the label, and the place of an evaluation of a run
AXES: dict[str, tuple[str, Callable[[Run, dict], float]]] = {
    "steps": ("steps", lambda run, evaluation: evaluation["step"]),
    "tokens": ("million tokens", lambda run, evaluation: evaluation["tokens"] / 1e6),
    "flops": (
        "training model FLOPs (petaFLOPs)",
        lambda run, evaluation: evaluation["tokens"] * run.training_flops / 1e15,
    ),
    "hours": (
        "hours of training, without evaluations",
        lambda run, evaluation: evaluation["seconds"] / 3600,
    ),
}


def curve(arm: Arm, against: str) -> list[tuple[float, float, float]]:
    """(place, mean, sample standard deviation over seeds) of the validation loss in nats per token.

    One tuple for each step that all runs of the arm evaluated and at which all losses are finite. place:
    the mean over the runs on the axis `against`.
    """
    points = []
    for step in arm.steps:
        evaluations = [run.evaluations[step] for run in arm.runs]
        places = [AXES[against][1](*pair) for pair in zip(arm.runs, evaluations, strict=True)]
        losses = [evaluation["val_loss"] for evaluation in evaluations]
        if all(map(math.isfinite, losses)):
            deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
            points.append((statistics.fmean(places), statistics.fmean(losses), deviation))
    return points


def draw(arms: list[Arm], against: str, path: Path):
    """Draws the validation loss of every arm as a PNG, with a band of one standard deviation over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    ends, seen = [], []
    for number, arm in enumerate(arms):
        points = curve(arm, against)
        if not points:
            continue
        places, means, deviations = zip(*points, strict=True)
        style = ("-", "--", ":", "-.")[number // 10 % 4]  # a new line style after ten colours
        label = f"{arm.name} ({len(arm.runs)} seeds)" if len(arm.runs) > 1 else arm.name
        (line,) = axes.plot(places, means, style, color=f"C{number % 10}", marker="o", ms=3, label=label)
        if any(deviations):
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2, lw=0)
        # the vertical axis ignores the first tenth, whose steep fall would squeeze the rest
        later = [point for point in points if point[0] >= places[-1] / 10]
        seen += [mean + sign * deviation for _, mean, deviation in later for sign in (-1, 1)]
        ends.append(places[-1])
    axes.set_xlabel(AXES[against][0])
    axes.set_ylabel("validation loss (nats per token)")
    axes.grid(alpha=0.3)
    if ends:
        axes.legend(fontsize="small" if len(ends) > 6 else None)
        axes.set_ylim(min(seen) - 0.1, max(seen) + 0.1)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    write_whole(path, image.getvalue())
