"""Which continued fractions can be trained, and what they add: the runs behind results/trainability.md.

    python results/trainability.py poles        # treatments of the pole, in the arXiv paper's Cffn
    python results/trainability.py rescues      # other ways to train the printed one
    python results/trainability.py depths       # every depth, with and without the dyadic schedule
    python results/trainability.py rates        # learning rates of the main arms
    python results/trainability.py modules      # each module, its controls and its standard counterpart
    python results/trainability.py claim --max_iters=1500   # F, A and full against dense models
    python results/trainability.py claim_rates --max_iters=1500  # at other learning rates
    python results/trainability.py baselines --max_iters=1500    # against standard models of their size
    python results/trainability.py units --max_iters=1500   # many ladders, against a GLU in their place
    python results/trainability.py claim_3000 --max_iters=3000   # twice the steps
    python results/trainability.py claim_1024 --max_iters=1500   # the same with a context of 1,024
    python results/trainability.py claim_10m --max_iters=1500    # F and full at 10M parameters
    python results/trainability.py claim_10m_rates --max_iters=1500  # at another learning rate
    python results/trainability.py longer --max_iters=1500  # what F and the full one lack then
    python results/trainability.py paper        # the papers' recipes to the letter

Needs the data that config/study/dense.py names. Each study is one or more calls of ablate.py, printed
before they start; the same command goes on where it was interrupted. At the end stands a table with the
validation losses and, from the log of every step, the gradient norms after the warmup. Seeds that were run
elsewhere join these: --joined=results/trainability_claim.csv. --only=cattn_u,cattn_u+control trains these
arms of a study alone, and with --joined the table has all. Runs that shared a machine with others
cannot tell how long they take; --step_times is a JSON of bench.py that can.
"""

import json
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

import configurator  # noqa: E402
from ablation.plan import Plan  # noqa: E402
from benchmarks.report import table  # noqa: E402
from comparison import figure  # noqa: E402
from comparison.pooled import pooled, read_rows, rows_of, runs_of, write_rows  # noqa: E402
from comparison.runs import Arm  # noqa: E402
from comparison.significance import difference  # noqa: E402

BASE = "config/study/dense.py"


def on_base(*names: str) -> list[str]:
    """Files of config/study on the base, `+` between those of one arm."""
    return ["+".join([BASE, *(f"config/study/{part}.py" for part in name.split("+"))]) for name in names]


CLAIM = on_base(
    *("rope+rate_8e3", "mlp_narrow+rope+rate_8e3", "dense_half+rope+rate_8e3"),
    *("cffn_glu_rope+rate_8e3", "cattn_m_shared+rate_8e3"),
    *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
)
AT_10M = ("--learning_rate=2.7e-3", "--min_lr=2.7e-4")
RATE_10M = "--vary=learning_rate=4.6e-3 min_lr=4.6e-4"
# the first arm of a study is what its differences are to
STUDIES = {
    "poles": [
        [
            *on_base("cffn_gated"),
            "--vary=cf_pole=positive,positive,absolute,smooth,soft_clamp cf_floor=0.1,1.0,0.1,0.1,0.1 "
            "cf_eps=0.01,0.01,0.01,0.3,0.3",
        ],
        [
            *on_base("cffn_gated"),
            "--vary=cf_pole=clamp,clamp,clamp,clamp cf_eps=0.01,0.01,0.01,0.3 "
            "cf_pole_grad=formula,exact,zero,formula",
        ],
    ],
    "rescues": [
        [*on_base("cffn_gated_clamp"), "--vary=ladder_lr=1.0,0.05"],
        [*on_base("cffn_gated_clamp"), "--vary=ladder_grad_clip=0.1"],
        [*on_base("cffn_gated_clamp"), "--vary=cf_depth=2"],
        [*on_base("cffn_gated_clamp"), "--vary=cf_init=nanogpt"],
        [*on_base("cffn_gated_clamp"), "--vary=decay_ladders=True"],
        [*on_base("cffn_gated_clamp"), "--vary=dyadic=True", "--vary=dyadic_rewarmup=0,30"],
        [*on_base("cffn_gated_clamp"), "--vary=dyadic=True min_lr=2e-3"],
    ],
    "depths": [[*on_base("full_relative"), "--vary=cf_depth=1,2,3,4,5,6,7,8", "--vary=dyadic=False,True"]],
    "rates": [  # 4e-3 is the study of modules
        [
            BASE,
            *on_base("rope", "cffn_added", "cffn_added+rope"),
            *on_base("cattn_c_nopos", "full_relative_nopos"),
            "--vary=learning_rate=2e-3,8e-3 min_lr=2e-4,8e-4",
        ],
        [
            *on_base("rope", "cffn_added+rope", "cattn_c_nopos", "full_relative_nopos"),
            "--vary=learning_rate=16e-3 min_lr=16e-4",
        ],
    ],
    # 1,500 steps and more; the first is what the others are compared with. Each at its best learning rate
    "claim": [CLAIM],
    "claim_rates": [
        [
            *on_base("rope", "cffn_glu_rope", "cattn_m_shared", "full_content+layers_6+depth_1"),
            "--vary=learning_rate=4e-3,16e-3 min_lr=4e-4,16e-4",
        ],
        [*on_base("rope"), "--vary=learning_rate=5.6e-3 min_lr=5.6e-4"],
    ],
    # standard models of the same sizes, and the full one's two parts by themselves
    "baselines": [
        on_base(
            *("rope+rate_8e3", "full_content+layers_6+depth_1+rate_8e3", "dense_half+rope+rate_8e3"),
            *("dense_deep+rope+rate_8e3", "dense_mqa+rope+rate_8e3", "mlp_narrow+rope+rate_8e3"),
            *("cffn_product+rope+layers_6+control+rate_8e3", "full_content+layers_6+control+rate_8e3"),
        )
    ],
    # many ladders beside the product, or a GLU there, or nothing
    "units": [
        on_base(
            *("cffn_added_many+rope+rate_8e3", "cffn_added_glu+rope+rate_8e3"),
            *("cffn_added+rope+rate_8e3", "cffn_product+rope+control+rate_8e3", "cffn_glu_rope+rate_8e3"),
        )
    ],
    "claim_3000": [
        on_base(
            *("rope+rate_8e3", "dense_half+rope+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
        )
    ],
    "claim_1024": [[*CLAIM, "--block_size=1024", "--batch_size=4"]],
    # ten times the parameters, three times the width, a third of the learning rate; shares of 0.65 and 0.53
    "claim_10m": [
        [*on_base("rope+size_10m"), *AT_10M],
        [*on_base("cffn_glu_rope+size_10m"), "--ffn_hidden=480", *AT_10M],
        [*on_base("full_content+depth_1+size_10m"), "--n_layer=8", "--cf_ladders=12", *AT_10M],
    ],
    "claim_10m_rates": [  # where the transfer of the learning rate may fail: divided by the root of three
        [*on_base("rope+size_10m"), RATE_10M],
        [*on_base("full_content+depth_1+size_10m"), "--n_layer=8", "--cf_ladders=12", RATE_10M],
    ],
    # what F and the full model lack where training is longer
    "longer": [
        on_base(
            *("rope+rate_8e3", "rope", "mlp_narrow+rope+rate_8e3", "cffn_added+rope+rate_8e3"),
            *("cffn_added+rope+layers_6+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("cffn_glu_rope+control+rate_8e3", "cattn_c_nopos+rate_8e3"),
            *("cattn_c_nopos+constant+rate_8e3", "cattn_m_small+rate_8e3", "cattn_m_shared+rate_8e3"),
            *("full_relative_nopos+rate_16e3", "full_relative_content_nopos+rate_8e3"),
            *("full_content+rate_8e3", "full_content+control+rate_8e3"),
            *("full_content+constant+rate_8e3", "full_content_glu+rate_8e3"),
            *("full_content+layers_6+depth_1+rate_8e3", "cattn_c_proj+rate_8e3"),
        )
    ],
    "modules": [
        [
            BASE,
            *on_base(
                *("mlp_narrow", "swiglu_narrow", "mqa"),
                *("cffn_gated", "cffn_gated+control", "cffn_gated+constant", "cffn_gated_clamp"),
                *("cffn_glu", "cffn_glu+control", "cffn_glu+constant"),
                *("cffn_product", "cffn_product+control", "cffn_product+constant"),
                *("cffn_added", "cffn_added+constant", "cffn_added_wide"),
                *("cattn_m", "cattn_m+control", "cattn_m+constant"),
                *("cattn_m_heads", "cattn_m_heads+control", "cattn_m_heads+constant"),
                *("cattn_m_content", "cattn_m_content+control"),
                *("cattn_m_relative", "cattn_m_relative+control", "cattn_m_relative+constant"),
                *("cattn_m_relative_small", "cattn_m_relative_nopos", "cattn_m_relative_content_nopos"),
                *("cattn_u", "cattn_u+control", "cattn_u+constant"),
                *("cattn_c", "cattn_c+control", "cattn_c+constant", "cattn_c_nopos"),
                *("full", "full+control", "full_c", "full_c+constant"),
                *("full_relative", "full_relative+control", "full_relative+constant"),
                *("full_relative_nopos", "full_relative_content_nopos"),
                *("rope", "cffn_added+rope", "cffn_product+rope+control"),
            ),
        ]
    ],
    "paper": [
        [
            *on_base("cffn_gated+paper", "cffn_product+paper", "cattn_m+paper", "cattn_m+cffn_gated+paper"),
            "--vary=learning_rate=4e-3,1e-3 min_lr=4e-4,1e-4",
        ]
    ],
}


# on a dense model; on any other they follow the module's name
OVERLAYS = re.compile(r"(rope|layers_6|size_10m|rate)(_|$)")
SAME = {  # without fractions these are one model
    "cffn_added+control": "cffn_product+control",
    "cffn_added+rope+control": "cffn_product+rope+control",
    "cffn_added_wide+control": "cffn_product+control",
    "cffn_added_wide+constant": "cffn_added+constant",
    "full_content+layers_6+depth_1+constant": "full_content+layers_6+constant",
}
COLUMNS = ("arm", "without embeddings", "seeds", "validation loss", "difference", "p")
COLUMNS += ("to control", "p (control)", "to constant", "p (constant)")
COLUMNS += ("gradient norm", "95 %", "largest / median", "spikes", "clamped")


@dataclass
class StudyConfig:
    """Train the runs of a study of continued fractions, and print what came out."""

    study: Literal[tuple(STUDIES)]  # which one
    out: str = "out/trainability"  # a folder of ablate.py for each study
    seeds: list[int] = field(default_factory=lambda: [1])  # of every arm
    max_iters: int = 600  # steps of every run, 4,096 tokens each; a tenth of them warms up
    parallel: int = 1  # runs at a time
    only: list[str] | None = None  # arms to train, by their names in the table; None: all of the study
    joined: str | None = None  # runs.csv of the same study from elsewhere: its runs count too
    step_times: str | None = None  # bench.py's --json of the same arms: hours.png by its steps


def main(config: StudyConfig):
    folder = Path(config.out) / config.study
    calls = chosen(config.study, config.only)
    elsewhere = joined(config.joined, config.max_iters) if config.joined else []
    times = step_times(config.step_times, config.study) if config.step_times else {}
    common = [
        f"--out_dir={folder}",
        f"--seeds={','.join(map(str, config.seeds))}",
        f"--max_iters={config.max_iters}",
        f"--warmup_iters={max(1, config.max_iters // 10)}",
        f"--eval_interval={max(1, config.max_iters // 5)}",
        f"--parallel={config.parallel}",
    ]
    for arguments in calls:
        command = [sys.executable, "ablate.py", *arguments, *common]
        print(f"== {shlex.join(command[1:])}", flush=True)
        status = subprocess.run(command, cwd=ROOT).returncode
        plan = Plan(ROOT / folder)
        if status and not (status == 1 and plan.failed):  # a run that failed is told in the table
            sys.exit(status)
    found = plan.arms()
    for arm in found:
        arm.name = shortly(arm.name, config.study)
    show(found, elsewhere, ROOT / folder, config.study, times)
    sys.exit(bool(plan.failed))


def chosen(study: str, only: list[str] | None) -> list[list[str]]:
    """The arguments of each call of ablate.py, with the arms of `only` alone. Exits where one is none."""
    names = short_names(study)
    if unknown := [name for name in only or () if name not in names.values()]:
        sys.exit(f"--only: {study} has no {', '.join(unknown)}; it has {', '.join(names.values())}")
    wanted = lambda text: text.startswith("--") or not only or names[called(text)] in only  # noqa: E731
    calls = [list(filter(wanted, call)) for call in STUDIES[study]]
    return [call for call in calls if any(not text.startswith("--") for text in call)]


def joined(path: str, steps: int) -> list[dict]:
    """Exits where the file is no runs.csv, or one of runs that are not of so many steps."""
    try:
        rows = read_rows(path)
    except ValueError as error:
        sys.exit(f"--joined={path}: {error}")
    last = {(row["arm"], row["seed"]): row["step"] for row in rows}
    if several := sorted(set(last.values()) - {steps}):
        sys.exit(
            f"--joined={path} has runs of {', '.join(map(str, several))} steps, which do not go with "
            f"--max_iters={steps}"
        )
    return rows


def step_times(path: str, study: str) -> dict[str, float]:
    """{arm: median seconds of a step} of a JSON of bench.py. Exits where the file is none."""
    try:
        models = json.loads(Path(path).read_text())["models"].items()
        return {
            shortly(called(name), study): statistics.median(found["seconds"]["whole"])
            for name, found in models
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"--step_times={path}: no JSON of bench.py --mode=train: {type(error).__name__}: {error}")


def called(files: str) -> str:
    """What ablate.py calls an arm of these files of config/study."""
    return files.replace("config/study/", "study-").replace(".py", "")


def short_names(study: str) -> dict[str, str]:
    """{what ablate.py calls a model of the study: its name in tables}, in the study's order: without the
    base, and without the learning rate where no other model has the same name then.
    """
    models = list(
        dict.fromkeys(called(text) for call in STUDIES[study] for text in call if text[:2] != "--")
    )
    parts = [[part.removeprefix("study-") for part in model.split("+")] for model in models]
    named = ["+".join(part[1:] if part[1:] and not OVERLAYS.match(part[1]) else part) for part in parts]
    short = [re.sub(r"\+rate_\w+", "", name) for name in named]
    pairs = zip(models, named, short, strict=True)
    return {model: s if short.count(s) == 1 else name for model, name, s in pairs}


def longest(models: Iterable[str], name: str) -> str | None:
    """The model of an arm, whose name goes on with what ablate.py varied."""
    return max((model for model in models if f"{name}_".startswith(f"{model}_")), key=len, default=None)


def shortly(name: str, study: str) -> str:
    """An arm's name in tables, out of ablate.py's."""
    names = short_names(study)
    model = longest(names, name)
    return name if model is None else names[model] + name[len(model) :]


def in_order(names: Iterable[str], study: str) -> list[str]:
    """Names of arms in the study's own order, whatever was trained first; arms of a model as they come."""
    order = list(short_names(study).values())
    model = {name: longest(order, name) for name in names}
    return sorted(model, key=lambda name: order.index(model[name]) if model[name] else len(order))


def show(
    found: list[Arm], elsewhere: list[dict], folder: Path, study: str, times: dict[str, float] | None = None
):
    """The table of the arms, on the screen and in the study's folder, where runs.csv has every evaluation
    of every run, and tokens.png and hours.png have the curves of up to 12 arms. Differences are to the
    first arm. elsewhere: rows of another runs.csv; what was run here too counts once, as it is here. times:
    seconds of a step of each arm, for hours.png in place of what the runs took.
    """
    rows, names = pooled([row for arm in found for row in rows_of(arm)], elsewhere)
    names = in_order((*names, *(arm.name for arm in found if not arm.runs)), study)
    rows.sort(key=lambda row: names.index(row["arm"]))
    failed = {arm.name: arm.failed for arm in found}
    arms = [Arm(name, runs_of(name, rows), failed.get(name, 0)) for name in names]
    text = table_of(arms)
    print(text)
    (folder / "trainability.md").write_text(text + "\n")
    write_rows(folder / "runs.csv", rows)
    if times:
        if missing := sorted({arm.name for arm in arms if arm.runs} - times.keys()):
            sys.exit(f"--step_times has no {', '.join(missing)}; it has {', '.join(times)}")
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


def without_fractions(name: str, kind: str) -> str:
    """The arm that is this one with a control (z = 0) or a constant for each fraction."""
    return SAME.get(f"{name}+{kind}", f"{name}+{kind}")


def compared(arm: Arm, baseline: Arm | None) -> tuple[str, str]:
    """(mean ± deviation of the differences paired by seed, p), empty where there are none."""
    if baseline in (None, arm) or (found := difference(arm, baseline)) is None:
        return "", ""
    if found.p is None:
        return f"{found.mean:+.4f}", ""
    return f"{found.mean:+.4f} ± {found.deviation:.4f}", f"{found.p:.2g}"


def gradients(last: list[dict]) -> dict[str, str]:
    """Of all seeds: median and 95th percentile of the gradient norm after the warmup, the largest over the
    median, and how many steps are above ten times the median of their run.
    """
    known = [row for row in last if row["gradient_median"]]
    if not known:
        return dict.fromkeys(("gradient norm", "95 %", "largest / median", "spikes"), "")
    worst = max(row["gradient_largest"] / row["gradient_median"] for row in known)
    return {
        "gradient norm": f"{statistics.median(row['gradient_median'] for row in known):.2f}",
        "95 %": f"{statistics.median(row['gradient_95'] for row in known):,.2f}",
        "largest / median": f"{worst:,.1f}",
        "spikes": f"{sum(row['spikes'] for row in known):,}",
    }


if __name__ == "__main__":
    main(configurator.parse(StudyConfig, sys.argv[1:], positional="study"))
