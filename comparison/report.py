"""The remarks and files of a comparison."""

from host.disk import make_folder, write_whole

import os
from pathlib import Path

from comparison import differences, figure, ladder_figure, significance, sweep, table
from comparison.figure import AXES
from comparison.runs import Arm, Run
from reports import picture
from training.config import DEFAULTS

CAPTIONS = {"losses": "validation loss", "ladders": "ladders"}
# first bytes of tables that compare.py wrote and may replace
OURS = {".md": b"| run ", ".csv": b"run,seeds,"}


def remarks(arms: list[Arm], study: list[str], baseline: str | None = None) -> list[str]:
    """The lines below the table. study: see `differences.differences`."""
    found = [arm for arm in arms if arm.runs]
    lines = differences.differences(found, study) if found else []
    if any(len(arm.runs) > 1 for arm in arms):
        lines.insert(0, "mean ± sample standard deviation over seeds")
    if baseline is not None:
        lines.append(
            f"difference: loss less that of {baseline}, paired by seed; p: of a two-sided paired t-test"
        )
        (against,) = (arm for arm in arms if arm.name == baseline)
        for arm in found:
            step = significance.shared_step(arm, against)
            if arm is not against and step not in (None, arm.steps[-1]):
                lines.append(f"{arm.name}: its difference is at step {step:,}, the last that both have")
    return lines


def arm_of(arms: list[Arm], baseline: str) -> str | None:
    """The name of the arm that a name, or the folder of one of its runs, stands for."""
    names = [arm.name for arm in arms]
    of_folder = [arm.name for arm in arms if Path(baseline) in [run.folder for run in arm.runs]]
    return baseline if baseline in names else next(iter(of_folder), None)


def sweep_tables(arms: list[Arm], keys: list[str] | None = None) -> list[str]:
    """A table of each sweep (see `sweep.sweeps`), and what is best in it, as Markdown."""
    return [
        f"{sweep.markdown(found)}\n\n" + "\n".join(f"- {line}" for line in sweep.remarks(found))
        for found in sweep.sweeps(arms, keys)
    ]


def draw(arms: list[Arm], against: str, look: picture.Look = picture.PLAIN, study: list[str] | None = None):
    """A figure of the losses: their curves over an axis, or the sweep over the key `against`."""
    if against in AXES:
        return figure.draw(arms, against, look, study)
    return sweep.draw(sweep.sweep(arms, against), look)


def write(
    arms: list[Arm],
    lines: list[str],
    tables: list[str],
    drawn: tuple,
    baseline: str | None = None,
    plot: Path | None = None,
    markdown: Path | None = None,
    csv: Path | None = None,
    own: bool = False,
) -> list[str]:
    """Writes the files that have a name, and returns a line about each.

    lines: from `remarks`. tables: from `sweep_tables`. drawn: the figure and what it shows, for Markdown.
    own: see `picture.write`. Raises OSError.
    """
    written = []
    for path in filter(None, (markdown, csv)):
        make_folder(path.parent)
    if plot:
        picture.write(drawn[0], plot, own)
        written.append(f"picture: {plot}")
    if markdown:
        text = table.markdown(arms, baseline) + "\n\n" + "".join(f"- {line}\n" for line in lines)
        text += "".join(f"\n{found}\n" for found in tables)
        if plot:
            text += f"\n![{drawn[1]}]({os.path.relpath(plot, markdown.parent)})\n"
        write_whole(markdown, text)
        written.append(f"table: {markdown}")
    if csv:
        write_whole(csv, table.numbers(arms, baseline))
        written.append(f"numbers: {csv}")
    return written


def refuse(name: str | None, key: str, ending: str) -> list[str]:
    """Complaints about the name of a table: only files that compare.py wrote may be replaced."""
    if name is None:
        return []
    if not name.endswith(ending):
        return [f"{key} must end in {ending}, not {name!r}"]
    path = Path(name)
    if path.is_dir():
        return [f"{key}={name} is a folder: choose another name"]
    if path.is_file():
        with open(path, "rb") as file:
            if not file.read(16).startswith(OURS[ending]):
                return [f"{key}={name} exists and is none of compare.py's: choose another name"]
    return []


def wrong_axis(against: str) -> list[str]:
    """Complaints about `against` that need no runs."""
    if against in AXES or type(DEFAULTS.get(against)) in (int, float):
        return []
    return [
        f"against must be one of {', '.join(AXES)}, or a key of train.py that is a number, such as "
        f"learning_rate; not {against!r}"
    ]


def wrong_picture(arms: list[Arm], against: str, look: picture.Look) -> list[str]:
    """Complaints about a picture of the losses of these arms, whose runs may still be missing."""
    names = [arm.name for arm in arms]
    if against not in AXES:
        found = sweep.sweep(arms, against)
        if found is None:
            return [
                f"against={against}: no two of the models differ in {against} alone (seeds, and keys that "
                f"follow it as min_lr follows learning_rate, may differ)"
            ]
        names = [line.name for line in found.lines]
    return picture.wrong_labels(look.labels, names)


def wrong_ladders(runs: list[Run], against: str, look: picture.Look) -> list[str]:
    """Complaints about a picture of the ladders of runs."""
    if against not in AXES:
        return [f"picture=ladders is drawn against {', '.join(AXES)}, not against={against}"]
    wrong = ladder_figure.mistakes(runs) or picture.wrong_size(look, *ladder_figure.grid_of(len(runs)))
    return wrong + picture.wrong_labels(look.labels, [run.name for run in runs])
