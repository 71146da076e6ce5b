"""What a picture calls its lines: by what differs between them."""

import re

from comparison.runs import INCIDENTAL, Arm
from training.config import DEFAULTS, TrainConfig

# keys that change together with another one, which says enough
FOLLOWS = {"min_lr": "learning_rate", "muon_learning_rate": "learning_rate"}
# more keys than this in a label say less than the name of the run
MOST_KEYS = 2
PART = re.compile(rf"\+|_(?=(?:{'|'.join(sorted(DEFAULTS, key=len, reverse=True))})=)")


def labels(arms: list[Arm], study: list[str] | None = None) -> list[str]:
    """A label for each arm.

    `key=value` where the arms differ in one or two keys, or where one or two keys under study tell all of
    them apart, and each arm reads these. Otherwise their names, without what all names share.
    """
    keys = differing(arms)
    for shown in (study or [], keys):
        texts = [", ".join(f"{key}={text(arm.given[key])}" for key in shown) for arm in arms]
        told_apart = 0 < len(shown) <= MOST_KEYS and len(set(texts)) == len(arms) > 1
        if told_apart and all(set(shown) <= TrainConfig(**arm.given).keys_read() for arm in arms):
            return texts
    return shortened([arm.name for arm in arms])


def differing(arms: list[Arm]) -> list[str]:
    """The keys in which arms differ, without seeds and without keys that follow another one."""
    configs = [arm.given for arm in arms]
    keys = dict.fromkeys(key for config in configs for key in config)
    found = [
        key
        for key in keys
        if key not in INCIDENTAL | {"seed"} and any(c.get(key) != configs[0].get(key) for c in configs)
    ]
    return [key for key in found if FOLLOWS.get(key) not in found]


def text(value) -> str:
    """A value as one writes it: 4e-3, 0.1, 128, True, cffn_gated."""
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 0.1 <= abs(value) < 1e4:
        return f"{value:g}"
    mantissa, power = f"{value:.6e}".split("e")
    return f"{float(mantissa):g}e{int(power)}"


def without_keys(name: str, keys: set[str]) -> str:
    """The name of an arm or run of an ablation, without its parts `_key=value` for these keys."""
    parts, marks = PART.split(name), PART.findall(name)
    kept = [
        (m, part) for m, part in zip(["", *marks], parts, strict=True) if part.split("=")[0] not in keys
    ]
    return "".join(mark + part for mark, part in kept)


def shortened(names: list[str]) -> list[str]:
    """Without the parts that all names share (files joined by `+`, and `_key=value`), without keys that
    follow another one, and without a beginning that all files share. Unchanged where less would not tell
    them apart.
    """
    if len(names) < 2:
        return list(names)
    split = [PART.split(name) for name in names]
    shared = set(split[0]).intersection(*split)
    files, keys = [], []
    for parts in split:
        own = [part for part in parts if part not in shared]
        varied = {part.split("=")[0] for part in own if "=" in part}
        files.append("+".join(part for part in own if "=" not in part))
        keys.append([part for part in own if "=" in part and FOLLOWS.get(part.split("=")[0]) not in varied])
    short = [", ".join(filter(None, [file, *own])) for file, own in zip(_ends(files), keys, strict=True)]
    return short if len(set(short)) == len(names) and all(short) else list(names)


def _ends(names: list[str]) -> list[str]:
    """Names without the beginning that all of them share, up to a separator."""
    low, high = min(names), max(names)
    if low == high:
        return names
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    start = re.match(r"(.*[-_./ +])?", low[:same])[0]
    return [name[len(start) :] for name in names] if len(low) > len(start) else names
