"""Draw scaling curves of families of models, and say what a change of architecture is worth.

    python scale.py config/study/dense.py+config/study/rope.py config/study/dense.py+config/study/full.py \\
        --sizes=0.125M,0.25M,0.5M,1M:2 --tokens_per_parameter=20 --seeds=1,2,3
    python scale.py config/gpt2.py config/ours/ladder_full.py --sizes=10M,30M,100M --dry_run
    python scale.py --points=out/scaling/points.csv --out_dir=out/again   # the page again, from its CSV

Each positional argument is a family; `+` stacks config files. A family's depth, width and heads follow from
each of --sizes, which count parameters without embeddings. The keys of the recipe and of the data are
those of the first family, the baseline; each family brings the keys of its model. Any other --key=value of
train.py applies to all runs.

The learning rate is swept at the smallest size and at a larger one, for each family by itself; other sizes
follow a power of the width through both. What will be trained is listed with its hours before anything
starts.

Each run is a train.py with its own folder in --out_dir. The same command, called again, skips finished
runs, continues interrupted ones and repeats failed ones. Other sizes in the same folder extend the study.
At the end, scaling.md has the fits, the multipliers with 95 % intervals and where curves cross, scaling.png
draws them, and points.csv holds one row for each run, from which all of this can be made again.
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)

import shlex
import statistics
import sys
from pathlib import Path

import torch

import configurator
from ablation.command import mistakes_end
from ablation.deadline import Deadline
from ablation.execution import carry_out
from ablation.plan import Plan, PlanError, claimed
from ablation.preparation import check
from comparison.labels import shortened
from configurator import ConfigError
from corpus import DataError
from models.architecture import model_config
from reports import picture
from reports.plural import counted
from scaling import figure, listing, output, points, step_times
from scaling.command import ScaleConfig, parsed
from scaling.study import Study

GO_ON = "The same command goes on"


def main(argv: list[str]):
    if any(argument in ("-h", "--help") for argument in argv):
        configurator.end_with_help(ScaleConfig, about=__doc__.strip() + "\n\n")
    with mistakes_end("scale.py"):
        config, families, remarks = parsed(argv)
        command = shlex.join(["python", "scale.py", *argv])
        folder = Path(config.out_dir)
        look = picture.look(config)
        deadline = Deadline(config.minutes) if config.minutes else None
        if config.points is not None:
            found = points.read(config.points)
            names = called(list(dict.fromkeys(p.family for p in found)), config, look)
            output.refuse(folder)
            output.refuse_to_lose(folder, found)
            for line in output.write(found, names, folder, config, look, command):
                print(line)
            return
        if not families:
            raise PlanError(
                "name the families: one stack of config files or more, and --sizes (see --help)"
            )
        vocabulary = prepared(config, families)
        with claimed(folder, config.dry_run):
            for line in remarks:
                print(line, flush=True)
            plan = Plan(folder)
            plan.find_finished()
            study = Study(config, families, plan, vocabulary)
            names = called(list(study.state["families"]), config, look)
            if config.baseline is not None:
                output.baselines(config, names)
            known = study.known()
            check(plan, known)
            if command not in study.state["commands"]:
                study.state["commands"].append(command)
            study.note(known, save=not config.dry_run)
            told = measure(study, config, names)
            for line in [*listing.lines(study, names), *told, *study.remarks]:
                print(line, flush=True)
            if config.dry_run:
                return

            def more():
                found = study.more()
                points.write(folder / "points.csv", points.of_study(study))
                return found

            carry_out(plan, known, config.parallel, GO_ON, more, deadline)
            if deadline and deadline.left:
                print(left_over(study), flush=True)
            study.note(study.known())
            found = points.of_study(study)
            failed = listing.failures(study)
            commands = "\n".join(study.state["commands"])
            lines = [*told, *study.remarks, *failed]
            wrote = output.write(found, names, folder, config, look, commands, lines)
            print("\n".join(wrote))
            sys.exit(1 if failed or study.hopeless else 0)


def left_over(study: Study) -> str:
    """What the minutes did not suffice for, as far as it is known before the sweeps are over."""
    every = [*study.known(), *study.to_come()]
    left = [run for run in every if run.name not in study.plan.done]
    alone = listing.hours(left)
    return (
        f"the minutes are over: {len(left)} of {counted(len(every), 'run')} are left, {alone:.2g} hours of "
        f"training one after the other. {GO_ON}"
    )


def prepared(config: ScaleConfig, families) -> int:
    """The vocabulary of the data; sets `parallel` where it is open, on a CPU. Raises ConfigError."""
    first = families[0].config
    if config.parallel is None and (first.device == "cpu" or not torch.cuda.is_available()):
        config.parallel = step_times.cores()
    try:
        return listing.vocabulary(first)
    except (DataError, OSError) as error:
        raise ConfigError([str(error)]) from None


def measure(study: Study, config: ScaleConfig, names: dict[str, str]) -> list[str]:
    """Measure the steps of the study's models, if one of the command's has no time yet -> what is known of
    the measurement. Sets `parallel` where it is open, on GPUs.

    All of them, in turn, and those of earlier commands once more: times that were measured at different
    moments cannot be compared.
    """
    known, recipe = study.state["seconds"], study.families[0].config
    models = {
        (family.name, size.label): (family.config, study.shapes[family.name, size.label].model)
        for family in study.families
        for size in study.sizes
    }
    if all(size in known.get(family, {}) for family, size in models):
        config.parallel = config.parallel or step_times.side_by_side(study.state["memory"])
        return study.state["timed"]
    for name, mark in study.state["runs"].items():
        of = mark["family"], mark["size"]
        models.setdefault(of, (recipe, model_config(study.plan.runs[name].config)))
    if recipe.compile:
        of_all = counted(len(models), "model")
        print(f"compiling {of_all}, a minute or so each; --compile=False goes without", flush=True)
    times, study.state["memory"] = step_times.measure(models, config.parallel)
    config.parallel = config.parallel or step_times.side_by_side(study.state["memory"])
    for (family, size), found in times.items():
        known.setdefault(family, {})[size] = statistics.median(found)
    study.state["timed"] = [step_times.spread(times, names)]
    if not config.dry_run:
        study.save()
    return study.state["timed"]


def called(families: list[str], config: ScaleConfig, look: picture.Look) -> dict[str, str]:
    """{family: what to call it}; raises PlanError where the picture cannot be as it was asked for."""
    wrong = picture.wrong_size(look, 1 + len(config.baseline or [""]), len(figure.LABELS))
    if wrong := wrong + picture.wrong_labels(look.labels, families):
        raise PlanError("; ".join(wrong))
    return dict(zip(families, look.labels or shortened(families), strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
