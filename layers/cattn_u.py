"""CAttnU: causal mixing by products of triangular matrices (CoFrGeNet, section 4.1.1).

For each feature c, x is its sequence in R^T. Two ensembles e = 1, 2 of ladders of one variable, one
ladder per position, all shared by the features:

    y^e_t = w^e_{0,t} x_t + f(a^e_{1,t} .. a^e_{d,t}),    a^e_{k,t} = w^e_{k,t} x_t + b^e_{k,t}
    O = (M^1 y^1) * (M^2 y^2)

With cf_linear_intercept a_0 is affine too: w^e_{0,t} x_t + b^e_{0,t}.

The paper writes upper triangular matrices and a column vector, by which tokens would see the future
only; its prose wants the past. M is lower triangular here, rows are outputs, the diagonal counts.
"""

import torch
from torch import nn

from kernels.triangular import causal_linear, lower_rows, packed_size, unpack_lower
from layers.cache import weighted_sum, written
from layers.ladder import Ladders, has_intercepts


class CAttnU(Ladders):
    """x: [B, T, C] -> [B, T, C], T <= block_size.

    Parameters are indexed by absolute position: a shorter sequence uses the first ones. Both triangles
    are one parameter M [2, block_size (block_size + 1) / 2], packed as `kernels.triangular` says.
    """

    has_ladders = True
    undecayed = ("w0", "b0", "constant")  # scales and shifts, though they lie in matrices

    def __init__(self, config, layer=0):
        super().__init__()
        self.block_size, self.width = config.block_size, config.n_embd
        self.residual_scale = (2 * config.n_layer) ** -0.5
        shape = (2, config.block_size)
        self.w0 = nn.Parameter(torch.empty(shape))
        self.b0 = nn.Parameter(torch.empty(shape)) if config.cf_linear_intercept else None
        self.hold_ladders(config, config.cf_depth, shape, shape, shape, 1, shape)
        self.M = nn.Parameter(torch.empty(2, packed_size(config.block_size)))
        self.dropout = nn.Dropout(config.dropout)

    def init_weights(self):
        """w_0 = 1, b_0 = 0; M the causal mean, 1 / t in row t = 1.., and noise that adds 0.02 to the
        deviation of an output whatever its row. The first factor is scaled as an output on the residual
        stream.
        """
        super().init_weights()
        nn.init.ones_(self.w0)
        if self.b0 is not None:
            nn.init.zeros_(self.b0)
        with torch.no_grad():
            row = torch.tril_indices(self.block_size, self.block_size, device=self.M.device)[0] + 1.0
            self.M.normal_(std=0.02).mul_(row.rsqrt()).add_(1 / row)
            self.M[0].mul_(self.residual_scale)

    def new_cache(self, batch, length, device, dtype):
        """y^1 and y^2: [B, 2, length, C]. From x, half as wide, each step would have to compute the
        ladders of all the past anew, far more than the two products that remain.
        """
        return (torch.empty(batch, 2, length, self.width, device=device, dtype=dtype),)

    def forward(self, x, pos=None, cache=None):
        """With a cache x is what follows the tokens in it, at pos: [T] int64."""
        length = x.shape[1] if cache is None else cache[0].shape[-2]
        if length > self.block_size:
            raise ValueError(
                f"{length} tokens do not fit into CAttnU's block_size of {self.block_size} positions"
            )
        # float32 up to the matrix products, and no operation before them that autocast would round
        x = x.mT.to(torch.promote_types(x.dtype, torch.float32))
        own = slice(length) if cache is None else pos  # the ladders of these tokens
        y = self.w0[:, own] * x.unsqueeze(-2)
        if self.b0 is not None:
            y = y + self.b0[:, own]
        if self.depth:
            a = x * torch.stack(list(self.W))[:, :, None, None, own]  # [d, 2, B, C, T]
            if self.b:
                a = a + torch.stack(list(self.b))[:, :, None, None, own]
            a = a.movedim((0, 1), (-3, -2))
            y = y + self.fraction(a, None if cache is None else pos)
        elif self.constant is not None:
            y = y + self.constant[:, own]
        y = y.to(self.M.dtype)
        if cache is None:
            M = unpack_lower(self.M, length)
            first, second = (causal_linear(y[..., e, :], M[e]) for e in (0, 1))
            return self.dropout((first * second).mT)
        y = written(*cache, y.permute(0, 2, 3, 1), pos)
        first, second = weighted_sum(lower_rows(self.M, pos, length), y).to(self.M.dtype).unbind(1)
        return self.dropout(first * second)

    @staticmethod
    def cropped(name, weight, config, block_size):
        """The named weight for a smaller block_size: everything is indexed by position, last."""
        return weight[..., : packed_size(block_size) if name == "M" else block_size]

    @staticmethod
    def parameter_count(config):
        """l (l + 1) in the triangles, 2 l (2 d + 1) in the ladders (2 l (d + 1) without
        intercepts), 2 l more with cf_linear_intercept."""
        length, biased = config.block_size, has_intercepts(config)
        ladders = config.cf_control_constant if config.cf_control else config.cf_depth * (1 + biased)
        return 2 * packed_size(length) + 2 * length * (ladders + 1 + config.cf_linear_intercept)

    @staticmethod
    def cached_values(config):
        """Per token of the past: y^1 and y^2."""
        return 2 * config.n_embd

    @staticmethod
    def flops_per_token(config, context):
        """Forward FLOPs of the two matrix products; the zeros above the diagonal are not subtracted."""
        return 4 * config.n_embd * context
