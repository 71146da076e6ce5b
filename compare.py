"""One table and one picture of several runs.

    python compare.py out/demo_dense out/demo_cofrgenet --plot=out/demo.png
    python compare.py out/ablation/*/ --study=cf_depth --against=flops --markdown=depth.md --csv=depth.csv

Runs that differ in the seed alone are one arm: mean ± sample standard deviation in the table, a band in
the picture. Below the table stands what else differs, and whether the runs saw the same batches. With
--baseline=NAME each arm's loss is set against that arm's, paired by seed.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import configurator
from comparison import differences, report, table
from comparison.runs import arms, read_runs
from training.log import RunFolderError


@dataclass
class CompareConfig:
    """One table and one picture of several runs. Those that differ in the seed alone are one arm."""

    runs: list[str]  # run folders of train.py, separated by spaces or commas
    study: list[str] | None = None  # keys that the runs are to differ in, and in no others
    baseline: str | None = None  # a run's or arm's name: differences to it, paired by seed, and their p
    against: Literal["steps", "tokens", "flops", "hours"] = "tokens"  # what the picture's losses stand over
    plot: str = "out/compare.png"  # where the picture goes; an earlier picture is replaced
    markdown: str | None = None  # file for the table and the remarks below it; an earlier table is replaced
    csv: str | None = None  # file for the numbers, unrounded; an earlier table is replaced

    def check(self) -> list[str]:
        return [
            *report.refuse(self.plot, "plot", ".png"),
            *report.refuse(self.markdown, "markdown", ".md"),
            *report.refuse(self.csv, "csv", ".csv"),
        ]


def main(argv: list[str]):
    config = configurator.parse(CompareConfig, argv, positional="runs")
    files = {key: Path(name) for key in ("plot", "markdown", "csv") if (name := getattr(config, key))}
    try:
        compared = arms(read_runs(config.runs))
        study = config.study or []
        if mistakes := differences.unknown_keys(study, compared):
            sys.exit(f"compare.py: {'; '.join(mistakes)}")
        if config.baseline is not None and config.baseline not in [arm.name for arm in compared]:
            names = ", ".join(arm.name for arm in compared)
            sys.exit(f"compare.py: baseline={config.baseline} is none of the arms: {names}")
        lines = report.remarks(compared, study, config.baseline)
        written = report.write(compared, lines, config.against, config.baseline, **files)
    except RunFolderError as error:
        sys.exit(f"compare.py: {error}")
    except OSError as error:
        sys.exit(f"compare.py: {error}; choose another --plot, --markdown or --csv")
    print("\n".join([table.markdown(compared, config.baseline), *lines, *written]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the table has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
