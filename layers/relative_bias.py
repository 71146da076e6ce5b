"""T5's relative positions: a learned number for each distance (Raffel et al. 2020, section 2.1).

    score(m, n) = q_m . k_n / sqrt(D) + b[head, bucket(n - m)]

Distances share B = t5_buckets buckets. With d = |n - m|, half of the buckets hold one distance each, and
those of the other half grow with its logarithm, up to M = t5_max_distance:

    bucket = d                                                              for d < B / 2
    bucket = min(B - 1, B / 2 + floor(ln(2 d / B) / ln(2 M / B) B / 2))     otherwise

In the decoder, later tokens (n > m) are not seen. In the encoder, B / 2 buckets serve the tokens before m,
and as many those after it. All layers of a stack share its table. T5 itself does not divide by sqrt(D):
its weights are read with q sqrt(D) times as large.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from kernels.embedding import embedding
from layers.position import NoPosition


@dataclass
class Keys:
    # t5
    t5_buckets: int = 32  # t5: learned numbers of a head, each for one distance or several
    t5_max_distance: int = 128  # t5: from this distance on, all share one number


class RelativeBias(NoPosition):
    """See above. Needs attention=softmax, whose scores it adds to."""

    Keys = Keys
    only_in = ("softmax",)

    def __init__(self, config):
        super().__init__(config)
        self.buckets, self.max_distance = config.t5_buckets, config.t5_max_distance
        self.decoder = nn.Embedding(self.buckets, config.n_head)
        self.encoder = nn.Embedding(self.buckets, config.n_head) if config.encoder_layers else None

    def bias(self, pos, keys, causal=True):
        """Places follow one another, in pos and in keys: the table is read once for each distance, and each
        row of the result is the row before it, moved by one.
        """
        table, rows, columns = self.decoder if causal else self.encoder, len(pos), len(keys)
        distances = keys[0] - pos[-1] + torch.arange(rows + columns, device=pos.device)
        each = embedding(table.weight, bucket(distances, self.buckets, self.max_distance, causal)).mT
        # rows of one number less than are there: each begins one later than the row before
        width = rows + columns - 1
        moved = each[:, None].expand(-1, rows, -1).flatten(1)[:, rows - 1 : rows - 1 + rows * width]
        return moved.unflatten(1, (rows, width))[..., :columns]

    @classmethod
    def validate(cls, config):
        wrong = []
        if config.t5_buckets < 4 or config.t5_buckets % 4:
            wrong.append(f"t5_buckets must be a multiple of 4, not {config.t5_buckets}")
        elif config.t5_max_distance <= config.t5_buckets // 2:
            wrong.append(
                f"t5_max_distance={config.t5_max_distance} must be above t5_buckets / 2 = "
                f"{config.t5_buckets // 2}, from where on buckets hold several distances"
            )
        return wrong

    @classmethod
    def parameter_count(cls, config):
        return (1 + bool(config.encoder_layers)) * config.t5_buckets * config.n_head


def bucket(distance, buckets, max_distance, causal=True):
    """distance: int64, of a key's place from its query's -> bucket: int64 of the same shape"""
    if causal:
        first, distance = 0, -distance.clamp(max=0)
    else:
        buckets //= 2
        first, distance = buckets * (distance > 0), distance.abs()
    exact = buckets // 2
    share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)
