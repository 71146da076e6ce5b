"""Points of families whose laws are known."""

import numpy as np

from scaling.points import Point
from scaling.sizing import parse

E = 1.8
CONSTANTS = {"dense": (90.0, 0.34), "ours": (50.0, 0.30), "half": (75.0, 0.34)}


def loss_of(family, parameters, tokens):
    factor, exponent = CONSTANTS[family]
    return E + factor * parameters**-exponent + 60.0 * tokens**-0.3


def points(
    families=("dense", "ours"),
    sizes=("0.125M", "0.25M", "0.5M", "1M"),
    ratio=20.0,
    seeds=(1, 2, 3),
    noise=0.004,
):
    """Runs whose losses have noise of the seed that all families share, and noise of their own."""
    random = np.random.Generator(np.random.PCG64(3))
    shared = {(size, seed): random.normal(0, noise) for size in sizes for seed in seeds}
    found = []
    for family in families:
        for size in sizes:
            body = round(parse(size).target * 1.01)
            tokens = round(parse(size).target * ratio)
            for seed in seeds:
                loss = loss_of(family, body, tokens) + shared[size, seed] + random.normal(0, noise / 4)
                found.append(
                    Point(
                        family, size, ratio, seed, 2, 2, 64, body, body + 8192, tokens,
                        6 * body * tokens, tokens * body / 1e12, 4e-3, 1, loss, loss / 3,
                    )
                )  # fmt: skip
    return found
