"""What a study will train, and how long that takes, before anything starts."""

from ablation.execution import OUTPUT
from comparison.labels import text
from corpus import DataError, mixture
from reports.markdown_table import table
from reports.plural import counted
from scaling.recipe import steps, tokens_per_step
from scaling.study import Study
from scaling.tables import shown
from training.config import TrainConfig


def vocabulary(config: TrainConfig) -> int:
    """Tokens in the vocabulary of the models. Raises DataError where the data set is not prepared, and for
    one of pairs or rows, of which fewer tokens are scored than the sizes, FLOPs and hours here count with.
    """
    data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
    if data.unit != "tokens":
        raise DataError(
            f"dataset: {config.dataset} holds {data.unit}, and scale.py counts block_size scored tokens in "
            "each sample, which they do not have: take a data set of texts, or compare the models with "
            "ablate.py"
        )
    return config.vocab_size or data.meta["vocab_size"]


def training_tokens(config: TrainConfig) -> int:
    data = mixture.open_dataset(config.dataset, "train", config.block_size, config.vocab_size)
    return sum(len(source.tokens) for source in getattr(data, "sources", [data]))


def lines(study: Study, names: dict[str, str]) -> list[str]:
    """A table of models and runs, and the sums below it. names: what to call the families."""
    rows = []
    for family in study.families:
        for size in study.sizes:
            rows.append(_row(study, family, size, names))
    found = [table(rows), ""]
    known, coming = study.known(), study.to_come()
    done = [run for run in known if run.name in study.plan.done]
    config, every = study.config, [*known, *coming]
    all_hours, left = (side_by_side(some, config.parallel) for some in (every, _left(study, every)))
    at_once = "one after the other" if config.parallel == 1 else f"{config.parallel} at a time"
    found.append(
        f"{counted(len(known) + len(coming), 'run')} in {study.plan.folder}, {len(done)} of them done; "
        f"about {shown(left)} of {shown(all_hours)} hours left, "
        f"{at_once}, without evaluations"
    )
    found += rate_lines(study, names)
    recipe = study.families[0].config
    longest = steps(recipe, study.sizes[-1], study.ratio) * tokens_per_step(recipe)
    there = training_tokens(recipe)
    if longest > there:
        found.append(
            f"the longest runs read the {there:,} training tokens {longest / there:.1f} times: scaling "
            "laws are about text that is new"
        )
    return found


def hours(runs: list) -> float:
    """Hours of training of runs, one after the other, by the measured times of their models."""
    return sum(run.work(run.tokens) for run in runs)


def side_by_side(runs: list, parallel: int) -> float:
    """The least hours that they take, `parallel` at a time."""
    return max([hours(runs) / parallel, *(hours([run]) for run in runs)])


def _left(study: Study, runs: list) -> list:
    return [run for run in runs if run.name not in study.plan.done]


def _row(study: Study, family, size, names: dict[str, str]) -> dict[str, str]:
    shape = study.shapes[family.name, size.label]
    model, rate = shape.model, study.rates.of(family, size)
    run = study.run(family, size, rate or family.config.learning_rate, study.config.seeds[0])
    return {
        "family": names[family.name],
        "size": size.label,
        "layers": str(model.n_layer),
        "width": str(model.n_embd),
        "heads": str(model.n_head),
        "parameters": f"{shape.body:,}",
        "steps": f"{run.config['max_iters']:,}",
        "tokens": f"{run.tokens:,}",
        "FLOPs": f"{run.flops * run.tokens:.2e}",
        "learning rate": "swept" if rate is None else text(rate),
        "seeds": str(len(study.seeds(size))),
        "hours": shown(hours([run]), 2),
    }


def rate_lines(study: Study, names: dict[str, str]) -> list[str]:
    """How each family's learning rate follows from its sweeps."""
    found = []
    for family in study.families:
        known, exponent = study.state["families"][family.name], study.rates.exponent(family)
        line = f"{names[family.name]}: learning rate "
        if known["rate"] is None:
            tried = ", ".join(map(text, known["first"]))
            line += f"swept at {study.sizes[0].label}, from {tried}"
        else:
            line += f"{text(known['rate'])} at width {known['width']}"
        if exponent is None:
            line += f", and swept at {study.rates.second(family).label}"
        else:
            power = "" if exponent == 1 else f" to the power {exponent:g}"
            line += f"; from there it falls with the width{power}"
            if (kept := study.rates.kept_power(family)) is not None:
                line += f" as far as {known['second']}, and outside these widths to the power {kept:g}"
        found.append(line)
    if study.checks():
        found.append(f"at {study.config.checked()}, half and twice the learning rate are trained too")
    return found


def failures(study: Study) -> list[str]:
    """Runs that failed, and why. A learning rate at which training fails is what a sweep may find."""
    lines = []
    for run in study.known():
        if run.name in study.plan.failed and run.rate == _rule(study, run):
            folder = study.plan.folder / run.name
            lines.append(f"failed: {run.name}: {study.plan.failed[run.name]} ({folder / OUTPUT})")
    return lines


def _rule(study: Study, run) -> float | None:
    family = next(f for f in study.families if f.name == run.family)
    size = next(s for s in study.sizes if s.label == run.size)
    return study.rates.of(family, size)
