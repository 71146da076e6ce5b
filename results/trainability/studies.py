"""The models of each study of results/trainability/run.py, and their names in tables and CSVs.

An arm is one row of a table: a stack of config files, and the values that the study varies.
"""

import re
from collections.abc import Iterable

BASE = "config/study/dense.py"
# {part of a name in tables and CSVs: its file in config/study, which was renamed later}
RENAMED = {"key_shift": "token_shift"}


def on_base(*names: str) -> list[str]:
    """Returns a stack of config files for each arm: the base, then its files of config/study."""
    parts = [[RENAMED.get(part, part) for part in name.split("+")] for name in names]
    return ["+".join([BASE, *(f"config/study/{part}.py" for part in files)]) for files in parts]


CLAIM = on_base(
    *("rope+rate_8e3", "mlp_narrow+rope+rate_8e3", "dense_half+rope+rate_8e3"),
    *("cffn_glu_rope+rate_8e3", "cattn_m_shared+rate_8e3"),
    *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
)
STEPS = {"depths": 300, "rates": 600, "modules": 600, "paper": 600, "parity": 600}
STEPS |= {
    "papers": 1500,
    "claim": 1500,
    "claim_rates": 1500,
    "baselines": 1500,
    "units": 1500,
    "longer": 1500,
}
STEPS |= {"key_shift": 1500, "claim_3000": 3000, "claim_1024": 1500, "claim_10m": 1500}
AT_1024 = ["--block_size=1024", "--batch_size=4"]
# The width is three times that of the other studies. The first rate is theirs divided by three.
AT_10M = "--vary=learning_rate=2.7e-3,1.6e-3,4.6e-3,0.9e-3 min_lr=2.7e-4,1.6e-4,4.6e-4,0.9e-4"
F, A = on_base("cffn_gated+paper"), on_base("cattn_m+paper")
FULL = on_base("cattn_m+cffn_gated+paper")
POLES, SCHEDULES = ["--vary=cf_pole=clamp,positive"], ["--vary=dyadic=True,False"]
STRICT, READINGS = "--cattn_strict=True", "--vary=cattn_scores=rank,collapsed"
COLLAPSED = [STRICT, "--cattn_scores=collapsed"]
STARTS, POSITIVE = "--vary=cf_intercept=zero,normal,one", "--vary=cf_pole=positive"
# Each study is a list of calls of ablate.py. The table compares every arm with the first one.
STUDIES = {
    "depths": [[*on_base("full_relative"), "--vary=cf_depth=1,2,3,4,5,6,7,8", "--vary=dyadic=False,True"]],
    "rates": [  # the study `modules` has 4e-3
        [
            BASE,
            *on_base("rope", "cffn_added", "cffn_added+rope"),
            *on_base("full_relative_nopos"),
            "--vary=learning_rate=2e-3,8e-3 min_lr=2e-4,8e-4",
        ],
        [
            *on_base("rope", "cffn_added+rope", "full_relative_nopos"),
            "--vary=learning_rate=16e-3 min_lr=16e-4",
        ],
    ],
    # all at the learning rate that is best for dense
    "claim": [CLAIM],
    "claim_rates": [
        [
            *on_base("rope", "cffn_glu_rope", "cattn_m_shared", "full_content+layers_6+depth_1"),
            "--vary=learning_rate=5.6e-3,11e-3 min_lr=5.6e-4,11e-4",
        ],
        [*on_base("rope"), "--vary=learning_rate=4e-3 min_lr=4e-4"],
    ],
    # F, A and the full model in the reading of config/cofrgenet*.py, and dense with learned positions
    "papers": [
        [
            BASE,
            *on_base(
                "cffn_gated+recipe", "cattn_m_collapsed+recipe", "cattn_m_collapsed+cffn_gated+recipe"
            ),
            STRICT,
            "--vary=learning_rate=4e-3,2e-3,8e-3 min_lr=4e-4,2e-4,8e-4",
        ],
        [  # the largest of the three rates was best for these two
            *on_base("cattn_m_collapsed+recipe", "cattn_m_collapsed+cffn_gated+recipe"),
            STRICT,
            "--vary=learning_rate=16e-3 min_lr=16e-4",
        ],
        [*on_base("cffn_gated+control"), "--vary=learning_rate=4e-3 min_lr=4e-4"],
        [*on_base("cffn_gated+rope+recipe"), "--vary=learning_rate=4e-3,8e-3 min_lr=4e-4,8e-4"],
        [
            *on_base("cattn_m_collapsed+control", "cattn_m_collapsed+cffn_gated+control"),
            STRICT,
            "--vary=learning_rate=8e-3 min_lr=8e-4",
        ],
    ],
    # standard models of the same sizes, and the two parts of the full model by themselves
    "baselines": [
        on_base(
            *("rope+rate_8e3", "full_content+layers_6+depth_1+rate_8e3", "dense_half+rope+rate_8e3"),
            *("dense_deep+rope+rate_8e3", "dense_mqa+rope+rate_8e3", "mlp_narrow+rope+rate_8e3"),
            *("cffn_product+rope+layers_6+control+rate_8e3", "full_content+layers_6+control+rate_8e3"),
        )
    ],
    # the product of cffn_added with many ladders, with a GLU in place of the ladders, and alone
    "units": [
        on_base(
            *("cffn_added_many+rope+rate_8e3", "cffn_added_glu+rope+rate_8e3"),
            *("cffn_added+rope+rate_8e3", "cffn_product+rope+control+rate_8e3", "cffn_glu_rope+rate_8e3"),
        )
    ],
    # keys that hold a map of the previous token
    "key_shift": [
        on_base(
            *("rope+rate_8e3", "full_content+layers_6+depth_1+rate_8e3"),
            "rope+key_shift+rate_8e3",
            "dense_half+rope+key_shift+rate_8e3",
            "full_content+layers_6+depth_1+key_shift+rate_8e3",
            "full_content+layers_6+constant+key_shift+rate_8e3",
        )
    ],
    "claim_3000": [
        on_base(
            *("rope+rate_8e3", "dense_half+rope+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
            "rope+key_shift+rate_8e3",
            "full_content+layers_6+depth_1+key_shift+rate_8e3",
        )
    ],
    # Attention has a column for each distance. With four times the context, fewer ladders keep the sizes.
    "claim_1024": [
        [*CLAIM[:4], *AT_1024],
        [CLAIM[4], *AT_1024, "--vary=cf_ladders=2,1"],
        [*CLAIM[5:], *AT_1024, "--vary=cf_ladders=7,4"],
    ],
    # ten times the parameters, three times the width; F has 0.65 and full 0.53 of dense's parameters
    "claim_10m": [
        [*on_base("rope+size_10m"), AT_10M],
        [*on_base("cffn_glu_rope+size_10m"), "--ffn_hidden=480", AT_10M],
        [*on_base("full_content+depth_1+size_10m"), "--n_layer=8", "--cf_ladders=12", AT_10M],
    ],
    # the search for forms of F, A and the full model
    "longer": [
        on_base(
            *("rope+rate_8e3", "rope", "mlp_narrow+rope+rate_8e3", "cffn_added+rope+rate_8e3"),
            *("cffn_added+rope+layers_6+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("cffn_glu_rope+control+rate_8e3", "cattn_m_small+rate_8e3", "cattn_m_shared+rate_8e3"),
            *("full_relative_nopos+rate_16e3", "full_relative_content_nopos+rate_8e3"),
            *("full_content+rate_8e3", "full_content+control+rate_8e3"),
            *("full_content+constant+rate_8e3", "full_content_glu+rate_8e3"),
            "full_content+layers_6+depth_1+rate_8e3",
        )
    ],
    "modules": [
        [
            BASE,
            *on_base(
                *("mlp_narrow", "swiglu_narrow", "mqa", "gqa"),
                *("cffn_gated", "cffn_gated+control", "cffn_gated+constant"),
                *("cffn_glu", "cffn_glu+control", "cffn_glu+constant"),
                *("cffn_product", "cffn_product+control", "cffn_product+constant"),
                *("cffn_added", "cffn_added+constant", "cffn_added_wide"),
                *("cattn_m", "cattn_m+control", "cattn_m+constant"),
                *(f"cattn_m_collapsed{fractions}" for fractions in ("", "+control", "+constant")),
                *("cattn_m_heads", "cattn_m_heads+control", "cattn_m_heads+constant"),
                *("cattn_m_relative", "cattn_m_relative+control", "cattn_m_relative+constant"),
                *("cattn_m_relative_small", "cattn_m_relative_nopos", "cattn_m_relative_content_nopos"),
                *("cattn_u", "cattn_u+control", "cattn_u+constant"),
                *("full", "full+control"),
                *("full_relative", "full_relative+control", "full_relative+constant"),
                *("full_relative_nopos", "full_relative_content_nopos"),
                *("rope", "cffn_added+rope", "cffn_product+rope+control"),
            ),
        ]
    ],
    # Readings of what the papers print. Each varies one thing of config/study/paper.py.
    "paper": [
        [BASE],
        [*F, "--vary=cf_intercept=one,zero,normal,none", *POLES, *SCHEDULES],
        [*F, "--vary=cf_init=nanogpt_xl", *POLES, *SCHEDULES],
        [*F, "--vary=cf_init=fan_in", *SCHEDULES],
        [*F, "--vary=cffn_gate=glu_collapsed", *SCHEDULES],
        [*A, READINGS, "--vary=cattn_strict=True,False", *POLES],
        [*A, STRICT, READINGS, "--vary=cf_intercept=zero,normal,none"],
        [*FULL, STRICT, READINGS, *POLES],
        [*on_base("cffn_product+paper", "cattn_u+paper"), "--vary=cf_intercept=one,none", *POLES],
    ],
    # The papers' depth 7 is cf_depth=6 as their section 4.1 counts. At 7, what `paper` does not have.
    "parity": [
        [BASE],
        [*F, "--vary=cf_depth=6", STARTS, *SCHEDULES],
        [*A, *FULL, *COLLAPSED, "--vary=cf_depth=6", STARTS, *SCHEDULES],
        [*FULL, *COLLAPSED, "--vary=cf_depth=7", "--vary=cf_intercept=zero,normal", "--vary=dyadic=True"],
        [*A, *FULL, *COLLAPSED, "--vary=cf_depth=7", STARTS, "--vary=dyadic=False"],
        [*F, "--vary=cf_depth=6", POSITIVE],
        [*A, *FULL, *COLLAPSED, "--vary=cf_depth=6", POSITIVE],
        [*F, "--vary=cf_depth=6", STARTS, "--vary=cf_init=nanogpt_xl"],
    ],
}

# Arms whose code has left the repository. Their rows stay in the CSVs and in the tables; commit 466f118 is
# the last that can train them.
GONE_SINCE = "466f118"
GONE = {
    "rates": [f"cattn_c_nopos_learning_rate={rate}e-3_min_lr={rate}e-4" for rate in (2, 8, 16)],
    "longer": ["cattn_c_nopos", "cattn_c_nopos+constant", "cattn_c_proj"],
    "modules": [
        *("cattn_m_content", "cattn_m_content+control"),
        *("cattn_c", "cattn_c+control", "cattn_c+constant", "cattn_c_nopos", "full_c", "full_c+constant"),
    ],
}

# A dense model keeps its name before these overlays; any other model is named by its module alone.
OVERLAYS = re.compile(r"(rope|layers_6|size_10m|rate)(_|$)")
SAME = {  # arms that are one model once the fractions are 0 or constant
    "cffn_added+control": "cffn_product+control",
    "cffn_added+rope+control": "cffn_product+rope+control",
    "cffn_added_wide+control": "cffn_product+control",
    "cffn_added_wide+constant": "cffn_added+constant",
    "full_content+layers_6+depth_1+constant": "full_content+layers_6+constant",
    "full_content+layers_6+depth_1+key_shift+constant": "full_content+layers_6+constant+key_shift",
}


def called(files: str) -> str:
    """Returns the name that ablate.py gives to a stack of config files."""
    return files.replace("config/study/", "study-").replace(".py", "")


def models_of(study: str) -> list[str]:
    """Returns the stacks of config files of a study, in its order."""
    return list(dict.fromkeys(text for call in STUDIES[study] for text in call if text[:2] != "--"))


def short_names(study: str) -> dict[str, str]:
    """Returns {ablate.py's name of a model: its name in tables}, in the study's order.

    The name in tables leaves out the base config, and the learning rate where the name stays unique.
    """
    models = [called(stack) for stack in models_of(study)]
    parts = [[part.removeprefix("study-") for part in model.split("+")] for model in models]
    published = {file: name for name, file in RENAMED.items()}
    parts = [[published.get(part, part) for part in names] for names in parts]
    named = ["+".join(part[1:] if part[1:] and not OVERLAYS.match(part[1]) else part) for part in parts]
    short = [re.sub(r"\+rate_\w+", "", name) for name in named]
    pairs = zip(models, named, short, strict=True)
    return {model: s if short.count(s) == 1 else name for model, name, s in pairs}


def longest(models: Iterable[str], name: str) -> str | None:
    """Returns the model of an arm: the arm's name without the keys that ablate.py varied, or None."""
    fitting = (model for model in models if re.fullmatch(rf"{re.escape(model)}(_\w+=.*)?", name))
    return max(fitting, key=len, default=None)


def shortly(name: str, study: str) -> str:
    """Returns an arm's name in tables, given ablate.py's name."""
    names = short_names(study)
    model = longest(names, name)
    return name if model is None else names[model] + name[len(model) :]


def in_order(names: Iterable[str], study: str) -> list[str]:
    """Sorts names of arms into the study's order. Arms of one model keep theirs; unknown arms come last."""
    order = list(short_names(study).values())
    model = {name: longest(order, name) for name in names}
    return sorted(model, key=lambda name: order.index(model[name]) if model[name] else len(order))


def without_fractions(name: str, kind: str) -> str:
    """Returns the name of the arm that has 0 (`control`) or a constant in place of each fraction."""
    return SAME.get(f"{name}+{kind}", f"{name}+{kind}")
