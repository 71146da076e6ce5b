"""The arms of each study of results/trainability/run.py, and what they are called."""

import re
from collections.abc import Iterable

BASE = "config/study/dense.py"


def on_base(*names: str) -> list[str]:
    """Files of config/study on the base, `+` between those of one arm."""
    return ["+".join([BASE, *(f"config/study/{part}.py" for part in name.split("+"))]) for name in names]


CLAIM = on_base(
    *("rope+rate_8e3", "mlp_narrow+rope+rate_8e3", "dense_half+rope+rate_8e3"),
    *("cffn_glu_rope+rate_8e3", "cattn_m_shared+rate_8e3"),
    *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
)
STEPS = {"depths": 300, "rates": 600, "modules": 600, "paper": 600}
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
# first the rate of a million parameters divided by three, as the width is three times theirs
AT_10M = "--vary=learning_rate=2.7e-3,1.6e-3,4.6e-3,0.9e-3 min_lr=2.7e-4,1.6e-4,4.6e-4,0.9e-4"
F, A = on_base("cffn_gated+paper"), on_base("cattn_m+paper")
POLES, SCHEDULES = ["--vary=cf_pole=clamp,positive"], ["--vary=dyadic=True,False"]
STRICT, READINGS = "--cattn_strict=True", "--vary=cattn_scores=rank,collapsed"
# the first arm of a study is what its differences are to
STUDIES = {
    "depths": [[*on_base("full_relative"), "--vary=cf_depth=1,2,3,4,5,6,7,8", "--vary=dyadic=False,True"]],
    "rates": [  # 4e-3 is the study of modules
        [
            BASE,
            *on_base("rope", "cffn_added", "cffn_added+rope"),
            *on_base("cattn_c_nopos", "full_relative_nopos"),
            "--vary=learning_rate=2e-3,8e-3 min_lr=2e-4,8e-4",
        ],
        [
            *on_base("rope", "cffn_added+rope", "cattn_c_nopos", "full_relative_nopos"),
            "--vary=learning_rate=16e-3 min_lr=16e-4",
        ],
    ],
    # the first is what the others are compared with. All at the rate that is dense's best
    "claim": [CLAIM],
    "claim_rates": [
        [
            *on_base("rope", "cffn_glu_rope", "cattn_m_shared", "full_content+layers_6+depth_1"),
            "--vary=learning_rate=5.6e-3,11e-3 min_lr=5.6e-4,11e-4",
        ],
        [*on_base("rope"), "--vary=learning_rate=4e-3 min_lr=4e-4"],
    ],
    # the papers' own models as config/cofrgenet*.py read them, and dense with learned positions
    "papers": [
        [
            BASE,
            *on_base(
                "cffn_gated+recipe", "cattn_m_collapsed+recipe", "cattn_m_collapsed+cffn_gated+recipe"
            ),
            STRICT,
            "--vary=learning_rate=4e-3,2e-3,8e-3 min_lr=4e-4,2e-4,8e-4",
        ],
        [  # their best was the largest
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
    # standard models of the same sizes, and the full one's two parts by themselves
    "baselines": [
        on_base(
            *("rope+rate_8e3", "full_content+layers_6+depth_1+rate_8e3", "dense_half+rope+rate_8e3"),
            *("dense_deep+rope+rate_8e3", "dense_mqa+rope+rate_8e3", "mlp_narrow+rope+rate_8e3"),
            *("cffn_product+rope+layers_6+control+rate_8e3", "full_content+layers_6+control+rate_8e3"),
        )
    ],
    # many ladders beside the product, or a GLU there, or nothing
    "units": [
        on_base(
            *("cffn_added_many+rope+rate_8e3", "cffn_added_glu+rope+rate_8e3"),
            *("cffn_added+rope+rate_8e3", "cffn_product+rope+control+rate_8e3", "cffn_glu_rope+rate_8e3"),
        )
    ],
    # keys with a part of the token before
    "key_shift": [
        on_base(
            *("rope+rate_8e3", "full_content+layers_6+depth_1+rate_8e3", "rope+key_shift+rate_8e3"),
            *("dense_half+rope+key_shift+rate_8e3", "full_content+layers_6+depth_1+key_shift+rate_8e3"),
            "full_content+layers_6+constant+key_shift+rate_8e3",
        )
    ],
    "claim_3000": [
        on_base(
            *("rope+rate_8e3", "dense_half+rope+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("full_content+layers_6+depth_1+rate_8e3", "full_content+layers_6+constant+rate_8e3"),
            *("rope+key_shift+rate_8e3", "full_content+layers_6+depth_1+key_shift+rate_8e3"),
        )
    ],
    # a column for each distance: at four times the context fewer ladders keep within the same shares
    "claim_1024": [
        [*CLAIM[:4], *AT_1024],
        [CLAIM[4], *AT_1024, "--vary=cf_ladders=2,1"],
        [*CLAIM[5:], *AT_1024, "--vary=cf_ladders=7,4"],
    ],
    # ten times the parameters, three times the width; shares of 0.65 and 0.53
    "claim_10m": [
        [*on_base("rope+size_10m"), AT_10M],
        [*on_base("cffn_glu_rope+size_10m"), "--ffn_hidden=480", AT_10M],
        [*on_base("full_content+depth_1+size_10m"), "--n_layer=8", "--cf_ladders=12", AT_10M],
    ],
    # what F and the full model lack where training is longer
    "longer": [
        on_base(
            *("rope+rate_8e3", "rope", "mlp_narrow+rope+rate_8e3", "cffn_added+rope+rate_8e3"),
            *("cffn_added+rope+layers_6+rate_8e3", "cffn_glu_rope+rate_8e3"),
            *("cffn_glu_rope+control+rate_8e3", "cattn_c_nopos+rate_8e3"),
            *("cattn_c_nopos+constant+rate_8e3", "cattn_m_small+rate_8e3", "cattn_m_shared+rate_8e3"),
            *("full_relative_nopos+rate_16e3", "full_relative_content_nopos+rate_8e3"),
            *("full_content+rate_8e3", "full_content+control+rate_8e3"),
            *("full_content+constant+rate_8e3", "full_content_glu+rate_8e3"),
            *("full_content+layers_6+depth_1+rate_8e3", "cattn_c_proj+rate_8e3"),
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
                *("cattn_m_content", "cattn_m_content+control"),
                *("cattn_m_relative", "cattn_m_relative+control", "cattn_m_relative+constant"),
                *("cattn_m_relative_small", "cattn_m_relative_nopos", "cattn_m_relative_content_nopos"),
                *("cattn_u", "cattn_u+control", "cattn_u+constant"),
                *("cattn_c", "cattn_c+control", "cattn_c+constant", "cattn_c_nopos"),
                *("full", "full+control", "full_c", "full_c+constant"),
                *("full_relative", "full_relative+control", "full_relative+constant"),
                *("full_relative_nopos", "full_relative_content_nopos"),
                *("rope", "cffn_added+rope", "cffn_product+rope+control"),
            ),
        ]
    ],
    # readings of what the papers print, around one centre: intercepts at 1, the clamp, the schedule
    "paper": [
        [BASE],
        [*F, "--vary=cf_intercept=one,zero,normal,none", *POLES, *SCHEDULES],
        [*F, "--vary=cf_init=nanogpt_xl", *POLES, *SCHEDULES],
        [*F, "--vary=cf_init=fan_in", *SCHEDULES],
        [*F, "--vary=cffn_gate=glu_collapsed", *SCHEDULES],
        [*A, READINGS, "--vary=cattn_strict=True,False", *POLES],
        [*A, STRICT, READINGS, "--vary=cf_intercept=zero,normal,none"],
        [*on_base("cattn_m+cffn_gated+paper"), STRICT, READINGS, *POLES],
        [*on_base("cffn_product+paper", "cattn_u+paper"), "--vary=cf_intercept=one,none", *POLES],
    ],
}


# on a dense model; on any other they follow the module's name
OVERLAYS = re.compile(r"(rope|layers_6|size_10m|rate)(_|$)")
SAME = {  # without fractions these are one model
    "cffn_added+control": "cffn_product+control",
    "cffn_added+rope+control": "cffn_product+rope+control",
    "cffn_added_wide+control": "cffn_product+control",
    "cffn_added_wide+constant": "cffn_added+constant",
    "full_content+layers_6+depth_1+constant": "full_content+layers_6+constant",
    "full_content+layers_6+depth_1+key_shift+constant": "full_content+layers_6+constant+key_shift",
}


def called(files: str) -> str:
    """What ablate.py calls an arm of these files of config/study."""
    return files.replace("config/study/", "study-").replace(".py", "")


def models_of(study: str) -> list[str]:
    """Its stacks of config files."""
    return list(dict.fromkeys(text for call in STUDIES[study] for text in call if text[:2] != "--"))


def short_names(study: str) -> dict[str, str]:
    """{what ablate.py calls a model of the study: its name in tables}, in the study's order: without the
    base, and without the learning rate where no other model has the same name then.
    """
    models = [called(stack) for stack in models_of(study)]
    parts = [[part.removeprefix("study-") for part in model.split("+")] for model in models]
    named = ["+".join(part[1:] if part[1:] and not OVERLAYS.match(part[1]) else part) for part in parts]
    short = [re.sub(r"\+rate_\w+", "", name) for name in named]
    pairs = zip(models, named, short, strict=True)
    return {model: s if short.count(s) == 1 else name for model, name, s in pairs}


def longest(models: Iterable[str], name: str) -> str | None:
    """The model of an arm, whose name goes on with what ablate.py varied."""
    fitting = (model for model in models if re.fullmatch(rf"{re.escape(model)}(_\w+=.*)?", name))
    return max(fitting, key=len, default=None)


def shortly(name: str, study: str) -> str:
    """An arm's name in tables, out of ablate.py's."""
    names = short_names(study)
    model = longest(names, name)
    return name if model is None else names[model] + name[len(model) :]


def in_order(names: Iterable[str], study: str) -> list[str]:
    """Names of arms in the study's own order, whatever was trained first; arms of a model as they come."""
    order = list(short_names(study).values())
    model = {name: longest(order, name) for name in names}
    return sorted(model, key=lambda name: order.index(model[name]) if model[name] else len(order))


def without_fractions(name: str, kind: str) -> str:
    """The arm that is this one with a control (z = 0) or a constant for each fraction."""
    return SAME.get(f"{name}+{kind}", f"{name}+{kind}")
