"""The remarks and files of a comparison."""

import os
from pathlib import Path

from comparison import differences, figure, table
from comparison.runs import Arm
from training.log import write_whole

# first bytes of files that compare.py wrote and may replace
OURS = {".png": b"\x89PNG", ".md": b"| run ", ".csv": b"run,seeds,"}


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
    return lines


def write(
    arms: list[Arm],
    lines: list[str],
    against: str,
    baseline: str | None = None,
    plot: Path | None = None,
    markdown: Path | None = None,
    csv: Path | None = None,
) -> list[str]:
    """Writes the files that have a name, and returns a line about each. lines: from `remarks`.

    Raises OSError.
    """
    written = []
    for path in filter(None, (plot, markdown, csv)):
        path.parent.mkdir(parents=True, exist_ok=True)
    if plot:
        figure.draw([arm for arm in arms if arm.runs], against, plot)
        written.append(f"curves: {plot}")
    if markdown:
        text = table.markdown(arms, baseline) + "\n\n" + "".join(f"- {line}\n" for line in lines)
        if plot:
            text += f"\n![validation loss against {against}]({os.path.relpath(plot, markdown.parent)})\n"
        write_whole(markdown, text)
        written.append(f"table: {markdown}")
    if csv:
        write_whole(csv, table.numbers(arms, baseline))
        written.append(f"numbers: {csv}")
    return written


def refuse(name: str | None, key: str, ending: str) -> list[str]:
    """Complaints about the name of an output file: only files that compare.py wrote may be replaced."""
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
