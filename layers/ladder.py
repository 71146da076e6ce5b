"""Ensembles of continued-fraction ladders, the piece that every CoFrGeNet module shares.

Equation 8 of CoFrGeNet, for an input x in R^p and L ladders of depth d:

    y = U x + V z,    z_j = f(a_1^j .. a_d^j),    a_k^j = w_k^j x + b_k^j

d counts the partial denominators a_1..a_d, as the paper's section 2 does. Section 4.1's example and
Table 1's CAttnU count a_0 too, so that their d = 2 is d = 1 here. The intercepts b_k are the papers' w_k0,
the coefficient of the 1 that is prepended to x; the papers do not say where they start, and Table 1 does
not count them. By default they start at 1 beside small weights: at a = 0 every odd depth sits on a pole
(K_d = 0), and no even depth does (K_d = 1). The linear part a_0 is affine too; cf_linear_intercept gives it
its intercept: y = U x + c + V z.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from config_keys import FREE, Count, Positive, names
from kernels import narrow_product, split
from kernels.autocast import product_dtype, without_autocast
from kernels.continued_fraction import (
    POLES,
    continued_fraction,
    continued_fraction_and_range,
    continued_fraction_ladder,
    denominator,
    finite_range,
)
from layers.protocol import Drawn


@dataclass
class Keys:
    """Of all modules with ladders."""

    # continued fractions
    cf_ladders: Count = 7  # L, continued-fraction ladders in an ensemble (in each head)
    cf_depth: Count = 3  # d, partial denominators in a ladder
    cf_pole: Literal[POLES] = "positive"  # near K_d = 0: clamp as printed, positive softplus(a) + cf_floor
    cf_eps: Positive = 0.01  # clamp: smallest |K_d|
    cf_floor: Positive = 0.1  # positive: smallest partial denominator; |z| <= 1 / cf_floor
    cf_init: Literal["fan_in", "nanogpt", "nanogpt_xl"] = "fan_in"  # ladder weights: see layers/ladder.py
    cf_intercept: Literal["one", "zero", "normal", "none"] = "one"  # initial intercepts of the a_k, if any
    cf_linear_intercept: bool = False  # the linear part of an ensemble, a_0, has an intercept too
    cf_impl: Literal["continuant", "ladder"] = "continuant"  # one division, or d divisions as written
    cf_backend: Annotated[Literal["auto", "torch", "triton"], FREE] = "auto"  # auto: Triton on a GPU
    cf_eval_clip: bool = False  # in evaluation clip each ladder to its range in training
    cf_clip_of: Literal["z", "ladder"] = "z"  # what is clipped; ladder: a_0 + z, where a_0 is at hand
    cf_control: Literal["none", "zero", "constant"] = "none"  # replace fractions by 0 or constants


def idle_keys(config, sums: bool = False) -> set[str]:
    """Those of Keys that have no effect on ladders with this config. sums: a_0 is at hand where z is."""
    if config.cf_control != "none":
        return {*names(Keys)} - {"cf_control", "cf_linear_intercept"}
    idle = {"cf_floor" if config.cf_pole == "clamp" else "cf_eps"}
    return idle if sums and config.cf_eval_clip else idle | {"cf_clip_of"}


class Fraction(Drawn):
    """z = f(a_1..a_d) for ladders of a given shape, as the config's cf_ keys say.

    config: reads cf_pole, cf_eps, cf_floor, cf_impl, cf_backend, cf_eval_clip, cf_clip_of.
    shape: that of the ladders, e.g. (L,). Where ladders are indexed by position, the last dimension of
    a forward pass may be shorter and means the first ones.

    With cf_eval_clip the smallest and largest finite z of each ladder seen in training are kept
    (buffers z_min, z_max, float32, inf and -inf before) and z is clipped to them in evaluation, never
    in training. `clip = False` switches the clipping off and leaves the ranges alone. The papers keep the
    range of "values that each ladder produces", which is a_0 + z: cf_clip_of=ladder, where a_0 is known.
    """

    def __init__(self, config, shape):
        super().__init__()
        self.shape = tuple(shape)
        self.pole, self.eps, self.floor = config.cf_pole, config.cf_eps, config.cf_floor
        self.impl, self.backend = config.cf_impl, config.cf_backend
        self.clip = True
        self.has_range, self.clips_sum = config.cf_eval_clip, config.cf_clip_of == "ladder"
        if self.has_range:
            self.register_buffer("z_min", torch.empty(self.shape, dtype=torch.float32))
            self.register_buffer("z_max", torch.empty(self.shape, dtype=torch.float32))
            self.reset_range()

    def init_weights(self):
        self.reset_range()

    def reset_range(self):
        """Forgets the ranges: nothing is clipped until training has recorded new ones."""
        if self.has_range:
            self.z_min.fill_(float("inf"))
            self.z_max.fill_(float("-inf"))

    def forward(self, a, pos=None, linear=None):
        """a: [..., d, *shape] -> z: [..., *shape] in a's type, computed in at least float32.

        pos: [T] int64, where the last dimension means the ladders of these positions and not the first
        ones, as in decoding. Then nothing is recorded.
        linear: a_0 [..., *shape], which the caller adds to z. cf_clip_of=ladder keeps the range of the sum.
        """
        depth, shape = -1 - len(self.shape), a.shape[-len(self.shape) :]
        recording, of_sum = self.has_range and self.training, self.clips_sum and linear is not None
        if self.impl == "ladder":
            z = continued_fraction_ladder(a, self.pole, self.eps, self.floor, depth)
            seen = finite_range(z, len(shape)) if recording else None
        else:
            options = (self.pole, self.eps, self.floor, self.backend, depth)
            if recording:
                z, *seen = continued_fraction_and_range(a, *options)
            else:
                z = continued_fraction(a, *options)
        if not self.has_range or (self.training and pos is not None):
            return z
        own = slice(shape[-1]) if pos is None else pos
        low, high = self.z_min[..., own], self.z_max[..., own]
        if not self.training:
            # tensor-valued: whether a range was ever recorded must not be a branch in Python
            known, ends = low <= high, (low - linear, high - linear) if of_sum else (low, high)
            return torch.where(known, z.clamp(*ends), z) if self.clip else z
        with torch.no_grad():
            if of_sum:
                seen = finite_range(linear + z, len(shape))
            low.copy_(torch.minimum(low, seen[0]))
            high.copy_(torch.maximum(high, seen[1]))
        return z

    def denominator(self, a):
        """a: [..., d, *shape] -> K_d: [..., *shape] before any clamp, at least float32."""
        return denominator(a, self.pole, self.floor, dim=-1 - len(self.shape))


class Ladders(Drawn):
    """Holds the ladders of a module: the weights and intercepts of their partial denominators, and f.

    Those of each depth are tensors of their own, W_k and b_k, so that a schedule can hold a depth
    still; `depth_parameters` returns them. With cf_intercept=none there are no b_k.
    """

    def hold_ladders(self, config, depth, weight_shape, shape, fan_in, constant_shape, start=0.5):
        """shape: that of the ladders. fan_in: how many inputs a partial denominator sums over.

        cf_control=zero holds nothing. cf_control=constant holds `constant`, which is initialised to
        `start`: by default about the value of a fraction at initialisation.
        """
        self.depth = depth if config.cf_control == "none" else 0
        self.weight_std = {"fan_in": 0.1, "nanogpt_xl": 0.8}.get(config.cf_init, 0.02 * fan_in**0.5)
        self.weight_std /= fan_in**0.5
        self.intercept = config.cf_intercept
        intercepts = self.depth if has_intercepts(config) else 0
        self.stacked = None
        self.W = nn.ParameterList(torch.empty(weight_shape) for _ in range(self.depth))
        self.b = nn.ParameterList(torch.empty(shape) for _ in range(intercepts))
        self.fraction = Fraction(config, shape) if self.depth else None
        constant = config.cf_control == "constant"
        self.constant = nn.Parameter(torch.empty(constant_shape)) if constant else None
        self.start = start

    def init_weights(self):
        """Weights: nanogpt is N(0, 0.02); fan_in gives W_k x a deviation of 0.1 for inputs of variance 1,
        nanogpt_xl one of 0.8, which is nanogpt's at GPT2-xl's 1,600 inputs. Intercepts: 1, 0, or drawn like
        the weights, as one more element of w_k.
        """
        for weight in self.W:
            nn.init.normal_(weight, std=self.weight_std)
        for intercept in self.b:
            if self.intercept == "normal":
                nn.init.normal_(intercept, std=self.weight_std)
            else:
                nn.init.constant_(intercept, 1.0 if self.intercept == "one" else 0.0)
        if self.constant is not None:
            nn.init.constant_(self.constant, self.start)

    def depth_parameters(self):
        """[[W_1, b_1], ..., [W_d, b_d]], without the b_k where there are none."""
        held = (self.W, self.b) if self.b else (self.W,)
        return [list(one) for one in zip(*held, strict=True)]


def has_intercepts(config) -> bool:
    """Whether the partial denominators are affine, as printed, and not linear."""
    return config.cf_intercept != "none"


class LadderEnsemble(Ladders):
    """y = U x + V f(W x + b), or parts of it; with cf_linear_intercept U x + c in place of U x.

    config: reads the cf_ keys, but for cf_ladders and cf_depth.
    n_in = p and n_out = q are the widths of x and y. With project=False there is no V and n_out must
    be `ladders`: y = U x + z (the form inside CAttnM's scores). With linear=False there is no U.

    cf_control=zero: y = U x, and 0 without U. cf_control=constant: a learned vector in place of V z or z.
    """

    def __init__(self, config, n_in, n_out, ladders, depth, linear=True, project=True):
        super().__init__()
        if not project and n_out != ladders:
            raise ValueError(
                f"without a projection the width {n_out} must be the number of ladders {ladders}"
            )
        self.n_in, self.ladders, self.projects = n_in, ladders, project
        self.U = nn.Linear(n_in, n_out, bias=config.cf_linear_intercept) if linear else None
        projects = project and config.cf_control == "none"
        self.V = nn.Linear(ladders, n_out, bias=False) if projects else None
        start = 0.0 if project else 0.5
        self.hold_ladders(config, depth, (ladders, n_in), (ladders,), n_in, (n_out,), start)

    def forward(self, x):
        """x: [..., n_in] -> y: [..., n_out], in the type that the linear maps give."""
        if not self.depth:
            linear = None if self.U is None else self.U(x)
            if self.constant is None:
                return 0.0 if linear is None else linear
            constant = self.constant.to(product_dtype(x)) if self.projects else self.constant
            return constant if linear is None else linear + constant
        if self.V is None:
            linear = None if self.U is None else self.U(x)
            z = self.fraction(self.partial_denominators(x), linear=linear)
            return z if linear is None else linear + z
        z = self.fractions(x)
        fused = narrow_product.fuses(z)
        z = narrow_product.narrow_product(z, self.V.weight) if fused else self.V(z.to(self.V.weight.dtype))
        return z if self.U is None else self.U(x) + z

    def fractions(self, x):
        """x: [..., n_in] -> z: [..., L], float32 (float64 for float64)."""
        return self.fraction(self.partial_denominators(x))

    def partial_denominators(self, x):
        """x: [..., n_in] -> a: [..., d, L], a view of a tensor in which d comes first, then L: so the
        fraction works on whole rows of memory.

        Never rounded to half precision, whatever autocast says. Under autocast on a GPU their product is
        one of bfloat16 parts, exact to about 1e-5, except with cf_pole=clamp, which is steep at its poles.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight, intercept = self.stacked or self._stacked(dtype)
        rows = x.reshape(-1, self.n_in)
        if self.stacked is None and self.fraction.pole == "positive" and split.in_parts(x):
            a = split.product(weight, rows)
        else:
            with without_autocast(x):
                a = weight.to(dtype) @ rows.to(dtype).T
        a = a.view(self.depth, self.ladders, *x.shape[:-1])
        if intercept is not None:
            # a sum beside the product is fused with the fraction; in it, it costs more than the product
            a = a + intercept[(..., *[None] * (x.dim() - 1))]
        return a.movedim((0, 1), (-2, -1))

    def _stacked(self, dtype):
        """All W_k: [d L, n_in], and all b_k, or None: [d, L]."""
        intercept = torch.stack(list(self.b)).to(dtype) if self.b else None
        return torch.stack(list(self.W)).to(dtype).flatten(0, 1), intercept

    def prepare_to_decode(self):
        """Stacks the weights once. A GPU reads them as they are: half precision is exact in float32."""
        if self.depth:
            weight, intercept = self._stacked(torch.promote_types(self.W[0].dtype, torch.float32))
            self.stacked = (weight.to(self.W[0].dtype) if weight.is_cuda else weight, intercept)

    @staticmethod
    def parameter_count(config, n_in, n_out, ladders, depth, linear=True, project=True):
        """L d p for the ladders, L d for their intercepts, p q for U (q more with its own), L q for V."""
        affine = (n_in + config.cf_linear_intercept) * n_out if linear else 0
        if config.cf_control != "none":
            return affine + (config.cf_control == "constant") * n_out
        return ladders * depth * (n_in + has_intercepts(config)) + affine + project * ladders * n_out

    @staticmethod
    def flops_per_token(config, n_in, n_out, ladders, depth, linear=True, project=True):
        """Matrix products only (two FLOPs a weight). The fraction itself is O(L d) and not counted."""
        if config.cf_control != "none":
            return 2 * linear * n_in * n_out
        return 2 * (ladders * depth * n_in + linear * n_in * n_out + project * ladders * n_out)
