"""Cffn: feed-forward layers made of continued-fraction ladders.

Three forms. x: [B, T, C] -> [B, T, C] each; z(.) is an ensemble of `cf_ladders` ladders.

- `CffnGated` (arXiv version of CoFrGeNet, section 4.1.2): an ensemble on a gated, non-expanded input.
- `CffnProduct` (ICLR version): the element-wise product of two ensembles of depth d and d + 1.
- `CffnAdded` (ours): the product of two linear maps, with an ensemble of ladders added beside it.

The papers name no activation and no output projection, and there are none. They name no bias but the
intercepts of the a_k (`layers.ladder`).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from layers import ladder
from layers.feedforward import HiddenWidth
from layers.ladder import LadderEnsemble
from layers.protocol import ChannelMixer


@dataclass
class Keys(ladder.Keys, HiddenWidth):
    # cffn_gated
    cffn_gate: Literal["self", "glu_collapsed"] = "self"  # cffn_gated: what h is


@dataclass
class AddedKeys(ladder.Keys, HiddenWidth):
    pass


class CffnGated(ChannelMixer):
    """y = U h + V z(h), equation 8 with the ensemble's own input h, which is gated as cffn_gate says:

    - self:           h = sigmoid(G x) * x: the reading closest to print, and Table 1's 2 p^2 + L p (d + 1)
    - glu_collapsed:  h = silu(G x) * (P x)

    h of a GLU is `ffn_hidden` wide, None: as wide as x.
    """

    Keys = Keys
    has_ladders = True

    def __init__(self, config):
        super().__init__(config)
        width, ladders, hidden = config.n_embd, config.cf_ladders, self.hidden(config)
        self.is_glu = is_glu(config)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False) if self.is_glu else None
        self.ladders = LadderEnsemble(config, hidden, width, ladders, config.cf_depth)
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def idle_keys(cls, config):
        return ladder.idle_keys(config) | (set() if is_glu(config) else {"ffn_hidden"})

    def residual_outputs(self):
        return list(filter(None, (self.ladders.V, self.ladders.U)))

    def forward(self, x):
        gate = self.gate(x)
        h = F.silu(gate) * self.up(x) if self.is_glu else torch.sigmoid(gate) * x
        return self.dropout(self.ladders(h))

    @staticmethod
    def hidden(config):
        """Width of h, the input of the ladders."""
        return (config.ffn_hidden or config.n_embd) if is_glu(config) else config.n_embd

    @classmethod
    def parameter_count(cls, config):
        """2 p^2 + L (p (d + 1) + d), with a GLU of width h 3 p h + L (h d + d + p). cf_linear_intercept: p
        more.
        """
        return cls._maps(config) + LadderEnsemble.parameter_count(config, *cls._sizes(config))

    @classmethod
    def flops_per_token(cls, config, context):
        """Two for each weight of a matrix."""
        return 2 * cls._maps(config) + LadderEnsemble.flops_per_token(config, *cls._sizes(config))

    @staticmethod
    def _sizes(config):
        """What the ensemble is built with: n_in, n_out, ladders, depth."""
        return CffnGated.hidden(config), config.n_embd, config.cf_ladders, config.cf_depth

    @staticmethod
    def _maps(config):
        """Weights of the linear maps beside the ensemble's: G, and P of a GLU."""
        return (1 + is_glu(config)) * config.n_embd * CffnGated.hidden(config)


class CffnProduct(ChannelMixer):
    """y = (U_1 x + V_1 z_1) * (U_2 x + V_2 z_2); the ladders have depth d in z_1 and d + 1 in z_2."""

    Keys = ladder.Keys
    has_ladders = True

    def __init__(self, config):
        super().__init__(config)
        width, ladders, depth = config.n_embd, config.cf_ladders, config.cf_depth
        self.first = LadderEnsemble(config, width, width, ladders, depth)
        self.second = LadderEnsemble(config, width, width, ladders, depth + 1)
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def idle_keys(cls, config):
        return ladder.idle_keys(config)

    def residual_outputs(self):
        return list(filter(None, (self.first.U, self.first.V)))

    def forward(self, x):
        return self.dropout(self.first(x) * self.second(x))

    @classmethod
    def parameter_count(cls, config):
        """2 p^2 + L (p (2 d + 3) + 2 d + 1); cf_linear_intercept: 2 p more"""
        p, ladders, depth = config.n_embd, config.cf_ladders, config.cf_depth
        return sum(LadderEnsemble.parameter_count(config, p, p, ladders, k) for k in (depth, depth + 1))

    @classmethod
    def flops_per_token(cls, config, context):
        p, ladders, depth = config.n_embd, config.cf_ladders, config.cf_depth
        return sum(LadderEnsemble.flops_per_token(config, p, p, ladders, k) for k in (depth, depth + 1))


class CffnAdded(ChannelMixer):
    """y = (U_1 x) * (U_2 x) + V z(x)

    cf_control=zero leaves V z out. With `ffn_hidden` a GLU that wide, V (silu(G x) * P x), takes its place:
    but for biases it has as many parameters as as many ladders of depth 2.
    """

    Keys = AddedKeys
    has_ladders = True

    def __init__(self, config):
        super().__init__(config)
        width, units = config.n_embd, self.units(config)
        self.U1 = nn.Linear(width, width, bias=False)
        self.U2 = nn.Linear(width, width, bias=False)
        self.ladders = LadderEnsemble(
            config, width, width, config.cf_ladders, config.cf_depth, linear=False
        )
        # G above P: one matrix product
        self.up = nn.Linear(width, 2 * units, bias=False) if units else None
        self.down = nn.Linear(units, width, bias=False) if units else None
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def idle_keys(cls, config):
        own = {"cf_linear_intercept"} | ({"ffn_hidden"} if config.cf_control == "none" else set())
        return ladder.idle_keys(config) | own

    def residual_outputs(self):
        return list(filter(None, (self.U1, self.ladders.V, self.down)))

    def forward(self, x):
        beside = self.ladders(x)
        if self.up is not None:
            gate, value = self.up(x).chunk(2, dim=-1)
            beside = self.down(F.silu(gate) * value)
        return self.dropout(self.U1(x) * self.U2(x) + beside)

    @classmethod
    def validate(cls, config):
        if config.cf_control == "constant" and config.ffn_hidden:
            return ["ffn=cffn_added has either units or a constant for its fractions: leave ffn_hidden out"]
        return []

    @staticmethod
    def units(config):
        """Of the GLU in place of the ladders."""
        return (config.cf_control == "zero" and config.ffn_hidden) or 0

    @classmethod
    def parameter_count(cls, config):
        """2 p^2 + L (p (d + 1) + d), or 2 p^2 + 3 p h with the units of a control"""
        p, ladders = config.n_embd, config.cf_ladders
        ensemble = LadderEnsemble.parameter_count(config, p, p, ladders, config.cf_depth, linear=False)
        return 2 * p * p + 3 * p * CffnAdded.units(config) + ensemble

    @classmethod
    def flops_per_token(cls, config, context):
        p, ladders = config.n_embd, config.cf_ladders
        ensemble = LadderEnsemble.flops_per_token(config, p, p, ladders, config.cf_depth, linear=False)
        return 4 * p * p + 6 * p * CffnAdded.units(config) + ensemble


def is_glu(config) -> bool:
    """Whether h of the gated Cffn is a GLU, which has two maps."""
    return config.cffn_gate == "glu_collapsed"
