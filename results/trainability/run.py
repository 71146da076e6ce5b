"""Trains the models of one study of continued fractions and prints its table.

    python results/trainability/run.py claim        # F, A and the full model against dense models
    python results/trainability/run.py claim_rates  # the same at other learning rates
    python results/trainability/run.py claim_3000   # the same for twice the steps
    python results/trainability/run.py claim_1024   # the same with a context of 1,024
    python results/trainability/run.py claim_10m    # dense, F and the full model at 10 million parameters
    python results/trainability/run.py key_shift    # keys that hold a map of the previous token
    python results/trainability/run.py baselines    # standard models of the same sizes
    python results/trainability/run.py units        # many ladders, against a GLU in their place
    python results/trainability/run.py modules      # each module, with and without its fractions
    python results/trainability/run.py depths       # depths 1 to 8, with and without the dyadic schedule
    python results/trainability/run.py rates        # learning rates of the main arms
    python results/trainability/run.py longer       # the search for forms at 1,500 steps
    python results/trainability/run.py paper        # the readings of what the papers print
    python results/trainability/run.py parity       # the same at depth 6, as section 4.1 counts depth 7
    python results/trainability/run.py papers       # the papers' F, A and full model against dense

The pages beside this file show the tables. First prepare the data that config/study/dense.py names.

--dry_run=True lists the runs of a study and trains nothing. A study that was interrupted goes on with the
same command. The table at the end has the validation losses, and the gradient norms after the warmup from
the log of every step.

--joined=results/trainability/claim.csv adds the runs of a CSV to the table and does not train them again.
--only=cattn_u,cattn_u+control trains these arms alone. --step_times=FILE takes the time of a step from a
JSON of bench.py, because runs that share a machine cannot tell how long they take.
"""

import os
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from ablation.command import mistakes_end, parsed  # noqa: E402
from ablation.execution import carry_out  # noqa: E402
from ablation.plan import Plan, PlanError, claimed  # noqa: E402
from ablation.preparation import prepare  # noqa: E402
from ablation.product import Planned  # noqa: E402
from benchmarks import lines  # noqa: E402
from comparison import figure  # noqa: E402
from comparison.pooled import pooled, read_rows, rows_of, runs_of, write_rows  # noqa: E402
from comparison.runs import Arm  # noqa: E402
from comparison.significance import difference  # noqa: E402
from models.architecture import model_config  # noqa: E402
from models.kinds import parameter_counts, without_embeddings  # noqa: E402
from reports import picture  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from reports.plural import counted  # noqa: E402
from results.trainability.studies import (  # noqa: E402
    GONE,
    GONE_SINCE,
    STEPS,
    STUDIES,
    called,
    in_order,
    longest,
    models_of,
    short_names,
    shortly,
    without_fractions,
)

COLUMNS = ("arm", "without embeddings", "seeds", "validation loss", "difference", "p")
COLUMNS += ("to control", "p (control)", "to constant", "p (constant)")
COLUMNS += ("gradient norm", "95 %", "largest / median", "spikes", "clamped")


@dataclass
class StudyConfig:
    """Train the runs of a study of continued fractions and print its table."""

    study: Literal[tuple(STUDIES)]  # name of the study
    out: str = "out/trainability"  # folder that gets a folder of runs for each study
    seeds: list[int] = field(default_factory=lambda: [1])  # seeds of every arm
    max_iters: int | None = None  # steps of every run, 4,096 tokens each; default: the study's own number
    parallel: int = 1  # number of runs that train at the same time
    only: list[str] | None = None  # arms or models to train, named as in the table; default: all
    joined: str | None = None  # CSV of the same study: adds its runs to the table and does not repeat them
    step_times: str | None = None  # --json of bench.py for the same arms: the time axis of hours.png
    dry_run: bool = False  # list the runs to train and print the table of finished ones; write nothing

    def check(self) -> list[str]:
        wrong = []
        for key in ("out", "joined", "step_times"):
            if getattr(self, key) == "":
                wrong.append(f"{key} is empty: name a path, or leave it out")
        if "" in (self.only or []):
            wrong.append("only has an empty name: give arms of the table, separated by commas")
        wrong += [f"seeds: {seed} is below 0" for seed in self.seeds if seed < 0]
        if self.max_iters is not None and self.max_iters < 1:
            wrong.append(f"max_iters must be above 0, not {self.max_iters}")
        return wrong


def main(config: StudyConfig):
    study, steps = config.study, config.max_iters or STEPS[config.study]
    folder = Path(config.out) / study
    with mistakes_end("results/trainability/run.py"):
        elsewhere = joined(config.joined, steps) if config.joined else []
        times = step_times(config.step_times, study) if config.step_times else {}
        os.chdir(ROOT)  # the studies name their config files relative to the root
        every, keys, remarks = planned(config, steps)
        refuse_others(elsewhere, every, config)
        runs = chosen(every, config)
        with claimed(folder, config.dry_run):
            plan = Plan(folder)
            plan.find_finished()
            there = dict.fromkeys((row["arm"], row["seed"]) for row in elsewhere)
            left = [run for run in runs if run.name in plan.done or key_of(run, study) not in there]
            if len(left) < len(runs):
                known = counted(len(runs) - len(left), "joined run")
                remarks.append(f"{known} in {config.joined}: not trained again")
            plan.extend(left, keys)
            refuse_loss(folder / "runs.csv", [*there, *(key_of(run, study) for run in plan.runs.values())])
            prepare(plan, left, config.parallel, remarks)
            if times:
                shown = [*there, *(key_of(run, study) for run in plan.runs.values())]
                refuse_missing(dict.fromkeys(arm for arm, _ in shown), times, study)
            if not config.dry_run:
                carry_out(plan, left, config.parallel, "The same command goes on")
            found = plan.arms()
            for arm in found:
                arm.name = shortly(arm.name, study)
            show(found, elsewhere, None if config.dry_run else folder, study, times)
    sys.exit(any(run.name in plan.failed for run in left))


def planned(config: StudyConfig, steps: int) -> tuple[list[Planned], list[str], list[str]]:
    """Returns (the runs of a study, the keys that it varies, remarks). Raises ConfigError."""
    common = [
        f"--seeds={','.join(map(str, config.seeds))}",
        f"--max_iters={steps}",
        f"--warmup_iters={max(1, steps // 10)}",
        # a trial of a few steps is evaluated at its end only
        f"--eval_interval={steps if steps < 50 else min(300, steps // 5)}",
        f"--parallel={config.parallel}",
    ]
    calls = [parsed([*arguments, *common]) for arguments in STUDIES[config.study]]
    runs = [run for _, found, _, _ in calls for run in found]
    keys = list(dict.fromkeys(key for _, _, varied, _ in calls for key in varied))
    remarks = list(dict.fromkeys(remark for *_, said in calls for remark in said))
    return runs, keys, remarks


def chosen(runs: list[Planned], config: StudyConfig) -> list[Planned]:
    """Returns the runs that --only names. Raises PlanError if a name is neither an arm nor a model."""
    if not config.only:
        return runs
    names = dict.fromkeys(shortly(run.arm, config.study) for run in runs)
    models = short_names(config.study).values()
    if gone := [name for name in config.only if name in GONE.get(config.study, ())]:
        raise PlanError(
            f"--only: the code of {', '.join(gone)} has left the repository; "
            f"git checkout {GONE_SINCE} has it, and --joined keeps the published runs"
        )
    if unknown := [name for name in config.only if name not in names and name not in models]:
        raise PlanError(f"--only: {config.study} has no {', '.join(unknown)}; it has {', '.join(names)}")
    wanted = lambda name: {name, longest(models, name)} & {*config.only}  # noqa: E731
    return [run for run in runs if wanted(shortly(run.arm, config.study))]


def key_of(run: Planned, study: str) -> tuple[str, int]:
    """Returns the (arm, seed) by which a CSV names a run."""
    return shortly(run.arm, study), run.config["seed"]


def joined(path: str, steps: int) -> list[dict]:
    """Reads a CSV of runs. Raises PlanError if it is another file or its runs have other lengths."""
    try:
        rows = read_rows(path)
    except ValueError as error:
        raise PlanError(f"--joined={path}: {error}") from None
    last: dict[tuple, int] = {}
    for row in rows:
        run = row["arm"], row["seed"]
        last[run] = max(row["step"], last.get(run, 0))
    if several := sorted(set(last.values()) - {steps}):
        raise PlanError(
            f"--joined={path} has runs of {', '.join(map(str, several))} steps, and this study has "
            f"{steps}: give a CSV of the same study, or set --max_iters"
        )
    return rows


def refuse_others(rows: list[dict], runs: list[Planned], config: StudyConfig):
    """Raises PlanError if an arm of --joined is not in the study, or has another number of parameters.

    Arms whose code has left the repository are accepted as they stand in the CSV.
    """
    configs = {shortly(run.arm, config.study): run.config for run in runs}
    gone = GONE.get(config.study, ())
    arms = dict.fromkeys((row["arm"], row["without_embeddings"]) for row in rows if row["arm"] not in gone)
    if foreign := list(dict.fromkeys(name for name, _ in arms if name not in configs)):
        few = ", ".join(foreign[:4])
        raise PlanError(
            f"--joined={config.joined} is of another study: {config.study} has no {few}. Give its own CSV"
        )
    for name, count in arms:
        if (here := body_of(configs[name])) != count:
            raise PlanError(
                f"--joined={config.joined}: {name} has {count:,} parameters without embeddings there, and "
                f"{here:,} here. It is another model, so leave the file out or train from its commit"
            )


def refuse_loss(path: Path, kept: list[tuple[str, int]]):
    """Raises PlanError if this call would drop runs that an earlier call joined into its runs.csv."""
    try:
        rows = read_rows(path) if path.is_file() else []
    except ValueError as error:
        raise PlanError(f"{path}: {error}; move it away") from None
    if lost := {(row["arm"], row["seed"]) for row in rows}.difference(kept):
        raise PlanError(
            f"{path} has {len(lost)} runs that were joined, and this call would drop them: give "
            f"--joined={path} to keep them, or move the file away"
        )


def body_of(config: dict) -> int:
    """Parameters without embeddings of a run's configuration, whose vocabulary may be that of its data."""
    return without_embeddings(parameter_counts(model_config(config | {"vocab_size": 1})))


def step_times(path: str, study: str) -> dict[str, float]:
    """Returns {arm: median seconds of a step}. Raises PlanError if the file has no results of bench.py."""
    try:
        found = lines.read(Path(path))  # a step as a CUDA graph, which is as train.py does it, comes later
        steps = {line["task"]: line["seconds"] for line in found if "tokens_per_second" in line}
    except (lines.LinesError, KeyError) as error:
        raise PlanError(f"--step_times: {error}") from None
    if not steps:
        raise PlanError(
            f"--step_times={path}: no training step of bench.py --mode=train; write some with --json={path}"
        )
    return {shortly(called(name), study): seconds for name, seconds in steps.items()}


def refuse_missing(arms: Iterable[str], times: dict[str, float], study: str):
    """Raises PlanError if an arm has no time, and names the stacks of config files for bench.py."""
    stacks = {model: stack for stack in models_of(study) for model in [short_names(study)[called(stack)]]}
    if missing := [name for name in in_order(arms, study) if name not in times]:
        wanted = dict.fromkeys(stacks.get(longest(stacks, name), name) for name in missing)
        raise PlanError(
            f"--step_times has no {', '.join(missing)}: measure {' '.join(wanted)} with the others"
        )


def show(
    found: list[Arm],
    elsewhere: list[dict],
    folder: Path | None,
    study: str,
    times: dict[str, float] | None = None,
):
    """Prints the table of the arms; writes it, runs.csv and the curves of up to 12 arms into `folder`.

    Differences are to the first arm. elsewhere: rows of another runs.csv; a run that is in both counts
    once, with the values of `found`. folder: None writes nothing. times: {arm: seconds of a step} for
    hours.png; without it, hours.png has the times of the runs.
    """
    rows, names = pooled([row for arm in found for row in rows_of(arm)], elsewhere)
    names = in_order((*names, *(arm.name for arm in found if not arm.runs)), study)
    rows.sort(key=lambda row: names.index(row["arm"]))
    failed = {arm.name: arm.failed for arm in found}
    arms = [Arm(name, runs_of(name, rows), failed.get(name, 0)) for name in names]
    if not arms:
        print("no run has finished yet")
        return
    text = table_of(arms)
    print(text)
    if folder is None:
        return
    (folder / "table.md").write_text(text + "\n")
    write_rows(folder / "runs.csv", rows)
    if times:
        rows = [row | {"seconds": row["step"] * times[row["arm"]]} for row in rows]
    drawn = [Arm(arm.name, runs_of(arm.name, rows), 0) for arm in arms if arm.runs]
    for against in ("tokens", "hours") if len(drawn) <= 12 else ():  # more colours look alike
        picture.write(figure.draw(drawn, against), folder / f"{against}.png", own=True)


def table_of(arms: list[Arm]) -> str:
    """Returns the Markdown table of the arms; the first arm is the baseline. Empty columns are left out."""
    rows, named = [], {arm.name: arm for arm in arms if arm.runs}
    for arm in arms:
        if not arm.runs:
            rows.append(dict.fromkeys(COLUMNS, "") | {"arm": arm.name, "validation loss": "failed"})
            continue
        last = [run.evaluations[arm.steps[-1]] for run in arm.runs]
        losses = [row["val_loss"] for row in last]
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        difference_, p = compared(arm, arms[0])
        (to_control, p_control), (to_constant, p_constant) = (
            compared(arm, named.get(without_fractions(arm.name, kind))) for kind in ("control", "constant")
        )
        clamped = [row["clamped"] for row in last if row["clamped"] is not None]
        row = {
            "arm": arm.name,
            "without embeddings": f"{last[0]['without_embeddings']:,}",
            "seeds": f"{len(losses)} of {len(losses) + arm.failed}" if arm.failed else str(len(losses)),
            "validation loss": f"{statistics.fmean(losses):.4f}{spread}",
            "difference": difference_,
            "p": p,
            "to control": to_control,
            "p (control)": p_control,
            "to constant": to_constant,
            "p (constant)": p_constant,
            **gradients(last),
            "clamped": f"{statistics.fmean(clamped):.2%}" if clamped else "",
        }
        rows.append(row)
    shown = [column for column in COLUMNS if any(row[column] for row in rows)]
    text = table([{column: row[column] for column in shown} for row in rows])
    return f"{text}\n\ndifferences are to {arms[0].name}"


def compared(arm: Arm, baseline: Arm | None) -> tuple[str, str]:
    """Returns (mean ± deviation of the differences paired by seed, p), both empty without pairs."""
    if baseline in (None, arm) or (found := difference(arm, baseline)) is None:
        return "", ""
    if found.p is None:
        return f"{found.mean:+.4f}", ""
    return f"{found.mean:+.4f} ± {found.deviation:.4f}", f"{found.p:.2g}"


def gradients(last: list[dict]) -> dict[str, str]:
    """Returns the columns of gradient norms after the warmup: median, 95th percentile, largest over median,
    and spikes: the number of steps above ten times the median of their run.

    Uses the seeds that have norms; where some have none, the first column says how many have (1 of 3).
    """
    known = [row for row in last if row["gradient_median"]]
    if not known:
        return dict.fromkeys(("gradient norm", "95 %", "largest / median", "spikes"), "")
    some = f" ({len(known)} of {len(last)})" if len(known) < len(last) else ""
    worst = max(row["gradient_largest"] / row["gradient_median"] for row in known)
    return {
        "gradient norm": f"{statistics.median(row['gradient_median'] for row in known):.2f}{some}",
        "95 %": f"{statistics.median(row['gradient_95'] for row in known):,.2f}",
        "largest / median": f"{worst:,.1f}",
        "spikes": f"{sum(row['spikes'] for row in known):,}",
    }


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:], positional="study", files=False))
