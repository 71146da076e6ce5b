"""float32 products on bfloat16 tensor cores: each number in a high and a low part.

x = high + low + rest, where high is x rounded to bfloat16, low is the remainder rounded to bfloat16, and
|rest| <= 2^-18 |x|. The products of the parts with each other, summed in float32, have an error of 2^-17 of
|a| |b| at most, where rounding both factors to bfloat16 has 2^-8.
"""

import torch
from torch.nn import functional


def high_and_low(x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """x: any floating type -> its high and its low part in dtype. The low part of an infinite x is NaN."""
    x = x.float()
    high = x.to(dtype)
    return high, (x - high.float()).to(dtype)


# which parts stand side by side in the factors of a product of 2 x 2 parts
LEFT, RIGHT = (0, 1, 1, 0), (0, 1, 0, 1)


def side_by_side(x: torch.Tensor, order: tuple[int, ...], width: int) -> torch.Tensor:
    """High (0) and low (1) parts of x in one row, each padded with zeros to `width`.

    x: [..., R], R <= width -> [..., len(order) width] bfloat16. The product of a LEFT and a RIGHT row is
    that of the two float32 rows.
    """
    parts = high_and_low(functional.pad(x, (0, width - x.shape[-1])))
    return torch.cat([parts[part] for part in order], dim=-1)
