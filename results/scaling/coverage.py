"""How often the intervals of scaling/ hold the truth: studies whose true curves are known.

    python results/scaling/coverage.py                        # coverage.csv and coverage.md, half an hour
    python results/scaling/coverage.py --studies=30 --fitted=0 --out=out/coverage      # rough, in minutes

Two families follow power laws that cross at 0.4 million parameters, at five sizes. Each run's loss gets
noise; a study is what `scale.py` would see. Counted is how many 95 % intervals hold the value of the true
curves. The last rows are of the p of `compare.py` and `ablate.py`, where two models are equally good.
"""

import csv
import io
import math
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host import interruption  # noqa: E402, F401 (first)
from host.disk import write_whole  # noqa: E402

import numpy as np  # noqa: E402
from tqdm import tqdm  # noqa: E402

import configurator  # noqa: E402
from comparison.significance import paired  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from scaling import intervals  # noqa: E402
from scaling.answers import crossing, multiplier  # noqa: E402
from scaling.curves import Curves, rows_of  # noqa: E402
from scaling.fits import Law, fit  # noqa: E402
from scaling.interpolation import lines  # noqa: E402
from scaling.points import Point  # noqa: E402

SIZES = {"0.125M": 125_000, "0.25M": 250_000, "0.5M": 500_000, "1M": 1_000_000, "2M": 2_000_000}
LAWS = {"dense": Law(1.7, 139.9, 0.35), "ours": Law(1.7, 56.8, 0.28)}
LOSSES = (3.7, 3.3, 3.0, 2.7)  # that both families reach
OF_FITS = 100  # samples of a fit's constants, which take most of the time
NOISE = 0.02  # standard deviation over seeds, that of 0.5M where sizes differ
LITTLE = 0.003  # with which fits determine their constants
CONSTANTS = ("E", "A", "α")
# seeds of the sizes; one number: of all
SEEDS = {"1, but 3 at the smallest": (3, 1, 1, 1, 1)}
SEEDS |= {"3, 3, 3, 2, 1": (3, 3, 3, 2, 1), "6 at 0.5M, else 2": (2, 2, 6, 2, 2)}
SEEDS |= {str(n): (n,) * 5 for n in (2, 3, 6, 10)}


@dataclass(frozen=True)
class World:
    """What runs' noise is. scatter: degrees of freedom with which places have deviations of their own,
    which then fall with the root of the size. shared: correlation of the families' runs with one seed.
    fitted: whether constants of fits are looked at.
    """

    name: str
    scatter: int | None = None
    shared: float = 0.0
    noise: float = NOISE
    fitted: bool = False


WORLDS = (
    World("one deviation", fitted=True),
    World(f"one deviation, {LITTLE}", noise=LITTLE, fitted=True),
    World("a deviation for each place", scatter=4),
    World("one deviation, half of the variance from the batches", shared=0.5),
)


@dataclass
class CoverageConfig:
    """Counts how many 95 % intervals of synthetic studies hold the truth."""

    studies: int = 500  # of each row
    fitted: int = 100  # of these, of rows where constants are looked at, that are fitted
    samples: int = 300  # of each interval; scale.py's default
    out: str = str(HERE)  # folder of coverage.csv and coverage.md

    def check(self) -> list[str]:
        least = {"studies": 1, "fitted": 0, "samples": 1}
        return [
            f"{key}={getattr(self, key)} must be at least {n}"
            for key, n in least.items()
            if getattr(self, key) < n
        ]


def study(world: World, seeds: tuple[int, ...], random: np.random.Generator) -> list[Point]:
    """The runs of one study; the losses of runs with one seed at a size share a part of their noise."""
    shared = random.normal(size=(len(SIZES), max(seeds)))
    found = []
    for family, law in LAWS.items():
        for number, (size, n) in enumerate(SIZES.items()):
            deviation = world.noise
            if world.scatter:
                spread = math.sqrt(world.scatter / random.chisquare(world.scatter))
                deviation *= spread * (n / SIZES["0.5M"]) ** -0.5
            for seed in range(seeds[number]):
                own = math.sqrt(1 - world.shared) * random.normal()
                noise = deviation * (math.sqrt(world.shared) * shared[number, seed] + own)
                loss = law.loss(n) + noise
                found.append(
                    Point(family, size, 20.0, seed, 1, 1, 64, n, n, 20 * n, 1, None, 1e-3, 1, loss, None)
                )
    return found


def held(points: list[Point], samples: int, fitted: bool) -> dict[str, list[bool]]:
    """{kind of interval: for each, whether it holds the value of the true curves}"""
    exact = [(p, float(LAWS[p.family].loss(p.parameters))) for p in points]
    true = Curves("parameters", points, lines(exact, "parameters"))
    drawn = intervals.samples(points, samples)
    seen = Curves(true.amount, points, lines([(p, p.loss) for p in points], "parameters"))
    seen.samples = [lines(sample, "parameters") for sample in drawn]
    found: dict[str, list[bool]] = {"multiplier": []}
    for loss in LOSSES:
        one = multiplier(seen, *LAWS, loss)
        if one.interval:
            found["multiplier"].append(inside(one.interval, multiplier(true, *LAWS, loss).value))
    ((at,), _) = crossing(true, *LAWS)
    crossings, _ = crossing(seen, *LAWS)
    if crossings:
        nearest = min(crossings, key=lambda one: abs(math.log(one.at / at.at)))
        found["crossing"] = [inside(nearest.interval, at.at)]
    if fitted:
        laws = fit(rows_of([(p, p.loss) for p in points], "parameters"))
        each = [fit(rows_of(sample, "parameters"), start=laws) for sample in drawn[:OF_FITS]]
        for family, law in LAWS.items():
            for number, name in enumerate(CONSTANTS):
                ends = intervals.interval([constants(some[family])[number] for some in each])
                found.setdefault(name, []).append(inside(ends, constants(law)[number]))
    return found


def constants(law: Law) -> tuple[float, float, float]:
    return law.irreducible, law.factor, law.exponent


def inside(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def row(world: World, seeds: str, config: CoverageConfig) -> dict[str, str]:
    """The coverage of each kind of interval."""
    random = np.random.default_rng(20_260_101)
    found: dict[str, list[bool]] = {}
    for number in tqdm(range(config.studies), desc=f"{world.name}, {seeds}", leave=False):
        points = study(world, SEEDS[seeds], random)
        fitted = world.fitted and number < config.fitted
        for kind, some in held(points, config.samples, fitted).items():
            found.setdefault(kind, []).extend(some)
    shares = {kind: f"{np.mean(some):.3f}" for kind, some in found.items()}
    kinds = ("multiplier", "crossing", *CONSTANTS)
    return {"noise": world.name, "seeds": seeds} | {kind: shares.get(kind, "") for kind in kinds}


def false_alarms(world: World, seeds: int, count: int) -> float:
    """The share of p below 0.05, of two models that are equally good, at the same seeds."""
    random = np.random.default_rng(seeds)
    shared = random.normal(size=(count, 1, seeds)) * math.sqrt(world.shared)
    each = shared + math.sqrt(1 - world.shared) * random.normal(size=(count, 2, seeds))
    found = [paired(list(a - b)) for a, b in world.noise * each]
    return sum(one.p < 0.05 for one in found) / count


def main(arguments: list[str]):
    config = configurator.parse(CoverageConfig, arguments)
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for world in WORLDS:
        for seeds in SEEDS:
            rows.append(row(world, seeds, config))
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_whole(folder / "coverage.csv", text.getvalue().encode())
    alarms = [
        {"noise": world.name}
        | {f"{n} seeds": f"{false_alarms(world, n, 20_000):.3f}" for n in (2, 3, 5, 10)}
        for world in WORLDS
        if not world.scatter and world.noise == NOISE
    ]
    write_whole(folder / "coverage.md", page(rows, alarms, config).encode())
    print(f"page: {folder / 'coverage.md'}")


def page(rows: list[dict], alarms: list[dict], config: CoverageConfig) -> str:
    return "\n".join(
        [
            "# How often an interval holds the truth\n",
            "    python results/scaling/coverage.py\n",
            f"Shares of 95 % intervals that hold the value of the true curves, in {config.studies} "
            f"synthetic studies a row, of two families at five sizes, with {config.samples} samples each. "
            f"The deviation is {NOISE} where none is named. Constants of fits: {config.fitted} studies, "
            f"{OF_FITS} samples. "
            "Crossings are those of studies that show one. The program's head says how studies are made.\n",
            table(rows) + "\n",
            "Shares of p below 0.05 of `compare.py` and `ablate.py`, where two models are equally good "
            "(20,000 pairs):\n",
            table(alarms) + "\n",
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
