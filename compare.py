"""One table and one picture of several runs.

    python compare.py out/demo_dense out/demo_cofrgenet --plot=out/both.png
    python compare.py out/ablation/*/ --study=cf_depth --against=flops --markdown=depth.md --csv=depth.csv
    python compare.py out/ablation/*/ --against=learning_rate --plot=out/rates.pdf --plot_size=3.3x2.4
    python compare.py out/demo_cofrgenet --picture=ladders --plot=out/ladders.png

Runs that differ in the seed alone form one arm: the table shows mean ± sample standard deviation, the
picture a band. Below the table stands what else differs, and whether the runs saw the same batches.
--baseline=NAME (or FOLDER) adds each arm's difference in loss to that arm, paired by seed. Where models
ran with several learning rates (or values of a key of --study), a second table shows which is best.
"""

from host import interruption  # noqa: F401 (first)

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import configurator
from comparison import differences, ladder_figure, report, table
from comparison.figure import AXES
from comparison.runs import arms, read_runs
from reports import picture
from training.log import RunFolderError


@dataclass
class CompareConfig:
    """One table and one picture of several runs. Runs that differ in the seed alone form one arm."""

    runs: list[str]  # run folders of train.py, separated by spaces or commas
    study: list[str] | None = None  # keys in which the runs should differ; others are reported
    #: an arm, or a run folder of it: show differences to it, paired by seed, with p
    baseline: str | None = None
    against: str = "tokens"  # horizontal axis of the picture: steps, tokens, flops, hours, or a varied key
    picture: Literal["losses", "ladders"] = "losses"  # ladders: denominators and |z|, by layer
    plot: str | None = None  # picture file (.png, .pdf, .svg), which must not exist; None: no picture
    plot_size: str | None = None  # width and height of the picture in inches, such as 3.3x2.4
    plot_title: str | None = None  # title of the picture
    plot_labels: str | None = None  # what the legend calls the lines, in the order of the table: dense,ours
    markdown: str | None = None  # Markdown file for the table and its remarks; an earlier table is replaced
    csv: str | None = None  # CSV file for the unrounded numbers; an earlier table is replaced

    def check(self) -> list[str]:
        alone = self.picture != "losses" and self.plot is None
        return [
            *([f"picture={self.picture} is drawn with --plot=FILE only"] if alone else []),
            *picture.mistakes(self),
            *report.wrong_axis(self.against),
            *report.refuse(self.markdown, "markdown", ".md"),
            *report.refuse(self.csv, "csv", ".csv"),
        ]


def main(argv: list[str]):
    config = configurator.parse(CompareConfig, argv, positional="runs")
    files = {key: Path(name) for key in ("plot", "markdown", "csv") if (name := getattr(config, key))}
    look = picture.look(config)
    try:
        runs = read_runs(config.runs)
        compared = arms(runs)
        study = config.study or []
        if mistakes := differences.unknown_keys(study, compared):
            sys.exit(f"compare.py: {'; '.join(mistakes)}")
        baseline = report.arm_of(compared, config.baseline) if config.baseline is not None else None
        if config.baseline is not None and baseline is None:
            names = ", ".join(arm.name for arm in compared)
            sys.exit(f"compare.py: baseline={config.baseline} is none of the arms: {names}")
        if config.picture == "ladders":
            mistakes = report.wrong_ladders(runs, config.against, look)
        else:
            mistakes = report.wrong_picture(compared, config.against, look)
        if mistakes:
            sys.exit(f"compare.py: {'; '.join(mistakes)}")
        lines = report.remarks(compared, study, baseline)
        swept = [] if config.against in AXES else [config.against]
        tables = report.sweep_tables(compared, list(dict.fromkeys([*study, *swept])) or None)
        if config.plot is None:
            drawn = None
        elif config.picture == "ladders":
            drawn = ladder_figure.draw(runs, config.against, look)
        else:
            drawn = report.draw(compared, config.against, look, study)
        caption = f"{report.CAPTIONS[config.picture]} against {config.against}"
        written = report.write(compared, lines, tables, (drawn, caption), baseline, **files)
    except RunFolderError as error:
        sys.exit(f"compare.py: {error}")
    except OSError as error:
        sys.exit(f"compare.py: {error}; choose another --plot, --markdown or --csv")
    shown = [table.markdown(compared, baseline), *lines, *(f"\n{found}\n" for found in tables)]
    print("\n".join([*shown, *written]))


if __name__ == "__main__":
    main(sys.argv[1:])
