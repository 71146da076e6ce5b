"""CAttnU: causal mixing by products of triangular matrices (CoFrGeNet, section 4.1.1).

x in R^T is the sequence of one feature. There are two ensembles e = 1, 2 of ladders of one variable, with
one ladder per position, and all features share them:

    y^e_t = w^e_{0,t} x_t + f(a^e_{1,t} .. a^e_{d,t}),    a^e_{k,t} = w^e_{k,t} x_t + b^e_{k,t}
    O = (M^1 y^1) * (M^2 y^2)

With cf_linear_intercept the linear part is affine too: w^e_{0,t} x_t + b^e_{0,t}.

The paper writes upper triangular matrices and a column vector, so that tokens would see the future only.
Its text asks for the past. So here M is lower triangular and includes the diagonal; rows are outputs.
"""

import torch
from torch import nn

from kernels.triangular import causal_linear, lower_rows, packed_size, unpack_lower
from layers import ladder
from layers.cache import begins_text, update_cache, weighted_sum
from layers.ladder import Ladders, has_intercepts
from layers.protocol import TokenMixer


class CAttnU(Ladders, TokenMixer):
    """x: [B, T, C] -> [B, T, C], T <= block_size.

    Parameters are indexed by absolute position; a shorter sequence uses the first ones. Both triangles are
    one parameter M [2, block_size (block_size + 1) / 2], packed as in `kernels.triangular`.
    """

    Keys = ladder.Keys
    has_ladders = True

    @classmethod
    def idle_keys(cls, config):
        return ladder.idle_keys(config, sums=True) | {"cf_ladders"}  # it has one for each position

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.block_size = config.block_size
        self.residual_scale = config.residual_scale
        shape = (2, config.block_size)
        self.w0 = nn.Parameter(torch.empty(shape))
        self.b0 = nn.Parameter(torch.empty(shape)) if config.cf_linear_intercept else None
        self.hold_ladders(config, config.cf_depth, shape, shape, 1, shape)
        self.M = nn.Parameter(torch.empty(2, packed_size(config.block_size)))
        self.dropout = nn.Dropout(config.dropout)

    def init_weights(self):
        """Sets w_0 = 1, b_0 = 0, and M to the causal mean plus noise.

        The causal mean is 1 / t in row t = 1, 2, ... The noise adds a standard deviation of 0.02 to an
        output in every row. M^1 is then scaled down like the weights that write to the residual stream.
        """
        super().init_weights()
        nn.init.ones_(self.w0)
        if self.b0 is not None:
            nn.init.zeros_(self.b0)
        with torch.no_grad():
            row = torch.tril_indices(self.block_size, self.block_size, device=self.M.device)[0] + 1.0
            self.M.normal_(std=0.02).mul_(row.rsqrt()).add_(1 / row)
            self.M[0].mul_(self.residual_scale)

    def undecayed(self):
        """Scales and shifts, although they are stored in tensors of two dimensions."""
        return [p for p in (self.w0, self.b0, self.constant) if p is not None]

    def new_cache(self, batch, length, device, dtype):
        """y^1 and y^2: [B, 2, length, C].

        A cache of x would be half as wide, but each step would recompute the ladders of the whole past,
        which costs far more than the two products.
        """
        return (torch.empty(batch, 2, length, self.n_embd, device=device, dtype=dtype),)

    def forward(self, x):
        return self._mixed(self._inputs(x, x.shape[1]))

    def _mixed(self, y):
        """y: `_inputs` of a whole text -> [B, T, C]"""
        M = unpack_lower(self.M, y.shape[-1])
        first, second = (causal_linear(y[..., e, :], M[e]) for e in (0, 1))
        return self.dropout((first * second).mT)

    def decode(self, x, pos, cache):
        length = cache[0].shape[-2]
        new = self._inputs(x, length, pos)
        y = update_cache(*cache, new.permute(0, 2, 3, 1), pos)
        if begins_text(y, pos):
            return self._mixed(new)
        first, second = weighted_sum(lower_rows(self.M, pos, length), y).to(self.M.dtype).unbind(1)
        return self.dropout(first * second)

    def _inputs(self, x, length, pos=None):
        """x: [B, T, C] at pos ([T] int64, None: 0 .. T - 1) -> y^1 and y^2: [B, C, 2, T].

        length: the number of tokens seen so far.
        """
        if length > self.block_size:
            raise ValueError(
                f"{length} tokens do not fit into CAttnU's block_size of {self.block_size} positions"
            )
        # float32 up to the matrix products; autocast rounds none of the operations before them
        x = x.mT.to(torch.promote_types(x.dtype, torch.float32))
        own = slice(length) if pos is None else pos  # the ladders of these tokens
        y = self.w0[:, own] * x.unsqueeze(-2)
        if self.b0 is not None:
            y = y + self.b0[:, own]
        if self.depth:
            a = x * torch.stack(list(self.W))[:, :, None, None, own]  # [d, 2, B, C, T]
            if self.b:
                a = a + torch.stack(list(self.b))[:, :, None, None, own]
            a = a.movedim((0, 1), (-3, -2))
            y = y + self.fraction(a, pos, linear=y)
        elif self.constant is not None:
            y = y + self.constant[:, own]
        return y.to(self.M.dtype)

    @classmethod
    def cropped(cls, name, weight, config, block_size):
        """Crops the named weight to a smaller block_size: the last dimension of each is the position."""
        return weight[..., : packed_size(block_size) if name == "M" else block_size]

    @classmethod
    def parameter_count(cls, config):
        """l (l + 1) in the triangles and 2 l (2 d + 1) in the ladders (2 l (d + 1) without intercepts).

        cf_linear_intercept adds 2 l.
        """
        length, biased = config.block_size, has_intercepts(config)
        controls = {"zero": 0, "constant": 1}
        ladders = controls.get(config.cf_control, config.cf_depth * (1 + biased))
        return 2 * packed_size(length) + 2 * length * (ladders + 1 + config.cf_linear_intercept)

    @classmethod
    def cached_values(cls, config):
        """Numbers per past token: y^1 and y^2."""
        return 2 * config.n_embd

    @classmethod
    def flops_per_token(cls, config, context):
        """Forward FLOPs of the two matrix products; the zeros above the diagonal are not subtracted."""
        return 4 * config.n_embd * context
