"""Position-wise feed-forward networks (Vaswani et al. 2017: ReLU; GPT-2: GELU; SwiGLU: Shazeer 2020)."""

from torch import nn
from torch.nn import functional as F

from layers.protocol import ChannelMixer


class MLP(ChannelMixer):
    """y = W_2 gelu(W_1 x), or with relu. x: [B, T, C] -> [B, T, C].

    The hidden width is 4 C unless ffn_hidden is set.
    """

    keys = ("ffn_hidden", "mlp_activation", "gelu_approximation")

    def __init__(self, config):
        super().__init__(config)
        hidden = self.hidden(config)
        self.rectified, self.approximation = config.mlp_activation == "relu", config.gelu_approximation
        self.up = nn.Linear(config.n_embd, hidden, bias=config.bias)
        self.down = nn.Linear(hidden, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def residual_outputs(self):
        return [self.down]

    def forward(self, x):
        h = self.up(x)
        h = F.relu(h) if self.rectified else F.gelu(h, approximate=self.approximation)
        return self.dropout(self.down(h))

    @classmethod
    def keys_read(cls, config):
        return cls.keys[:2] if config.mlp_activation == "relu" else cls.keys

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

    keys = ("ffn_hidden",)

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
