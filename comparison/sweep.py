"""Sweeps: the validation loss against a key, for models that ran with several values of it alone."""

import itertools
import math
import statistics
from dataclasses import dataclass

from comparison.differences import SCORED
from comparison.figure import loss_key
from comparison.labels import FOLLOWS, labels, text, without_keys
from comparison.runs import INCIDENTAL, Arm
from comparison.significance import mean_and_deviation
from reports import picture
from reports.markdown_table import table
from reports.plural import counted


@dataclass
class SweptModel:
    """A model of a sweep: its arms, by the value of the swept key, in order."""

    name: str
    arms: dict[float, Arm]

    @property
    def best(self) -> float | None:
        """The value with the lowest mean loss, of those whose seeds all came as far as any arm did."""
        losses = {
            value: statistics.fmean(found) for value, arm in self.arms.items() if (found := self.ends(arm))
        }
        return min(losses, key=losses.get) if losses else None

    @property
    def last_step(self) -> int:
        return max((arm.steps[-1] for arm in self.arms.values() if arm.runs), default=0)

    def finished(self, arm: Arm) -> bool:
        return arm.steps[-1] >= min(self.last_step, arm.given["max_iters"])

    def ends(self, arm: Arm, key: str = "val_loss") -> list[float]:
        """The losses of the arm's seeds at the last step; empty where a seed failed or is not there."""
        if not arm.runs or arm.failed or not self.finished(arm):
            return []
        losses = [run.evaluations[arm.steps[-1]][key] for run in arm.runs]
        return losses if all(map(math.isfinite, losses)) else []


@dataclass
class Sweep:
    key: str
    lines: list[SweptModel]

    @property
    def values(self) -> list[float]:
        return sorted({value for line in self.lines for value in line.arms})


def sweeps(arms: list[Arm], keys: list[str] | None = None) -> list[Sweep]:
    """The sweeps over those of `keys` that are numbers; None: over the learning rate."""
    keys = list(dict.fromkeys(keys or ["learning_rate"]))
    followed = [key for key in keys if FOLLOWS.get(key) not in keys]
    found = [sweep(arms, key) for key in followed if key not in {*SCORED, *INCIDENTAL, "seed"}]
    return [one for one in found if one is not None]


def sweep(arms: list[Arm], key: str) -> Sweep | None:
    """The models that ran with two values of `key` or more, and with nothing else changed but keys that
    follow it (min_lr follows learning_rate). None where there is no such model.
    """
    arms = [arm for arm in arms if type(arm.given.get(key)) in (int, float)]
    following = {follower for follower, leader in FOLLOWS.items() if leader == key}
    groups = _groups(arms, key, following)
    own = [key, *sorted(following)]
    if any(
        len({arm.given[key] for arm in group}) < len({tuple(map(arm.given.get, own)) for arm in group})
        for group in groups
    ):
        following = set()  # they were varied on their own as well
        groups = _groups(arms, key, following)
    groups = [group for group in groups if len({arm.given[key] for arm in group}) > 1]
    if not groups:
        return None
    swept = {key, *following}
    first = [
        Arm(
            without_keys(group[0].name, {*swept, "seed"}),
            [],
            planned={k: v for k, v in group[0].given.items() if k not in swept},
        )
        for group in groups
    ]
    lines = []
    for name, group in zip(labels(first), groups, strict=True):
        ordered = sorted(group, key=lambda arm: (arm.given[key], len(arm.runs)))  # of equals, most seeds
        lines.append(SweptModel(name, {arm.given[key]: arm for arm in ordered}))
    return Sweep(key, lines)


def _groups(arms: list[Arm], key: str, following: set[str]) -> list[list[Arm]]:
    """Arms whose configs are the same but for `key`, the keys that follow it, and seeds."""
    ignored = {*INCIDENTAL, "seed", key, *following}
    groups: list[tuple[dict, list[Arm]]] = []
    for arm in arms:
        rest = {k: v for k, v in arm.given.items() if k not in ignored}
        same = next((group for config, group in groups if config == rest), None)
        if same is None:
            groups.append((rest, [arm]))
        else:
            same.append(arm)
    return [group for _, group in groups]


def markdown(found: Sweep) -> str:
    """A table with a row for each value and a column for each model, the best value of each model in bold.

    Losses are means ± sample standard deviations over seeds.
    """
    key, label = loss_key([arm for line in found.lines for arm in line.arms.values()])
    unit = label[label.index("(") + 1 : -1].split(";")[0]
    several = len(found.lines) > 1
    heads = [f"{line.name if several else 'validation loss'}, {unit}" for line in found.lines]
    rows = []
    for value in found.values:
        row = {found.key: text(value)}
        for head, line in zip(heads, found.lines, strict=True):
            row[head] = _cell(line, value, key) if value in line.arms else ""
        rows.append(row)
    return table(rows)


def _cell(line: SweptModel, value: float, key: str) -> str:
    arm = line.arms[value]
    if not arm.runs:
        return "failed"
    losses = [run.evaluations[arm.steps[-1]][key] for run in arm.runs]
    numbers = mean_and_deviation(losses) if len(losses) > 1 else losses
    cell = " ± ".join(f"{number:.4f}" for number in numbers)
    if value == line.best:
        cell = f"**{cell}**"
    if arm.failed:
        cell += f" ({arm.failed} of {len(arm.runs) + arm.failed} failed)"
    return cell if line.finished(arm) else f"{cell} (step {arm.steps[-1]:,})"


def remarks(found: Sweep) -> list[str]:
    """The best value of each model, with a warning where it is the largest or smallest that was tried.

    Only keys that are no whole numbers are warned of: a larger model or a longer run is better as a rule.
    """
    lines = []
    for line in found.lines:
        if (best := line.best) is None:
            continue
        said = f"{line.name}: the best {found.key} of {len(line.arms)} is {text(best)}"
        values = list(line.arms)
        place = "largest" if best == values[-1] else "smallest" if best == values[0] else None
        if place and best and type(best) is float:
            beyond = _beyond(values if place == "largest" else values[::-1])
            said += f", the {place} tried" + (f": try {text(beyond)}" if beyond else "")
        lines.append(said)
    return lines


def _beyond(values: list[float]) -> float | None:
    """The next value of a row of values: by their last factor, or by their last step if the steps are more
    alike. None where a key that is a share would reach 1, or a value 0.
    """
    (before, last), pairs = values[-2:], list(itertools.pairwise(values))
    factors = [math.log(b / a) for a, b in pairs] if min(values) > 0 else []
    steps = [b - a for a, b in pairs]
    if factors and (len(values) < 3 or _spread(factors) <= _spread(steps)):
        beyond = last * last / before
    else:
        beyond = 2 * last - before
    beyond = float(f"{beyond:.3g}")
    return None if beyond <= 0 or beyond >= 1 > last else beyond


def _spread(numbers: list[float]) -> float:
    return statistics.pstdev(numbers) / abs(statistics.fmean(numbers))


@picture.drawing()
def draw(found: Sweep, look: picture.Look = picture.PLAIN):
    """A figure of the losses at the last step against the key: means as lines, seeds as points, the best
    value of each model as a star, and values at which a run failed or diverged as crosses at the top.
    """
    arms = [arm for line in found.lines for arm in line.arms.values()]
    key, label = loss_key(arms)
    figure, ((axes,),) = picture.new(look)
    handles, seeds = [], set()
    star = {"marker": "*", "ms": 9, "mec": "black", "mew": 0.5, "ls": ""}
    cross = {"marker": "x", "ms": 5, "mew": 1.5, "ls": ""}
    failed, bad = 0, _diverged(found, key)
    stars: list[float] = []
    for number, line in enumerate(found.lines):
        style = picture.line_style(number)
        ends = {
            value: [] if (number, value) in bad else line.ends(arm, key) for value, arm in line.arms.items()
        }
        means = {value: statistics.fmean(losses) for value, losses in ends.items() if losses}
        (handle,) = axes.plot(list(means), list(means.values()), **style)
        handles.append(handle)
        seeds |= {len(losses) for losses in ends.values() if losses}
        points = [(value, loss) for value, losses in ends.items() for loss in losses if len(losses) > 1]
        if points:
            dots = {**style, "ls": "", "ms": 2.5, "alpha": 0.5, "mew": 0}
            axes.plot(*zip(*points, strict=True), **dots)
        if line.best in means:
            # a star in a star, where two models have the same best value
            size = {"ms": max(4, 13 - 5 * stars.count(line.best)), "zorder": 4 + 0.01 * number}
            stars.append(line.best)
            axes.plot([line.best], [means[line.best]], color=style["color"], **{**star, **size})
        if missing := [value for value, losses in ends.items() if not losses]:
            height = 0.97 - 0.05 * failed
            failed += 1
            place = axes.get_xaxis_transform()
            style = {"color": style["color"], "transform": place, "clip_on": False, **cross}
            axes.plot(missing, [height] * len(missing), **style)
    names = look.names([line.name for line in found.lines])
    handles.append(axes.plot([], [], color="0.6", **star)[0])
    names.append("best")
    if failed:
        handles.append(axes.plot([], [], color="0.4", **cross)[0])
        names.append("failed, diverged or not finished" if bad else "failed or not finished")
    values = found.values
    if all(type(value) is float for value in values) and min(values) > 0 and values[-1] / values[0] >= 3:
        axes.set_xscale("log")
        axes.margins(x=0.08)
    ticks = _apart(values, axes.get_xscale() == "log", 0.7 * figure.get_size_inches()[0])
    axes.set_xticks(ticks, [text(value) for value in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(found.key)
    axes.set_ylabel(label)
    axes.margins(y=0.12)
    title = f"mean of {counted(max(seeds), 'seed')}; points: seeds" if seeds and max(seeds) > 1 else None
    picture.legend(figure, axes, handles, names, title)
    return figure


def _diverged(found: Sweep, key: str) -> set[tuple[int, float]]:
    """(number of the line, value) of the arms whose mean loss diverged; see `picture.diverged`."""
    places, ends = [], []
    for number, line in enumerate(found.lines):
        for value, arm in line.arms.items():
            if losses := line.ends(arm, key):
                first = statistics.fmean(run.evaluations[arm.steps[0]][key] for run in arm.runs)
                places.append((number, value))
                ends.append((first, statistics.fmean(losses), arm.given.get("init_from") is not None))
    bad = picture.diverged(ends)
    return {place for place, wrong in zip(places, bad, strict=True) if wrong}


def _apart(values: list[float], log: bool, width: float) -> list[float]:
    """Of sorted values, those whose labels do not touch on an axis of `width` inches."""
    places = [math.log(value) if log else value for value in values]
    scale = width / ((places[-1] - places[0]) * 1.16 or 1)
    kept: list[int] = []
    for number, place in enumerate(places):
        # half of both labels, of letters of 7 points that are about 0.6 as wide as high, and a gap
        letters = (len(text(values[number])) + len(text(values[kept[-1]]))) / 2 if kept else 0
        if not kept or (place - places[kept[-1]]) * scale >= letters * 0.6 * 7 / 72 + 0.06:
            kept.append(number)
    return [values[number] for number in kept]
