"""Differences between compared runs: keys, batches, validation tokens and last steps."""

import difflib

from comparison.runs import INCIDENTAL, Arm
from training.config import TrainConfig

# these decide which batches a run saw: sample i is a function of the first three and of i
BATCHES = ("dataset", "seed", "block_size", "tokens per step", "tokens")
# these decide on which tokens the validation loss is measured
SCORED = ("dataset", "block_size", "eval_tokens")


def differences(arms: list[Arm], study: list[str]) -> list[str]:
    """One line for each key in which the arms differ, then what that means for the comparison.

    study: the keys that the comparison is about; if empty, any key may be. Seeds are listed if the arms
    have different ones. A key is compared between the arms whose models and recipes read it.
    """
    lines, differing = [], []
    reading = [keys_read(arm.config) for arm in arms]
    for key in sorted({key for arm in arms for key in arm.config} - INCIDENTAL):
        readers = [arm for arm, read in zip(arms, reading, strict=True) if key in read]
        values = [seeds(arm) if key == "seed" else value(arm.config, key) for arm in readers]
        if any(one != values[0] for one in values):
            differing.append(key)
            shown = distinct(values) if key in study else listed(values, readers, len(readers) < len(arms))
            lines.append(f"{label(key, study)}: {key} = {shown}")
            if key in SCORED:
                lines[-1] += "; their validation losses are of different tokens"
    study = list(dict.fromkeys(study))
    if study and (others := [key for key in differing if key not in study]):
        lines.append(
            f"the arms differ in more than {', '.join(study)}: their losses may differ because of "
            f"{', '.join(others)}"
        )
    if unlike := different_batches(arms):
        lines.append(f"different batches: the arms do not have the same {', '.join(unlike)}")
    return lines + interrupted(arms)


def keys_read(config: dict) -> set[str]:
    """The keys of a run that have an effect with its model, its optimizer and its schedules."""
    return TrainConfig(**config).keys_read()


def value(config: dict, key: str):
    """dyadic_iters=None becomes max_iters when a run starts: both are the default."""
    if key == "dyadic_iters" and config[key] == config["max_iters"]:
        return None
    return config.get(key)


def label(key: str, study: list[str]) -> str:
    if not study:
        return "differs"
    return "under study" if key in study else "also differs"


def distinct(values: list) -> str:
    return ", ".join(dict.fromkeys(map(repr, values)))


def listed(values: list, arms: list[Arm], named: bool = False) -> str:
    """Two arms: both values. More arms: the commonest value, and the arms that have another. named: the
    arms of each value, because others do not read the key.
    """
    texts = [repr(value) for value in values]
    who: dict[str, list[str]] = {}
    for text, arm in zip(texts, arms, strict=True):
        who.setdefault(text, []).append(arm.name)
    if named:
        return "; ".join(f"{text} in {', '.join(names)}" for text, names in who.items())
    if len(arms) == 2:
        return ", ".join(texts)
    common = max(who, key=lambda text: len(who[text]))
    if len(who[common]) == 1:
        return ", ".join(texts)
    others = [f"{text} in {', '.join(names)}" for text, names in who.items() if text != common]
    return f"{common}, but {'; '.join(others)}"


def seeds(arm: Arm) -> int | tuple[int, ...]:
    """The seed of an arm with one run, else a tuple of its seeds."""
    found = sorted(run.config["seed"] for run in arm.runs)
    return found[0] if len(found) == 1 else tuple(found)


def different_batches(arms: list[Arm]) -> list[str]:
    """The names in BATCHES whose values are not the same for all arms."""
    seen = []
    for arm in arms:
        config = arm.config
        per_step = config["batch_size"] * config["gradient_accumulation_steps"] * config["block_size"]
        tokens = arm.runs[0].evaluations[arm.steps[-1]]["tokens"]
        seen.append((config["dataset"], seeds(arm), config["block_size"], per_step, tokens))
    return [
        name for name, values in zip(BATCHES, zip(*seen, strict=True), strict=True) if len(set(values)) > 1
    ]


def interrupted(arms: list[Arm]) -> list[str]:
    """Lines about runs that are unfinished, at another step than their arm, or changed when resumed."""
    lines = []
    for arm in arms:
        ends = sorted({run.last_step for run in arm.runs})
        if len(ends) > 1:
            told = ", ".join(f"{step:,}" for step in ends)
            lines.append(f"{arm.name}: its seeds are at steps {told}; the table has step {arm.steps[-1]:,}")
        for run in arm.runs:
            if run.last_step < run.config["max_iters"]:
                lines.append(
                    f"not finished: {run.name}, at step {run.last_step:,} of {run.config['max_iters']:,}"
                )
            for record in run.records:
                for change in record.get("resumed", {}).values():
                    lines.append(f"changed on the way: {run.name}, at step {record['step']:,}: {change}")
    return lines


def unknown_keys(study: list[str], arms: list[Arm]) -> list[str]:
    """Complaints about keys under study that no run has."""
    known = {key for arm in arms for key in arm.config}
    lines = []
    for key in study:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            lines.append(f"study: the runs have no key {key!r}{hint}")
    return lines
