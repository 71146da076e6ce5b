"""One table and one picture of several runs.

    python compare.py out/demo_dense out/demo_cofrgenet --plot=out/demo.png
    python compare.py out/ablation/*/ --study=cf_depth --against=flops --markdown=depth.md --csv=depth.csv

Runs that differ in the seed alone form one arm: the table shows mean ± sample standard deviation, the
picture a band. Below the table stands what else differs, and whether the runs saw the same batches.
--baseline=NAME adds each arm's difference in loss to that arm, paired by seed.
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
    """One table and one picture of several runs. Runs that differ in the seed alone form one arm."""

    runs: list[str]  # run folders of train.py, separated by spaces or commas
    study: list[str] | None = None  # keys in which the runs should differ; others are reported
    baseline: str | None = None  # a run or arm: show differences to it, paired by seed, with p
    against: Literal["steps", "tokens", "flops", "hours"] = "tokens"  # horizontal axis of the picture
    plot: str = "out/compare.png"  # picture file; an earlier picture is replaced
    markdown: str | None = None  # Markdown file for the table and its remarks; an earlier table is replaced
    csv: str | None = None  # CSV file for the unrounded numbers; an earlier table is replaced

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
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
