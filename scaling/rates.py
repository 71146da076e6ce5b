"""The rule for the learning rate of a family: what its sweeps found, and what follows for other widths.

It is kept for each family in the study's state (scaling/state.py).
"""

import dataclasses

from ablation.plan import PlanError
from comparison.labels import text
from scaling import sweep
from scaling.command import Family, ScaleConfig
from scaling.recipe import moved_rate
from scaling.sizing import Size

# Outside the widths of the two sweeps, the power of the width stays within these. Two sweeps at widths
# close together give any power, because the losses of their rates differ by less than seeds do.
LEAST_POWER, MOST_POWER = -1.0, 2.0


class Rates:
    """The rules of a command's families.

    sizes: of the command. shapes: {(family, size): Shape}. state: {family: its rule}, which is changed. An
    earlier command's rule stands. folder: of the study, to be named. remarks: what was noticed.
    Raises PlanError where a family was another model, or where check_size tells nothing of the width.
    """

    def __init__(self, config: ScaleConfig, families: list[Family], sizes, shapes, state: dict, folder):
        self.config, self.sizes, self.shapes, self.state = config, sizes, shapes, state
        self.remarks: list[str] = []
        for family in families:
            self._remember(family, folder)
        self._check(families)

    def _remember(self, family: Family, folder):
        """Take the family's learning rate from an earlier command, or begin its sweep.

        Other --rates than the earlier command's begin another sweep; without --rates, none begins again.
        """
        config, model = self.config, dataclasses.asdict(family.model)
        known = self.state.get(family.name)
        if known and known["model"] != model:
            keys = ", ".join(key for key in model if known["model"].get(key) != model[key])
            raise PlanError(
                f"{folder}: {family.name} was another model ({keys} changed); choose another folder"
            )
        first = self.first(family)
        if known and config.rates and known["first"] != first:
            before = ", ".join(map(text, known["first"]))
            self.remarks.append(f"{family.name}: --rates were {before}, so the learning rate is found anew")
        elif known:
            first = known["first"]
        if not known or known["first"] != first:
            known = {"rate": first[0] if len(first) == 1 else None, "width": 0}
            known |= {"exponent": None, "second": None, "remarks": []}
            self.state[family.name] = {"model": model, "first": first, **known}
        known = self.state[family.name]
        self.remarks += known["remarks"]
        if known["rate"] is None or not known["width"]:
            known["width"] = self.width(family, self.sizes[0])
        if config.rate_exponent is not None:
            known |= {"exponent": config.rate_exponent, "second": None}
        elif known["exponent"] is None and (len(first) == 1 or not config.check_rate):
            known["exponent"] = 1.0

    def first(self, family: Family) -> list[float]:
        """The learning rates that the sweep begins with."""
        rate = family.config.learning_rate
        return sorted(self.config.rates or [rate / sweep.FACTOR, rate, rate * sweep.FACTOR])

    def width(self, family: Family, size: Size) -> int:
        return self.shapes[family.name, size.label].model.n_embd

    def _check(self, families: list[Family]):
        wrong = [
            f"{family.name} is {self.width(family, size)} wide"
            for family in families
            if self.config.check_size is not None and (size := self.second(family))
            if self.width(family, size) == self.state[family.name]["width"]
        ]
        if wrong:
            raise PlanError(
                f"check_size={self.config.check_size}: {' and '.join(wrong)} there and at the first sweep, "
                "which says nothing of how the learning rate falls with the width: take another size"
            )
        for family in families:
            known = self.state[family.name]
            widths = {self.width(family, size) for size in self.sizes}
            if known["exponent"] is None and not self.second(family) and widths != {known["width"]}:
                self.remarks.append(
                    f"{family.name}: its second sweep is not over, and these sizes have none; its learning "
                    "rate is taken to fall with the width"
                )

    def second(self, family: Family) -> Size | None:
        """The size of the family's second sweep, of which its exponent follows; None: there is none.

        check_size=None: the second largest size, or else the next one at which the family's width is not
        that of its first sweep.
        """
        label, width = self.config.checked(), self.state[family.name]["width"]
        if label is None or self.state[family.name]["exponent"] is not None:
            return None
        place = next(n for n, size in enumerate(self.sizes) if size.label == label)
        if self.config.check_size is not None:
            return self.sizes[place]
        order = [*self.sizes[place:], *reversed(self.sizes[:place])]
        return next((size for size in order if self.width(family, size) != width), None)

    def exponent(self, family: Family) -> float | None:
        """The rule's: the learning rate falls with the width to this power; None while it is not known."""
        known = self.state[family.name]["exponent"]
        return known if known is not None or self.second(family) else 1.0

    def kept_power(self, family: Family) -> float | None:
        """The power outside the widths of both sweeps where that through both is out of bounds, or None."""
        known = self.state[family.name]
        if known["second"] is None or LEAST_POWER <= known["exponent"] <= MOST_POWER:
            return None
        return min(max(known["exponent"], LEAST_POWER), MOST_POWER)

    def at(self, family: Family, width: int) -> float | None:
        """The rule's learning rate at a width; None while the sweeps are not over."""
        known, exponent = self.state[family.name], self.exponent(family)
        if known["rate"] is None or exponent is None:
            return None
        kept = self.kept_power(family)
        if kept is None:
            return moved_rate(known["rate"], known["width"], width, exponent)
        low, high = sorted((known["width"], known["second"]))
        swept = min(max(width, low), high)
        rate = moved_rate(known["rate"], known["width"], swept, exponent)
        return moved_rate(rate, swept, width, kept)

    def of(self, family: Family, size: Size) -> float | None:
        return self.at(family, self.width(family, size))
