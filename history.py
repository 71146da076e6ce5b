"""Saved configurations and weights, in the names that the code has today.

A saved configuration may hold keys that have left, or lack keys that came later. A value that today's code
cannot compute is refused, with the last commit that can: a checkpoint never loads as another model.
"""

LAST_BEFORE_INTERCEPTS = "16d9952"
LAST_WITH_SELF_SKIP = "66884a0"
LAST_BEFORE_SWEEP = "466f118"
# keys that have left, with the one value that today's code still computes
GONE = {
    "cf_ladder": "inner",
    "cf_pole_grad": "formula",
    "cffn_proj": False,
    "ladder_grad_clip": 0.0,
    "dyadic_rewarmup": 0,
    "dyadic_reset_ranges": False,
}
# parameters that have another name now, by the end of the old one
RENAMED = {"attention.F": "attention.columns"}
# parameters that were numbers and are vectors of one now, by the beginning of their names
WERE_NUMBERS = "position.learned."


def config_of_today(saved: dict, known: set[str] | None = None) -> dict:
    """A saved configuration in the keys of today; those that are newer are missing still.

    known: all keys of today. Raises ValueError where today's code has no such model or no such key.
    """
    values = _intercepts(dict(saved))
    for key, value in GONE.items():
        if (found := values.pop(key, value)) != value:
            raise _refused(f"{key}={found}")
    if values.get("ffn") == "cffn_gated" and values.get("cffn_gate") == "glu":
        raise _refused("cffn_gate=glu")
    if values.get("attention") == "cattn_c":
        raise _refused("attention=cattn_c")
    if values.get("cf_pole") in ("absolute", "smooth", "soft_clamp"):
        raise _refused(f"cf_pole={values['cf_pole']}")
    if "key_shift" in values:
        values["token_shift"] = values.pop("key_shift")
    values = _relative(_control(values))
    if known is not None and (unknown := sorted(values.keys() - known)):
        few = ", ".join(f"{key}={values[key]!r}" for key in unknown[:3])
        raise ValueError(f"this version does not know {few}: it was saved by a newer version")
    return values


def _intercepts(values: dict) -> dict:
    """One without `cf_intercept` was saved before the intercepts of ladders were a key, when cffn_gate=self
    stood for U x + V z(h).
    """
    before = "cf_intercept" not in values
    skips = ("self", "self_skip") if before else ("self_skip",)
    gate = values.get("cffn_gate", "self")
    if values.get("ffn") == "cffn_gated" and gate in skips:
        last = LAST_BEFORE_INTERCEPTS if before else LAST_WITH_SELF_SKIP
        raise ValueError(
            f"cffn_gate={gate} was y = U x + V z(h) when this was saved, and self is U h + V z(h) now: "
            f"commit {last} is the last that computes that model"
        )
    if not before:
        return values
    if values.get("position") == "sinusoidal":
        raise ValueError(
            "position=sinusoidal did not multiply the embedding by sqrt(n_embd) when this was saved, "
            f"and does now: commit {LAST_BEFORE_INTERCEPTS} is the last that computes that model"
        )
    drawn = values.get("cf_init", "bias1")
    values["cf_init"] = "fan_in" if drawn == "bias1" else drawn
    values["cf_intercept"] = "none" if drawn == "nanogpt" else "one"
    return values


def _control(values: dict) -> dict:
    """cf_control was True or False, and cf_control_constant a key of its own."""
    constant = values.pop("cf_control_constant", False)
    if isinstance(values.get("cf_control"), bool):
        values["cf_control"] = ("constant" if constant else "zero") if values["cf_control"] else "none"
    return values


def _relative(values: dict) -> dict:
    """Columns by distance and by content were keys of cattn_m."""
    if values.get("attention") != "cattn_m":
        values.pop("cattn_relative", None)
        return values
    relative, content = values.pop("cattn_relative", False), values.get("cattn_content", False)
    if content and not relative:
        raise _refused("cattn_content=True without cattn_relative=True")
    if relative and values.get("cattn_strict", False):
        raise _refused("cattn_relative=True with cattn_strict=True")
    if relative:
        values["attention"] = "cattn_relative"
    return values


def _refused(what: str) -> ValueError:
    return ValueError(f"{what} has left: commit {LAST_BEFORE_SWEEP} is the last that computes that model")


def weights_of_today(weights: dict) -> dict:
    """Saved weights under the names and in the shapes of today, in the same order."""
    renamed = {}
    for name, weight in weights.items():
        for old, new in RENAMED.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        renamed[name] = weight.reshape(1) if name.startswith(WERE_NUMBERS) else weight
    return renamed
