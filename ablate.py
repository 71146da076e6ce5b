"""Train the product of models, varied keys and seeds, and compare what comes out.

    python ablate.py config/demo_dense.py config/demo_cofrgenet_f.py --vary=cf_depth=1,3,5 --seeds=1,2,3 \\
        --vary="learning_rate=1e-3,3e-3 min_lr=1e-4,3e-4" --max_iters=300
    python ablate.py config/gpt2.py config/cofrgenet_f.py+config/size/small.py --seeds=1,2,3 --parallel=8
    python ablate.py config/cofrgenet_f.py --vary=none,config/ablate/no_dyadic.py
    python ablate.py --out_dir=out/ablation               # go on with all runs listed in that folder

Each positional argument is a model; `+` stacks config files. Each --vary multiplies the runs: by values of
one key, by values of several keys that change together (separated by spaces), or by config files on top
(`none`: no file). Commas separate values, or semicolons where a value holds a comma. A key that a model
does not use is not varied for that model. Any other --key=value of train.py applies to all runs. All
configurations and data sets are checked before the first run starts.

Each run is a train.py with its own folder in --out_dir; output.log keeps what it printed. The same
command, called again, skips finished runs, continues interrupted ones and repeats failed ones. Another
product in the same folder extends the list of runs (ablation.json). A run that is on the list with another
configuration is refused. At the end, compare.py's table shows all runs on the list; it is also written to
table.md and table.csv, with curves.png. For each key of numbers that was varied, a second table shows the
loss of each value, and which is best; KEY.png draws it. --plot draws one more picture, as for compare.py.
"""

from host import interruption  # noqa: F401 (first)

import sys
from pathlib import Path

import configurator
from ablation.command import AblateConfig, mistakes_end, parsed
from ablation.execution import OUTPUT, carry_out
from ablation.plan import Plan, PlanError, claimed
from ablation.preparation import prepare
from comparison import report, sweep, table
from comparison.figure import AXES
from reports import picture


def main(argv: list[str]):
    if any(argument in ("-h", "--help") for argument in argv):
        configurator.end_with_help(AblateConfig, about=__doc__.strip() + "\n\n")
    with mistakes_end("ablate.py"):
        config, runs, study, remarks = parsed(argv)
        folder = Path(config.out_dir)
        with claimed(folder, config.dry_run):
            plan = Plan(folder)
            if runs is None and not plan.runs:
                raise PlanError(f"{folder} holds no ablation yet: name one config file or more")
            plan.extend(runs or [], study)
            runs = list(plan.runs.values()) if runs is None else runs
            prepare(plan, runs, config.parallel, remarks)
            look = picture.look(config)
            if mistakes := report.wrong_picture(plan.expected(runs), config.against, look):
                raise PlanError("; ".join(mistakes))
            if config.dry_run:
                from scaling import quick_times  # brings PyTorch's compiler

                if told := quick_times.of_runs(plan, runs, config.parallel):
                    print(told)
            else:
                carry_out(plan, runs, config.parallel, f"python ablate.py --out_dir={folder} goes on")
                show(plan, config.against, config.plot and Path(config.plot), look)
                sys.exit(1 if any(run.name in plan.failed for run in runs) else 0)


def show(plan: Plan, against: str, plot: Path | None, look: picture.Look):
    """Print and write the table and the pictures of all finished and failed runs."""
    arms = plan.arms()
    lines = report.remarks(arms, plan.study)
    for name, reason in plan.failed.items():
        lines.append(f"failed: {name}: {reason} ({plan.folder / name / OUTPUT})")
    tables = report.sweep_tables(arms, plan.study)
    axis = against if against in AXES else "tokens"
    curves = report.draw(arms, axis, study=plan.study), f"validation loss against {axis}"
    paths = {"plot": "curves.png", "markdown": "table.md", "csv": "table.csv"}
    paths = {key: plan.folder / name for key, name in paths.items()}
    written = report.write(arms, lines, tables, curves, **paths, own=True)
    for found in sweep.sweeps(arms, plan.study):
        picture.write(sweep.draw(found), path := plan.folder / f"{found.key}.png", own=True)
        written.append(f"picture: {path}")
    if plot:
        picture.write(report.draw(arms, against, look, plan.study), plot)
        written.append(f"picture: {plot}")
    shown = [table.markdown(arms), *lines, *(f"\n{found}\n" for found in tables)]
    print("\n".join([*shown, *written]))


if __name__ == "__main__":
    main(sys.argv[1:])
