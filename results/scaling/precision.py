"""What bfloat16 costs: runs of points.csv less the same runs in float32, of points_float32.csv.

    python results/scaling/precision.py

points_float32.csv is the points.csv of a study with the families, seeds and data of this one, and with
--sizes=0.125M --rates=4e-3 --check_rate=False --dtype=float32.
"""

import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host import interruption  # noqa: E402, F401 (first)

from ablation.plan import PlanError  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from scaling import points  # noqa: E402

LABELS = ("dense", "F", "full", "ours", "constants")  # families, in their order in points.csv


def differences(here: list[points.Point], exact: list[points.Point]) -> dict[str, list[float]]:
    """{family: loss less that of the same run in float32, for each seed}"""
    losses, found = {points.key(p): p.loss for p in here}, {}
    for p in exact:
        if losses.get(points.key(p)) is not None and p.loss is not None:
            found.setdefault(p.family, []).append(losses[points.key(p)] - p.loss)
    return found


def rows(found: dict[str, list[float]], names: dict[str, str]) -> list[dict[str, str]]:
    """For each family, the mean difference and its standard error."""
    lines = []
    for family, values in found.items():
        line = {"family": names[family], "runs": str(len(values))}
        line["bfloat16 less float32"] = f"{statistics.fmean(values):+.4f}"
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        lines.append(line | {"standard error": "" if error is None else f"{error:.4f}"})
    return lines


def main():
    if sys.argv[1:]:
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    try:
        here, exact = (points.read([str(HERE / name)]) for name in ("points.csv", "points_float32.csv"))
    except PlanError as error:
        sys.exit(f"precision.py: {error}")
    names = dict(zip(dict.fromkeys(p.family for p in here), LABELS, strict=True))
    print(table(rows(differences(here, exact), names)))


if __name__ == "__main__":
    main()
