"""The state of a study, in scaling.json in its folder, beside the list of runs (ablation.json):

recipe    {key: value} of what all runs have in common
families  {name: {"model", "first", "rate", "width", "exponent", "second", "remarks"}}: its keys, the rates
          that the sweep began with, the one that it found (null until it is over), the width at which that
          was, the power of the width with which the rate falls (null until the second sweep is over), the
          width of the second sweep (null where the power was given), and what to say of the sweeps
runs      {name: {"family", "size", "ratio", "rule"}}; rule: whether its rate is the rule's
seconds   {family: {size: seconds of a training token}}
memory    the most bytes of a GPU that a step of one of them takes; 0 on a CPU
timed     what to say of the measurement of these, a line or none
commands  the command lines that trained in this folder
"""

from host.disk import read_json, write_whole

import json
from pathlib import Path

from ablation.plan import PlanError

FORMAT = "cofrgenet scaling 1"
NUMBER = (int, float)
PERHAPS = (int, float, type(None))
# a type or several, {every name: a form}, {"key": its form, ...}, [the form of all]
FORM = {
    "format": str,
    "recipe": dict,
    "families": {
        ...: {
            "model": dict,
            "first": [NUMBER],
            "rate": PERHAPS,
            "width": int,
            "exponent": PERHAPS,
            "second": (int, type(None)),
            "remarks": [str],
        }
    },
    "runs": {...: {"family": str, "size": str, "ratio": NUMBER, "rule": bool}},
    "seconds": {...: {...: NUMBER}},
    "memory": int,
    "timed": [str],
    "commands": [str],
}


def new(recipe: dict) -> dict:
    """Of a study that has nothing yet."""
    empty = {key: type(form)() for key, form in FORM.items() if isinstance(form, dict | list)}
    return {"format": FORMAT, "recipe": recipe, "memory": 0, **empty}


def read(path: Path, runs: dict) -> dict:
    """Raises PlanError for a file that this program did not write so, and where it lists runs that are not
    in the list beside it, `runs`.
    """
    content = read_json(path, PlanError, "; choose another folder")
    wrong = _unlike(content, FORM, "")
    if wrong is None and content["format"] != FORMAT:
        wrong = f"its format is {content['format']!r}"
    elif wrong is None and (unknown := content["runs"].keys() - runs.keys()):
        wrong = f"its run {min(unknown)!r} is not in ablation.json"
    if wrong is not None:
        raise PlanError(f"{path} was not written by this scale.py ({wrong}): choose another folder")
    return content


def write(path: Path, state: dict):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(state, indent=1) + "\n")


def _unlike(value, form, place: str) -> str | None:
    """Where a value of JSON does not have a form, and what is there; None where it has."""
    kind = form if isinstance(form, type | tuple) else type(form)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return f"{place or 'it'} is {str(value)[:40]!r}"
    if isinstance(form, dict):
        if ... not in form and (lacks := form.keys() - value.keys()):
            return f"{place or 'it'} has no {min(lacks)!r}"
        inner = {key: form.get(..., form.get(key)) for key in (value if ... in form else form)}
        found = (_unlike(value[key], inner[key], f"{place}.{key}".lstrip(".")) for key in inner)
    elif isinstance(form, list):
        found = (_unlike(one, form[0], place) for one in value)
    else:
        return None
    return next((wrong for wrong in found if wrong is not None), None)
