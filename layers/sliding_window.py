"""Softmax attention to the last tokens (Beltagy et al. 2020; Child et al. 2019).

    y_t = sum_{t - W < j <= t} A_tj v_j,    A_t = softmax over these j of q_t . k_j / sqrt(D)

In a pattern of layers (`attention = "sliding_window,softmax"`) it does the near work at a constant cost.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from config_keys import CountOrNone
from layers import attention
from layers.attention import SoftmaxAttention
from layers.cache import causal_mask


@dataclass
class Keys(attention.Keys):
    # sliding_window
    #: sliding_window: W, tokens that a token sees, itself among them; None: a quarter of block_size
    attention_window: CountOrNone = None


class SlidingWindow(SoftmaxAttention):
    """x: [B, T, C] -> [B, T, C]. Parameters are those of softmax attention.

    Longer texts are cut into pieces of W tokens, each of which attends to itself and to the piece before
    it. Decoding keeps W tokens, position t in row t mod W, and a step reads all W rows.
    """

    Keys = Keys
    bidirectional = False
    cache_rows = 0
    same_weights = ("softmax",)

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.window = window_of(config)

    def new_cache(self, batch, length, device, dtype):
        return super().new_cache(batch, self.window, device, dtype)

    def decode(self, x, pos, cache, position=None, layer=0, values=None):
        q, k, v = self.project(x, position, pos, layer, *cache[2:], values=values)
        if len(pos) == 1:
            k_all, v_all = self._keep(cache, k, v, pos)
            out = self.attend_cached(q.to(v_all.dtype), k_all, v_all, pos).to(v.dtype)
        else:
            kept_at = pos[0] - self.window + torch.arange(self.window, device=pos.device)
            k, v = (
                torch.cat((held.index_select(-2, kept_at % self.window), new.to(held.dtype)), -2)
                for held, new in zip(cache[:2], (k, v), strict=True)
            )
            out = self._attend_after(q.to(v.dtype), k, v, torch.cat((kept_at, pos))).to(x.dtype)
            self._keep(cache, k, v, pos)
        return self.joined(out)

    def _attend_after(self, q, k, v, keys):
        """As `attend`, with the W tokens before in front. q: [B, H, T, D], k and v: [B, H_kv, W + T, D], of
        tokens at keys: [W + T]; those below 0 are of another text, and not seen.
        """
        window = self.window
        near = keys[: 2 * window]
        mask = self._seen(near[window:], near) & (near >= 0)
        of_first = q[..., :window, :], k[..., : 2 * window, :], v[..., : 2 * window, :]
        first = self.attend_masked(*of_first, mask)
        if len(keys) == len(near):
            return first
        return torch.cat((first, self._later(q, k[..., window:, :], v[..., window:, :])), -2)

    def _keep(self, cache, k, v, pos):
        """Writes the last W of these tokens into the cache -> its keys and values"""
        new = pos[-self.window :]
        for held, one in zip(cache[:2], (k, v), strict=True):
            held.index_copy_(-2, new % self.window, one[..., -len(new) :, :].to(held.dtype))
        return cache[:2]

    def _seen(self, pos, keys):
        """[T, S] bool: which keys, at these positions, are in the windows of queries at pos"""
        return (keys <= pos[:, None]) & (keys > pos[:, None] - self.window)

    def attend(self, q, k, v):
        if q.shape[-2] <= self.window:
            return super().attend(q, k, v)
        first = super().attend(*(one[..., : self.window, :] for one in (q, k, v)))
        return torch.cat((first, self._later(q, k, v)), -2)

    def _later(self, q, k, v):
        """The part of `attend` from token W on: [B, H, T - W, D]"""
        length, window = q.shape[-2], self.window
        pieces, batch = -(-length // window), len(q)
        q, k, v = (F.pad(one, (0, 0, 0, pieces * window - length)) for one in (q, k, v))

        def apart(rows, width):
            """[B, H, .., D] -> pieces of so many rows, each begun W later, [B pieces, H, width, D]"""
            return rows.unfold(-2, width, window).permute(0, 2, 1, 4, 3).flatten(0, 1)

        place = torch.arange(2 * window, device=q.device)
        mask = self._seen(place[window:], place)
        out = self.attend_masked(
            apart(q[..., window:, :], window), apart(k, 2 * window), apart(v, 2 * window), mask
        )
        return out.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[..., : length - window, :]

    def visible(self, pos, length):
        """As in the base class, of the rows of the cache."""
        return causal_mask(pos, length)[None]

    @classmethod
    def idle_keys(cls, config):
        """A window of the whole text is softmax attention."""
        return {"attention_window"} if window_of(config) >= config.block_size else set()

    @classmethod
    def cached_values(cls, config):
        """Per past token: none. The window has 2 W p_kv numbers."""
        return 0

    @classmethod
    def flops_per_token(cls, config, context):
        return super().flops_per_token(config, min(context, window_of(config)))


def window_of(config) -> int:
    """W"""
    return max(1, config.block_size // 4) if config.attention_window is None else config.attention_window
