"""Ensembles of continued-fraction ladders, the piece that every CoFrGeNet module shares.

Equation 8 of CoFrGeNet, for an input x in R^p and L ladders of depth d:

    y = U x + V z,    z_j = f(a_1^j .. a_d^j),    a_k^j = w_k^j x + b_k^j

d counts the partial denominators a_1..a_d. The partial denominators are a bias of 1 plus a small
linear function of x at the start: at a = 0 every odd depth sits on a pole (K_d = 0).
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from kernels.continued_fraction import continued_fraction


class LadderEnsemble(nn.Module):
    """y = U x + V f(W x + b), or parts of it.

    config: reads cf_pole, cf_eps, cf_floor, cf_eval_clip.
    n_in = p and n_out = q are the widths of x and y. With project=False there is no V and n_out must
    be `ladders`: y = U x + z (the form inside CAttnM's scores). With linear=False there is no U.

    The weights of each depth are tensors of their own, W_k [L, p] and b_k [L], so that a schedule can
    hold a depth still; `depth_parameters` returns them.
    With cf_eval_clip the smallest and largest z of each ladder seen in training are kept (buffers
    z_min, z_max [L], float32) and z is clipped to them in evaluation, never in training.
    """

    def __init__(self, config, n_in, n_out, ladders, depth, linear=True, project=True):
        super().__init__()
        if not project and n_out != ladders:
            raise ValueError(
                f"without a projection the width {n_out} must be the number of ladders {ladders}"
            )
        self.n_in, self.ladders, self.depth = n_in, ladders, depth
        self.pole, self.eps, self.floor = config.cf_pole, config.cf_eps, config.cf_floor
        self.U = nn.Linear(n_in, n_out, bias=False) if linear else None
        self.V = nn.Linear(ladders, n_out, bias=False) if project else None
        self.W = nn.ParameterList(torch.empty(ladders, n_in) for _ in range(depth))
        self.b = nn.ParameterList(torch.empty(ladders) for _ in range(depth))
        self.eval_clip = config.cf_eval_clip
        if self.eval_clip:
            self.register_buffer("z_min", torch.empty(ladders, dtype=torch.float32))
            self.register_buffer("z_max", torch.empty(ladders, dtype=torch.float32))

    def init_weights(self):
        """After the linear layers' own initialisation: std(a) is about 0.1 around a bias of 1."""
        for weight, bias in zip(self.W, self.b, strict=True):
            nn.init.normal_(weight, std=0.1 / self.n_in**0.5)
            nn.init.ones_(bias)
        if self.eval_clip:
            self.z_min.fill_(float("inf"))
            self.z_max.fill_(float("-inf"))

    def forward(self, x):
        """x: [..., n_in] -> y: [..., n_out], in the type that the linear maps give."""
        z = self.fractions(x)
        if self.V is not None:
            z = self.V(z)
        return z if self.U is None else self.U(x) + z

    def fractions(self, x):
        """x: [..., n_in] -> z: [..., L], float32 (float64 for float64)."""
        z = continued_fraction(self.partial_denominators(x), self.pole, self.eps, self.floor)
        if not self.eval_clip:
            return z
        if not self.training:
            # tensor-valued: whether a range was ever recorded must not be a branch in Python
            return torch.where(self.z_min <= self.z_max, z.clamp(self.z_min, self.z_max), z)
        with torch.no_grad():
            rows = z.detach().flatten(0, -2).float()
            finite = rows.isfinite()
            self.z_min.copy_(torch.minimum(self.z_min, rows.where(finite, float("inf")).amin(0)))
            self.z_max.copy_(torch.maximum(self.z_max, rows.where(finite, float("-inf")).amax(0)))
        return z

    def partial_denominators(self, x):
        """x: [..., n_in] -> a: [..., d, L]; never rounded to half precision, whatever autocast says."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        # autocast knows no meta device, which counts FLOPs
        autocast = torch.amp.is_autocast_available(x.device.type)
        with torch.autocast(x.device.type, enabled=False) if autocast else nullcontext():
            weight, bias = torch.cat(list(self.W)).to(dtype), torch.cat(list(self.b)).to(dtype)
            return F.linear(x.to(dtype), weight, bias).unflatten(-1, (self.depth, self.ladders))

    def depth_parameters(self):
        """[[W_1, b_1], ..., [W_d, b_d]]"""
        return [list(pair) for pair in zip(self.W, self.b, strict=True)]

    @staticmethod
    def parameter_count(n_in, n_out, ladders, depth, linear=True, project=True):
        """L d (p + 1) for the ladders, p q for U, L q for V."""
        return ladders * depth * (n_in + 1) + linear * n_in * n_out + project * ladders * n_out

    @staticmethod
    def flops_per_token(n_in, n_out, ladders, depth, linear=True, project=True):
        """Matrix products only (two FLOPs a weight); the fraction itself is O(L d)."""
        return 2 * (ladders * depth * n_in + linear * n_in * n_out + project * ladders * n_out)
