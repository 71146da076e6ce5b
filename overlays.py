"""Arguments of scripts that take several models: an overlay is no model of its own.

`count.py A.py size.py` names two models, and `count.py A.py+size.py` one. A config file is an overlay if
its first line begins with "# Overlay". Any other file may leave out keys on purpose: it is only mentioned.
"""

import re
import shlex
from os.path import isfile
from pathlib import Path

from configurator import ConfigError, assigned, stacked

SIZE = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024}  # defaults of ModelConfig


def check(script: str, argv: list[str]) -> list[str]:
    """Remarks on models that get their size from the defaults. argv: of a script.

    Raises ConfigError, with the command that was meant, where an argument consists of overlays alone.
    """
    models = [argument for argument in argv if not argument.startswith("-")]
    options = [argument for argument in argv if argument.startswith("-")]
    given = {option[2:].partition("=")[0].replace("-", "_") for option in options}
    stacks = {model: files for model in models if (files := _files(model))}
    keys = {model: {key for file in files for key in assigned(file)} for model, files in stacks.items()}
    alone = [model for model, files in stacks.items() if all(map(is_overlay, files))]
    if alone:
        sizes = [model for model in alone if keys[model] >= SIZE.keys()]
        variants = [model for model in alone if model not in sizes]
        whole = [model for model in models if model not in alone] or [_below(stacks[alone[0]][0])]
        meant = [
            "+".join([model, *variant, *sizes])
            for model in whole
            for variant in ([], *([one] for one in variants))
        ]
        what = "is an overlay, not a model" if len(alone) == 1 else "are overlays, not models"
        raise ConfigError(
            [
                f"{', '.join(alone)} {what}: here each argument is a model of its own, and + puts a file "
                f"on top of another. Write\n    {shlex.join(['python', script, *meant, *options])}"
            ]
        )
    enough = {"n_layer", "n_embd"} | ({"init_from"} if script == "ablate.py" else set())
    remarks = []
    for model, files in stacks.items():
        kinds = [assigned(file).get("model", "gpt") for file in files]
        if not enough & (keys[model] | given) and set(kinds) == {"gpt"}:
            lacking = [f"{key}={value}" for key, value in SIZE.items() if key not in keys[model] | given]
            remarks.append(
                f"{model} sets no size: a model of its own with the defaults {', '.join(lacking)} "
                f"(on top of another model, write MODEL.py+{model})"
            )
    return remarks


def is_overlay(file: str) -> bool:
    """Whether a config file is made to go on top of others only."""
    return Path(file).read_text("utf-8-sig", errors="replace").startswith("# Overlay")


def _below(overlay: str) -> str:
    """What the command in an overlay's head puts it on top of; GPT-2 where there is none."""
    head = Path(overlay).read_text("utf-8-sig", errors="replace")
    found = re.search(rf"train\.py ((?:\S+\.py )+){re.escape(overlay)}", head)
    return "+".join(found[1].split()) if found else "config/gpt2.py"


def _files(model: str) -> list[str]:
    """The files of an argument; none where one of them cannot be read, which the script complains of."""
    try:
        files = stacked(model)
    except ValueError:
        return []
    return files if all(file.endswith(".py") and isfile(file) for file in files) else []
