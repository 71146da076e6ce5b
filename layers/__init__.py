"""What a block can be made of: the three registries that the model's keys name.

An attention is built from (config, layer), all else from the config.
"""

from layers.attention import SoftmaxAttention
from layers.bigbird import BigBird
from layers.cattn_m import CAttnM
from layers.cattn_relative import CAttnRelative
from layers.cattn_u import CAttnU
from layers.cffn import CffnAdded, CffnGated, CffnProduct
from layers.expe import ExPE, ExQPE
from layers.feedforward import MLP, SwiGLU
from layers.gated_deltanet import GatedDeltaNet
from layers.position import LearnedPosition, NoPosition, RotaryPosition, SinusoidalPosition
from layers.relative_bias import RelativeBias
from layers.sliding_window import SlidingWindow
from layers.synthesizer import Synthesizer

ATTENTION = {
    "softmax": SoftmaxAttention,
    "sliding_window": SlidingWindow,
    "cattn_m": CAttnM,
    "cattn_relative": CAttnRelative,
    "cattn_u": CAttnU,
    "synthesizer": Synthesizer,
    "bigbird": BigBird,
    "gated_deltanet": GatedDeltaNet,
}
FFN = {
    "mlp": MLP,
    "swiglu": SwiGLU,
    "cffn_gated": CffnGated,
    "cffn_product": CffnProduct,
    "cffn_added": CffnAdded,
}
POSITION = {
    "learned": LearnedPosition,
    "sinusoidal": SinusoidalPosition,
    "rope": RotaryPosition,
    "t5": RelativeBias,
    "expe": ExPE,
    "exqpe": ExQPE,
    "none": NoPosition,
}
