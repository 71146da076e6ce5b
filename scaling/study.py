"""A study's runs, in stages: a sweep of each family's learning rate at the smallest size, another at a
larger one, then all sizes at the rates that follow from both.

What is known is kept in the study's folder: see scaling/state.py.
"""

import dataclasses
import math

from ablation.plan import MAY_CHANGE, Plan, PlanError
from comparison.labels import text
from comparison.runs import read_run
from scaling import sizing, state, sweep
from scaling.command import INSTEAD, OF_FAMILY, Family, ScaleConfig
from scaling.rates import Rates
from scaling.recipe import Scaled, moved_rate, run_of
from scaling.sizing import Shape, Size


class Study:
    """What a command asks for, what is known of it by now, and what may start.

    plan: of the folder, which gets each run as soon as its configuration is known. vocab_size: of the data.
    """

    def __init__(self, config: ScaleConfig, families: list[Family], plan: Plan, vocab_size: int):
        self.config, self.families, self.plan = config, families, plan
        self.sizes, self.ratio = config.targets(), config.tokens_per_parameter
        recipe = self._recipe()
        self.state = state.new(recipe)
        self.handed: set[str] = set()  # runs that were given to `execute`
        self.hopeless: set[str] = set()  # families that failed at every learning rate
        self.path = plan.folder / "scaling.json"
        if self.path.is_file():
            self.state = state.read(self.path, plan.runs)
            known = self.state["recipe"]
            if changed := [key for key in recipe if known.get(key) != recipe[key]]:
                told = ", ".join(f"{key} was {known.get(key)!r}, now {recipe[key]!r}" for key in changed)
                raise PlanError(
                    f"{plan.folder} has runs of another recipe ({told}), which cannot be compared: leave "
                    "it as it was, or choose another folder"
                )
            self._refuse_other_lengths()
        elif plan.runs:
            raise PlanError(f"{plan.folder} holds an ablation, but no scaling study: choose another folder")
        self.shapes = self._shapes(vocab_size)
        rules = self.state["families"]
        self.rates = Rates(config, families, self.sizes, self.shapes, rules, plan.folder)
        self.remarks = self.rates.remarks

    def _refuse_other_lengths(self):
        ratios = {mark["ratio"] for mark in self.state["runs"].values()} - {self.ratio}
        if ratios:
            told = ", ".join(f"{ratio:g}" for ratio in sorted(ratios))
            raise PlanError(
                f"{self.plan.folder} has runs with {told} tokens per parameter, which cannot be compared "
                f"with tokens_per_parameter={self.ratio:g}: leave it as it was, or choose another folder"
            )

    def _recipe(self) -> dict:
        """What all runs of a study have in common: the keys of the first family's config, but for those of
        its model and those that the rules set. Rates that follow the learning rate are over it.
        """
        config = dataclasses.asdict(self.families[0].config)
        for key in "min_lr", "muon_learning_rate":
            rate = config.pop(key)
            config[f"{key} / learning_rate"] = rate and float(f"{rate / config['learning_rate']:.3g}")
        others = OF_FAMILY | MAY_CHANGE | INSTEAD.keys() | {"vocab_size"}
        return {key: value for key, value in config.items() if key not in others}

    def _shapes(self, vocab_size: int) -> dict[tuple[str, str], Shape]:
        """{(family, size): Shape}. Raises PlanError with all sizes that a family does not have."""
        found, wrong = {}, []
        for family in self.families:
            base, sizes = dataclasses.replace(family.model, vocab_size=vocab_size), {}
            for size in self.sizes:
                try:
                    model = sizing.shape(base, size.target)
                except ValueError as error:
                    wrong.append(f"{family.name} at {size.label}: {error}")
                    continue
                found[family.name, size.label] = Shape(model, sizing.body(model))
                twin = sizes.setdefault(found[family.name, size.label].body, size.label)
                if twin != size.label:
                    wrong.append(f"{family.name} at {size.label}: it is the same model as at {twin}")
        if wrong:
            raise PlanError("\n  ".join(["some sizes cannot be had:", *wrong]))
        return found

    def run(self, family: Family, size: Size, rate: float, seed: int) -> Scaled:
        model = self.shapes[family.name, size.label].model
        found = run_of(family, model, size, self.ratio, rate, seed)
        found.seconds = self.state["seconds"].get(family.name, {}).get(size.label, math.nan)
        return found

    def seeds(self, size: Size) -> list[int]:
        return self.config.seeds[: size.seeds]

    def runs_at(self, family: Family, size: Size, rate: float | None = None) -> list[Scaled]:
        """The runs of a size, all its seeds, at a learning rate; None: the rule's."""
        rate = rate or self.rates.of(family, size)
        return [self.run(family, size, rate, seed) for seed in self.seeds(size)]

    def checks(self) -> bool:
        """Whether half and twice the rule's rate are trained: the power of the width was given."""
        given = self.config.rate_exponent is not None or len(self.config.rates or ()) == 1
        return given and self.config.checked() is not None

    def check_runs(self, family: Family, rate: float | None = None) -> list[Scaled]:
        """Half and twice the rule's rate where a given exponent is checked. rate: a stand-in for it."""
        if not self.checks():
            return []
        return [
            self.run(
                family, size,
                float(f"{(rate or self.rates.of(family, size)) * factor:.3g}"), self.config.seeds[0],
            )
            for size in self.sizes
            if size.label == self.config.checked()
            for factor in (1 / sweep.FACTOR, sweep.FACTOR)
        ]  # fmt: skip

    def sweeps(self, family: Family) -> list[Scaled]:
        """The runs of a family's sweeps that are known by now. Notes what a sweep found when it is over."""
        known, runs = self.state["families"][family.name], []
        if known["rate"] is None:
            runs, known["rate"] = self._swept(family, self.sizes[0], known["first"])
        if known["rate"] is None or self.rates.exponent(family) is not None:
            return runs
        size = self.rates.second(family)
        width = self.rates.width(family, size)
        middle = moved_rate(known["rate"], known["width"], width, 1.0)
        first = [moved_rate(middle, 1, 1 / factor, 1.0) for factor in (1 / sweep.FACTOR, 1, sweep.FACTOR)]
        more, rate = self._swept(family, size, first)
        if rate is not None:
            power = math.log(known["rate"] / rate) / math.log(width / known["width"])
            known |= {"exponent": round(power, 3), "second": width}
        return runs + more

    def _swept(self, family: Family, size: Size, first: list[float]) -> tuple[list[Scaled], float | None]:
        """(runs of a sweep that are known by now, the rate that it found; None while it is not over)"""
        found = sweep.carried_on(first, lambda rate: self.runs_at(family, size, rate), self.loss)
        if found.failed:
            self.hopeless.add(family.name)
            lowest = text(min(found.rates))
            self.remark(f"{family.name}: training failed at all learning rates from {lowest} on")
        elif found.at_edge:
            best = f"the best of {len(found.rates)} learning rates at {size.label}"
            told = f"{family.name}: {best} is at the edge of the sweep"
            self.remark(told)
            self.state["families"][family.name]["remarks"].append(told)
        return found.runs, found.rate

    def remark(self, line: str):
        if line not in self.remarks:
            self.remarks.append(line)

    def loss(self, run: Scaled) -> float | None:
        """The validation loss at a run's end; infinity where it failed, None while nothing is known."""
        if run.name in self.plan.done:
            at = read_run(self.plan.folder / run.name).evaluations[run.config["max_iters"]]
            return at["val_loss"] if math.isfinite(at["val_loss"]) else math.inf
        return math.inf if run.name in self.plan.failed and run.name in self.handed else None

    def decided(self, family: Family) -> bool:
        known = self.state["families"][family.name]
        return known["rate"] is not None and self.rates.exponent(family) is not None

    def known(self) -> list[Scaled]:
        """All runs whose configuration is known by now, cheapest first."""
        runs = {}
        for family in self.families:
            found = [] if self.decided(family) else self.sweeps(family)
            if self.decided(family):  # by what a sweep found just now, perhaps
                found += [run for size in self.sizes for run in self.runs_at(family, size)]
                found += self.check_runs(family)
            runs |= {run.name: run for run in found}
        return sorted(runs.values(), key=lambda run: run.flops * run.tokens)

    def to_come(self) -> list[Scaled]:
        """The runs that wait for the end of a sweep, with a stand-in for their learning rate.

        Rates that sweeps find are mostly none that they tried, so that their sizes train once more.
        """
        runs = []
        for family in self.families:
            if self.decided(family) or family.name in self.hopeless:
                continue
            rate = self.state["families"][family.name]["rate"]
            stand_in = rate or self.rates.first(family)[0]
            if rate is None and (size := self.rates.second(family)):
                runs += 3 * self.runs_at(family, size, stand_in)
            runs += [run for size in self.sizes for run in self.runs_at(family, size, stand_in)]
            runs += self.check_runs(family, stand_in)
        return runs

    def more(self) -> tuple[list[Scaled], float]:
        """For `execution.execute`: runs that may start now, and the work of all that will come later."""
        known = self.known()
        self.note(known)
        ready = [run for run in known if run.name not in self.handed and run.name not in self.plan.done]
        self.handed |= {run.name for run in ready}
        for run in ready:  # what failed is tried again, and nothing is known of it until that ends
            self.plan.failed.pop(run.name, None)
        return ready, sum(run.work(run.tokens) for run in self.to_come())

    def note(self, runs: list[Scaled], save: bool = True):
        """Add runs to the plan and to the state, and save both. `rule` is set anew for all runs, because a
        sweep may have changed the rule.
        """
        self.plan.extend(runs, ["learning_rate"])
        for run in runs:
            mark = {"family": run.family, "size": run.size, "ratio": run.ratio, "rule": False}
            self.state["runs"].setdefault(run.name, mark)
        for family in self.families:
            for name, mark in self.state["runs"].items():
                if mark["family"] == family.name:
                    config = self.plan.runs[name].config
                    mark["rule"] = config["learning_rate"] == self.rates.at(family, config["n_embd"])
        if save:
            self.plan.save()
            self.save()

    def save(self):
        state.write(self.path, self.state)
