"""CAttnC: CAttnU's equations with convolutions for its matrices (ours).

For feature c of head h, two ensembles e = 1, 2 with one ladder of one variable for each feature:

    y^e_tc = w^e_{0,c} x_tc + f(a^e_{1,tc} .. a^e_{d,tc}),    a^e_{k,tc} = w^e_{k,c} x_tc + b^e_{k,c}
    O_tc = (sum_{s <= t} m^1_{h,t-s} y^1_sc) (sum_{s <= t} m^2_{h,t-s} y^2_sc)

CAttnU's M is addressed by two absolute positions and is one for all features: l^2 numbers, each trained
by one token of a sequence. Here a kernel of l numbers belongs to a head, and every token trains it.
"""

import torch
from torch import nn

from kernels.triangular import causal_linear, toeplitz, toeplitz_rows
from layers.cache import weighted_sum, written
from layers.cattn import complaints_about_heads, heads_of
from layers.ladder import Ladders, has_intercepts


class CAttnC(Ladders):
    """x: [B, T, C] -> [B, T, C], T <= block_size.

    cattn_heads: each has two kernels of block_size numbers for its C / cattn_heads features. None: n_head.
    cattn_proj: a C x C map on the output.
    """

    has_ladders = True
    undecayed = ("w0", "constant")  # scales and shifts, though they lie in matrices

    def __init__(self, config, layer=0):
        super().__init__()
        self.heads, self.block_size, width = heads_of(config), config.block_size, config.n_embd
        self.head_width = width // self.heads
        self.w0 = nn.Parameter(torch.empty(2, width))
        self.hold_ladders(config, config.cf_depth, (2, width), (2, width), (2, width), 1, (2, width))
        self.m = nn.Parameter(torch.empty(2, self.heads, config.block_size))
        self.proj = nn.Linear(width, width, bias=False) if config.cattn_proj else None
        if self.proj is not None:
            self.proj.residual_output = True
        self.residual_scale = 1.0 if config.cattn_proj else (2 * config.n_layer) ** -0.5
        self.dropout = nn.Dropout(config.dropout)

    def init_weights(self):
        """w_0 = 1; m^1 the token itself, scaled as an output on the residual stream where no map follows;
        m^2 a decaying mean of the past, over 1 to block_size tokens from the first head to the last, over
        the root of block_size for a single head; and noise that adds 0.02 to the deviation of a sum over
        block_size tokens.
        """
        super().init_weights()
        nn.init.ones_(self.w0)
        with torch.no_grad():
            distance = torch.arange(self.block_size, device=self.m.device)
            share = torch.linspace(0, 1, self.heads, device=self.m.device)[:, None]
            share = share if self.heads > 1 else share + 0.5
            decay = (-distance / self.block_size**share).exp()
            self.m.normal_(std=0.02 * self.block_size**-0.5)
            self.m[0, :, 0].add_(1.0)
            self.m[1].add_(decay / decay.sum(-1, keepdim=True))
            self.m[0].mul_(self.residual_scale)

    def new_cache(self, batch, length, device, dtype):
        """y^1 and y^2, each head of each a matrix: [B, 2 heads, length, C / heads]."""
        shape = (batch, 2 * self.heads, length, self.head_width)
        return (torch.empty(shape, device=device, dtype=dtype),)

    def forward(self, x, pos=None, cache=None):
        """With a cache x is what follows the tokens in it, at pos: [T] int64."""
        length = x.shape[1] if cache is None else cache[0].shape[-2]
        if length > self.block_size:
            raise ValueError(
                f"{length} tokens do not fit into CAttnC's kernels of block_size={self.block_size} numbers"
            )
        y = self.inputs(x).unflatten(-1, (self.heads, -1)).to(self.m.dtype)
        m = self.m.flatten(0, 1)
        if cache is None:
            y = y.permute(2, 3, 0, 4, 1)  # [2, heads, B, C / heads, T]
            mixed = causal_linear(y.flatten(2, 3).flatten(0, 1), toeplitz(m, length))
            first, second = mixed.view(y.shape).unbind(0)
            out = (first * second).permute(1, 3, 0, 2)
        else:
            y = written(*cache, y.permute(0, 2, 3, 1, 4).flatten(1, 2), pos)
            mixed = weighted_sum(toeplitz_rows(m, pos, length), y).to(m.dtype)
            first, second = mixed.unflatten(1, (2, -1)).unbind(1)
            out = (first * second).transpose(1, 2)
        out = out.flatten(-2)
        return self.dropout(out if self.proj is None else self.proj(out))

    def inputs(self, x):
        """x: [B, T, C] -> y^1 and y^2: [B, T, 2, C], at least float32, not rounded by autocast."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        y = self.w0 * x.unsqueeze(-2)
        if self.depth:
            a = x * torch.stack(list(self.W))[:, :, None, None]  # [d, 2, B, T, C]
            if self.b:
                a = a + torch.stack(list(self.b))[:, :, None, None]
            return y + self.fraction(a.movedim((0, 1), (-3, -2)))
        return y if self.constant is None else y + self.constant

    @staticmethod
    def cropped(name, weight, config, block_size):
        """The named weight for a smaller block_size: m loses the largest distances."""
        return weight[..., :block_size] if name == "m" else weight

    @staticmethod
    def complaints(config):
        return complaints_about_heads(config)

    @staticmethod
    def parameter_count(config):
        """2 H l in the kernels, 2 p (2 d + 1) in the ladders (2 p (d + 1) without biases), p^2 more with
        cattn_proj."""
        width, biased = config.n_embd, has_intercepts(config)
        ladders = config.cf_control_constant if config.cf_control else config.cf_depth * (1 + biased)
        kernels = 2 * heads_of(config) * config.block_size
        return kernels + 2 * width * (ladders + 1) + config.cattn_proj * width**2

    @staticmethod
    def cached_values(config):
        """Per token of the past: y^1 and y^2."""
        return 2 * config.n_embd

    @staticmethod
    def flops_per_token(config, context):
        """Forward FLOPs of the matrix products; the zeros above the diagonal are not subtracted."""
        return 4 * config.n_embd * context + 2 * config.cattn_proj * config.n_embd**2
