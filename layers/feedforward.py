"""Position-wise feed-forward networks.

ReLU: Vaswani et al. 2017; GELU: GPT-2; ReLU squared: So et al. 2021; SwiGLU: Shazeer 2020.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn import functional as F

from config_keys import CountOrNone
from layers.protocol import ChannelMixer


@dataclass
class HiddenWidth:
    # mlp, swiglu, cffn_gated, cffn_added
    ffn_hidden: CountOrNone = None  # hidden width; None: 4 (mlp), 8/3 (swiglu), 1 (Cffn) n_embd


@dataclass
class Keys(HiddenWidth):
    # mlp
    #: mlp: relu is that of Vaswani et al. 2017, relu2 its square
    mlp_activation: Literal["gelu", "relu", "relu2"] = "gelu"
    gelu_approximation: Literal["none", "tanh"] = "none"  # mlp: tanh is that of GPT-2's published weights


class MLP(ChannelMixer):
    """y = W_2 gelu(W_1 x), or with relu or its square. x: [B, T, C] -> [B, T, C].

    The hidden width is 4 C unless ffn_hidden is set.
    """

    Keys = Keys

    def __init__(self, config):
        super().__init__(config)
        hidden = self.hidden(config)
        self.activation, self.approximation = config.mlp_activation, config.gelu_approximation
        self.up = nn.Linear(config.n_embd, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_outputs(self):
        return [self.down]

    def forward(self, x):
        h = self.up(x)
        if self.activation == "gelu":
            h = F.gelu(h, approximate=self.approximation)
        else:
            h = F.relu(h).square() if self.activation == "relu2" else F.relu(h)
        return self.dropout(self.down(h))

    @classmethod
    def idle_keys(cls, config):
        return set() if config.mlp_activation == "gelu" else {"gelu_approximation"}

    @staticmethod
    def hidden(config) -> int:
        return 4 * config.n_embd if config.ffn_hidden is None else config.ffn_hidden

    @classmethod
    def parameter_count(cls, config):
        """2 p h with hidden width h; biases add h + p."""
        hidden = cls.hidden(config)
        return 2 * config.n_embd * hidden + config.bias * (hidden + config.n_embd)

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the matrix products; `context` is unused."""
        return 4 * config.n_embd * cls.hidden(config)


class SwiGLU(ChannelMixer):
    """y = W_3 (silu(W_1 x) * W_2 x), the feed-forward layer of Llama. x: [B, T, C] -> [B, T, C].

    `up` holds W_1 above W_2, so that both are one matrix product. The hidden width is 8/3 C, rounded up to
    a multiple of 256, unless ffn_hidden is set. This gives about as many parameters as an MLP.
    """

    Keys = HiddenWidth

    def __init__(self, config):
        super().__init__(config)
        hidden = self.hidden(config)
        self.up = nn.Linear(config.n_embd, 2 * hidden, bias=config.bias)
        self.down = nn.Linear(hidden, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_outputs(self):
        return [self.down]

    def forward(self, x):
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.dropout(self.down(F.silu(gate) * value))

    @staticmethod
    def hidden(config) -> int:
        return -(-8 * config.n_embd // (3 * 256)) * 256 if config.ffn_hidden is None else config.ffn_hidden

    @classmethod
    def parameter_count(cls, config):
        """3 p h with hidden width h; biases add 2 h + p."""
        hidden = cls.hidden(config)
        return 3 * config.n_embd * hidden + config.bias * (2 * hidden + config.n_embd)

    @classmethod
    def flops_per_token(cls, config, context):
        return 6 * config.n_embd * cls.hidden(config)
