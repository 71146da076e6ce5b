"""Exact positional encodings (Datseris et al., "ExPE", sections 2.1 and 2.3).

Before W_q and W_k of every block, numbers that grow with the position n = 0, 1, .. replace the first l
columns of the normalised input. W_v and the residual stream see the unchanged input:

    phi(x, n) = (p_{n,0}, .., p_{n,l-1}, x_{l+1}, .., x_C)

    ExPE:   p_{n,j} = S + theta (n + j)
    ExQPE:  p_{n,j} = S + j theta_1 + theta_2 (floor((n - j) / l) + 1)

The paper's theta is "for example 1/2m", where m is the longest training input. But in its text the values
of 512 tokens run from 0 to 1/4, which is half of that. The default here follows the text.

The ExQPE formula is the closed form of the paper's recursion: step n adds theta_2 to column n mod l alone.

bfloat16 cannot tell some neighbouring positions apart: at theta = 1/1024, the first 512 have 385 different
values. So these columns are multiplied by their part of W_q and W_k in float32 (see SoftmaxAttention). For
attention itself q and k are rounded to bfloat16. At that theta this merges neighbours from about 10,000
tokens on, so evaluate such lengths in float32.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from config_keys import Changes, CountOrNone
from layers.position import NoPosition

EVALUATIONS = Changes("evaluations from here on")


@dataclass
class Keys:
    # expe, exqpe
    expe_width: CountOrNone = None  # expe, exqpe: l, columns with the position; None: n_embd/16, >= 16
    expe_start: float = 0.0  # expe, exqpe: S, the value at position 0
    expe_theta: float | None = None  # expe, exqpe: increase per token; None: 1 / (4 block_size)
    expe_stable: bool = False  # expe, an ablation: the same number in all l columns
    expe_once: bool = False  # expe, exqpe, an ablation: in the embedding, not before each W_q and W_k
    expe_learned: Literal["no", "random", "standard"] = "no"  # expe, exqpe: learn S and theta; from where
    expe_on_v: bool = False  # expe, exqpe, an ablation: before W_v too
    expe_inference_scale: Annotated[float, EVALUATIONS] = 1.0  # factor on these columns outside training


@dataclass
class ExqpeKeys(Keys):
    # exqpe
    exqpe_theta_1: float | None = None  # exqpe: step between columns; None: expe_theta
    exqpe_theta_2: float | None = None  # exqpe: increase per token of its one column; None: l expe_theta


class ExPE(NoPosition):
    """position=expe, with the paper's ablations as keys.

    - expe_stable: p_{n,j} = S + theta n.
    - expe_once: p replaces the first l columns of the embedding, and nothing else, so that W_v and the
      residual stream see it too.
    - expe_learned: S and theta are parameters that all blocks share.
    - expe_on_v: W_v sees p too.
    - expe_inference_scale: a factor of p in evaluation and sampling, not in training.
    """

    Keys = Keys
    needs_queries_and_keys = True

    def __init__(self, config):
        super().__init__(config)
        self.width = width(config)
        self.once, self.stable, self.on_v = config.expe_once, config.expe_stable, config.expe_on_v
        self.inference_scale = config.expe_inference_scale
        self.exact_columns = 0 if self.once else self.width
        self.standard = self.constants(config)
        self.learned = None
        if config.expe_learned != "no":
            self.random = config.expe_learned == "random"
            self.learned = nn.ParameterList(torch.empty(1) for _ in self.standard)

    @staticmethod
    def constants(config):
        """(S, theta)"""
        return config.expe_start, theta(config)

    def init_weights(self):
        """Sets learned constants to the standard values, or draws from N(0, 0.02), which is our choice."""
        if self.learned is None:
            return
        for parameter, value in zip(self.learned, self.standard, strict=True):
            if self.random:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.constant_(parameter, value)

    def columns(self, pos):
        """pos: [T] int64 -> p: [T, l] float32; exact for n below 2^24 if theta is a power of two."""
        p = self.encode(
            pos[:, None], torch.arange(self.width, device=pos.device), *self.learned or self.standard
        )
        return p if self.training or self.inference_scale == 1 else p * self.inference_scale

    def encode(self, n, j, start, theta):
        """n: [T, 1], j: [l], int64 -> [T, l] float32"""
        return start + theta * (n + 0 * j if self.stable else n + j).float()

    def override(self, x, pos):
        """[B, T, C] -> phi(x): [B, T, C], at least float32"""
        columns = self.columns(pos).expand(x.shape[0], -1, -1)
        dtype = torch.promote_types(x.dtype, columns.dtype)
        return torch.cat((columns.to(dtype), x[..., self.width :].to(dtype)), dim=-1)

    def embed(self, x, pos):
        return self.override(x, pos).to(x.dtype) if self.once else x

    def before_qkv(self, h, pos, layer):
        if self.once:
            return h, h
        h_qk = self.override(h, pos)
        return h_qk, h_qk if self.on_v else h

    @classmethod
    def validate(cls, config):
        wrong = []
        if width(config) >= config.n_embd:
            wrong.append(f"expe_width={width(config)} must be below n_embd={config.n_embd}")
        if config.expe_learned == "no" and cls.constants(config)[-1] == 0:
            key = "exqpe_theta_2" if config.exqpe_theta_2 == 0 else "expe_theta"
            wrong.append(f"{key}=0 gives all positions the same numbers: it must not be 0")
        if config.expe_once and config.expe_on_v:
            wrong.append(
                "expe_on_v has no effect with expe_once, where W_v sees the columns anyway: set one of them"
            )
        return wrong

    @classmethod
    def parameter_count(cls, config):
        return 0 if config.expe_learned == "no" else len(cls.constants(config))


class ExQPE(ExPE):
    """position=exqpe: each step changes one column. Keys as in ExPE, without expe_stable."""

    Keys = ExqpeKeys

    @classmethod
    def idle_keys(cls, config):
        given = config.exqpe_theta_1 is not None and config.exqpe_theta_2 is not None
        return {"expe_theta"} if given else set()

    @staticmethod
    def constants(config):
        """(S, theta_1, theta_2). Defaults theta and l theta: columns grow as fast as ExPE's."""
        theta_1, theta_2 = config.exqpe_theta_1, config.exqpe_theta_2
        return (
            config.expe_start,
            theta(config) if theta_1 is None else theta_1,
            width(config) * theta(config) if theta_2 is None else theta_2,
        )

    def encode(self, n, j, start, theta_1, theta_2):
        # floor((n - j) / l) + 1; because j < l, it is 0 where n < j
        return start + theta_1 * j.float() + theta_2 * ((n - j + self.width) // self.width).float()

    @classmethod
    def validate(cls, config):
        stable = ["expe_stable needs position=expe: exqpe has no stable form"] if config.expe_stable else []
        return super().validate(config) + stable


def width(config) -> int:
    """The number of columns l."""
    return max(16, config.n_embd // 16) if config.expe_width is None else config.expe_width


def theta(config) -> float:
    return 1 / (4 * config.block_size) if config.expe_theta is None else config.expe_theta
