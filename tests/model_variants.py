"""What the tests of whole models go through."""

import itertools

import pytest

from layers import ATTENTION, FFN
from models.architecture import ModelConfig

VARIANTS = list(itertools.product(ATTENTION, FFN))
OPTIONS = [
    {},
    {"bias": True},
    {"cf_ladders": 5, "cf_depth": 1, "cattn_heads": 2, "cattn_proj": True, "synthesizer_proj": False},
    {"cffn_gate": "glu_collapsed"},
]
OPTIONS += [{"cf_intercept": "none", "cf_linear_intercept": True}, {"cattn_scores": "collapsed"}]
OPTIONS += [{"cattn_heads": 3, "cattn_strict": True}]
# of the block around the mixers; one ffn is enough for them
BLOCKS = [
    {"position": "sinusoidal", "norm": "rmsnorm", "tie_embeddings": False},
    {"position": "none", "norm": "rmsnorm", "bias": True, "ffn_hidden": 40},
    {"position": "rope", "n_kv_head": 1},
    {"position": "t5", "n_kv_head": 1, "t5_buckets": 8, "t5_max_distance": 12},
    {"position": "expe", "n_kv_head": 1, "bias": True},
    {"position": "exqpe", "expe_learned": "standard", "expe_on_v": True},
    {"cattn_value_heads": 1},
    {"cattn_scores": "collapsed", "cattn_heads": 3, "cattn_strict": True, "cf_linear_intercept": True},
    {"cattn_value_heads": 1, "cattn_heads": None, "cattn_proj": True},
    {"cattn_heads": 3, "cattn_proj": True},
    {"cattn_content": True},
    {"cattn_content": True, "token_shift": True},
    {"cattn_content": True, "cf_ladders": 8, "cattn_value_heads": 1, "cattn_heads": 3},
    {"token_shift": True, "position": "rope", "n_kv_head": 1},
]
# cf_control: every module without its fractions; and GLUs of another width
CONTROLS = [
    (("cattn_m", "cffn_product"), {"cf_control": "zero"}),
    (("cattn_u", "cffn_added"), {"cf_control": "zero"}),
    (("softmax", "cffn_added"), {"cf_control": "zero", "ffn_hidden": 40}),
    (("cattn_u", "cffn_product"), {"cf_control": "constant"}),
    (("cattn_m", "cffn_gated"), {"cf_control": "zero"}),
    (("cattn_m", "mlp"), {"cattn_scores": "collapsed", "cf_control": "zero"}),
    (("cattn_m", "mlp"), {"cattn_scores": "collapsed", "cf_control": "constant", "cattn_heads": 2}),
    (("softmax", "cffn_gated"), {"cf_control": "zero", "cffn_gate": "glu_collapsed", "ffn_hidden": 40}),
    (("softmax", "cffn_gated"), {"cffn_gate": "glu_collapsed", "ffn_hidden": 40}),
]


def _sound(attention, ffn, options) -> bool:
    """Whether this may stand together, and is another model than without the options."""
    config = ModelConfig(n_embd=24, n_head=3, attention=attention, ffn=ffn, **options)
    return not config.check() and (not options or len(config.unused_keys()) < len(options))


SOUND = [
    pytest.param(attention, ffn, options, id=" ".join([attention, ffn, *map(str, options.values())]))
    for (attention, ffn), options in [
        *itertools.product(VARIANTS, OPTIONS),
        *itertools.product(itertools.product(ATTENTION, ["swiglu"]), BLOCKS),
        *CONTROLS,
    ]
    if _sound(attention, ffn, options)
]
variants = pytest.mark.parametrize(("attention", "ffn"), VARIANTS)
every_option = pytest.mark.parametrize(("attention", "ffn", "options"), SOUND)
