"""Which continued fractions can be trained, and what they add: the runs behind the pages beside this file.

    python results/trainability/run.py depths       # every depth, with and without the dyadic schedule
    python results/trainability/run.py rates        # learning rates of the main arms
    python results/trainability/run.py modules      # each module, its controls and its standard counterpart
    python results/trainability/run.py claim        # F, A and full against dense models
    python results/trainability/run.py claim_rates  # at other learning rates
    python results/trainability/run.py baselines    # against standard models of their size
    python results/trainability/run.py units        # many ladders, against a GLU in their place
    python results/trainability/run.py key_shift    # keys that know the token before theirs
    python results/trainability/run.py claim_3000   # twice the steps
    python results/trainability/run.py claim_1024   # the same with a context of 1,024
    python results/trainability/run.py claim_10m    # F and full at 10M parameters
    python results/trainability/run.py longer       # what F and the full one lack in 1,500 steps
    python results/trainability/run.py paper        # which readings of what the papers print can be trained
    python results/trainability/run.py papers       # the papers' F, A and full model against dense

Needs the data that config/study/dense.py names, prepared as it says. --dry_run=True shows what a study
would train; the same command goes on where it was interrupted. At the end stands a table with the
validation losses and, from the log of every step, the gradient norms after the warmup. Seeds that were run
elsewhere join these, and are not trained again: --joined=results/trainability/claim.csv.
--only=cattn_u,cattn_u+control trains these arms of a study alone, and with --joined the table has all. Runs
that shared a machine with others cannot tell how long they take; --step_times is a JSON of bench.py that
can.
"""

import json
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
from ablation.command import mistakes_end, read  # noqa: E402
from ablation.execution import carry_out  # noqa: E402
from ablation.plan import Plan, PlanError, claimed  # noqa: E402
from ablation.preparation import prepare  # noqa: E402
from ablation.product import Planned  # noqa: E402
from architecture import model_config  # noqa: E402
from comparison import figure  # noqa: E402
from comparison.pooled import pooled, read_rows, rows_of, runs_of, write_rows  # noqa: E402
from comparison.runs import Arm  # noqa: E402
from comparison.significance import difference  # noqa: E402
from markdown_table import table  # noqa: E402
from model import parameter_counts, without_embeddings  # noqa: E402
from results.trainability.studies import (  # noqa: E402
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
    """Train the runs of a study of continued fractions, and print what came out."""

    study: Literal[tuple(STUDIES)]  # which one
    out: str = "out/trainability"  # a folder of ablate.py for each study
    seeds: list[int] = field(default_factory=lambda: [1])  # of every arm
    max_iters: int | None = None  # steps of every run, 4,096 tokens each; None: the study's own
    parallel: int = 1  # runs at a time
    only: list[str] | None = None  # arms to train, by their names in the table, or models; None: all
    joined: str | None = None  # runs.csv of the same study: its runs count too, and are not trained again
    step_times: str | None = None  # bench.py's --json of the same arms: hours.png by its steps
    dry_run: bool = False  # show what there is to train, and the table of what is there; write nothing

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
        os.chdir(ROOT)  # from where the studies name their files
        every, keys, remarks = planned(config, steps)
        refuse_others(elsewhere, every, config)
        runs = chosen(every, config)
        with claimed(folder, config.dry_run):
            plan = Plan(folder)
            plan.look()
            there = dict.fromkeys((row["arm"], row["seed"]) for row in elsewhere)
            left = [run for run in runs if run.name in plan.done or key_of(run, study) not in there]
            if len(left) < len(runs):
                remarks.append(
                    f"{len(runs) - len(left)} runs are in {config.joined}, and not trained again"
                )
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
    """(the runs of a study's arms; the keys that it varies; remarks). Raises ConfigError."""
    common = [
        f"--seeds={','.join(map(str, config.seeds))}",
        f"--max_iters={steps}",
        f"--warmup_iters={max(1, steps // 10)}",
        # of a try of a few steps the last counts
        f"--eval_interval={steps if steps < 50 else min(300, steps // 5)}",
        f"--parallel={config.parallel}",
    ]
    calls = [read([*arguments, *common]) for arguments in STUDIES[config.study]]
    runs = [run for _, found, _, _ in calls for run in found]
    keys = list(dict.fromkeys(key for _, _, varied, _ in calls for key in varied))
    remarks = list(dict.fromkeys(remark for *_, said in calls for remark in said))
    return runs, keys, remarks


def chosen(runs: list[Planned], config: StudyConfig) -> list[Planned]:
    """Those that --only names. Raises PlanError where one of its names is no arm."""
    if not config.only:
        return runs
    names = dict.fromkeys(shortly(run.arm, config.study) for run in runs)
    models = short_names(config.study).values()
    if unknown := [name for name in config.only if name not in names and name not in models]:
        raise PlanError(f"--only: {config.study} has no {', '.join(unknown)}; it has {', '.join(names)}")
    wanted = lambda name: {name, longest(models, name)} & {*config.only}  # noqa: E731
    return [run for run in runs if wanted(shortly(run.arm, config.study))]


def key_of(run: Planned, study: str) -> tuple[str, int]:
    """What a run is called in a CSV."""
    return shortly(run.arm, study), run.config["seed"]


def joined(path: str, steps: int) -> list[dict]:
    """Raises PlanError where the file is no runs.csv, or has runs that are not of so many steps."""
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
            f"--joined={path} has runs of {', '.join(map(str, several))} steps, and these are of {steps} "
            "(--max_iters)"
        )
    return rows


def refuse_others(rows: list[dict], runs: list[Planned], config: StudyConfig):
    """Raises PlanError where an arm of --joined is none of the study's, or has not as many parameters."""
    configs = {shortly(run.arm, config.study): run.config for run in runs}
    arms = dict.fromkeys((row["arm"], row["without_embeddings"]) for row in rows)
    if foreign := list(dict.fromkeys(name for name, _ in arms if name not in configs)):
        few = ", ".join(foreign[:4])
        raise PlanError(f"--joined={config.joined} is of another study: {config.study} has no {few}")
    for name, count in arms:
        if (here := body_of(configs[name])) != count:
            raise PlanError(
                f"--joined={config.joined}: {name} has {count:,} parameters without embeddings there, and "
                f"{here:,} here"
            )


def refuse_loss(path: Path, kept: list[tuple[str, int]]):
    """Raises PlanError where a runs.csv of an earlier call has runs that this one would leave out: those
    that were joined then.
    """
    try:
        rows = read_rows(path) if path.is_file() else []
    except ValueError as error:
        raise PlanError(f"{path}: {error}; move it away") from None
    if lost := {(row["arm"], row["seed"]) for row in rows}.difference(kept):
        raise PlanError(
            f"{path} has {len(lost)} runs that were joined, which this would leave out: --joined={path} "
            "keeps them, or move it away"
        )


def body_of(config: dict) -> int:
    """Parameters without embeddings of a run's configuration, whose vocabulary may be that of its data."""
    return without_embeddings(parameter_counts(model_config(config | {"vocab_size": 1})))


def step_times(path: str, study: str) -> dict[str, float]:
    """{arm: median seconds of a step} of a JSON of bench.py. Raises PlanError where the file is none."""
    try:
        models = json.loads(Path(path).read_text())["models"].items()
        return {
            shortly(called(name), study): statistics.median(found["seconds"]["whole"])
            for name, found in models
        }
    except OSError as error:
        raise PlanError(f"--step_times={path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise PlanError(f"--step_times={path}: no JSON of bench.py --mode=train ({why})") from None


def refuse_missing(arms: Iterable[str], times: dict[str, float], study: str):
    """Raises PlanError where an arm has no time, with the stacks that bench.py is to be given."""
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
    """The table of the arms, on the screen and in the study's folder, where runs.csv has every evaluation
    of every run, and tokens.png and hours.png have the curves of up to 12 arms. Differences are to the
    first arm. elsewhere: rows of another runs.csv; what was run here too counts once, as it is here.
    folder: None writes nothing. times: seconds of a step of each arm, for hours.png in place of what the
    runs took.
    """
    rows, names = pooled([row for arm in found for row in rows_of(arm)], elsewhere)
    names = in_order((*names, *(arm.name for arm in found if not arm.runs)), study)
    rows.sort(key=lambda row: names.index(row["arm"]))
    failed = {arm.name: arm.failed for arm in found}
    arms = [Arm(name, runs_of(name, rows), failed.get(name, 0)) for name in names]
    if not arms:
        print("no run has come to its end yet")
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
    for against in ("tokens", "hours") if len(drawn) <= 12 else ():  # more cannot be told apart
        figure.draw(drawn, against, folder / f"{against}.png")


def table_of(arms: list[Arm]) -> str:
    """A row for each arm of `runs_of`."""
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
    """(mean ± deviation of the differences paired by seed, p), empty where there are none."""
    if baseline in (None, arm) or (found := difference(arm, baseline)) is None:
        return "", ""
    if found.p is None:
        return f"{found.mean:+.4f}", ""
    return f"{found.mean:+.4f} ± {found.deviation:.4f}", f"{found.p:.2g}"


def gradients(last: list[dict]) -> dict[str, str]:
    """Of all seeds, or of those that have norms (1 of 3): median and 95th percentile of the gradient norm
    after the warmup, the largest over the median, and how many steps are above ten times the median of
    their run.
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
