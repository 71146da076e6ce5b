"""A step of one token in five kernels a block, for a GPU: see `kernels/gemv_triton.py`.

    softmax attention                 CAttnM
    1. norm, q, k and v               1. norm, values, partial denominators
    2. attention, in parts            2. scores
    3. their sum, projection          3. weighted values, in parts

    MLP                               CffnGated
    4. norm, W_1, activation          4. norm, gate
    5. W_2                            5. U h, partial denominators

What a block leaves to be added (parts of the values, V z) is added where the next kernel reads its input.
"""

import torch

from kernels.decode_attention_triton import split_attention, weighted_values
from kernels.gemv_triton import WIDEST, Ladders, Rows, Written, gemv
from kernels.linear_cross_entropy import softcapped
from layers import POSITION
from layers.attention import SoftmaxAttention
from layers.cattn_m import CAttnM, heads_of, value_width_of
from layers.cffn import CffnGated, is_glu
from layers.feedforward import MLP
from layers.position import LearnedPosition, NoPosition, SinusoidalPosition
from models.architecture import ModelConfig
from models.cache import Cache
from models.language_model import LanguageModel


def unfit(config: ModelConfig) -> str:
    """Why such steps cannot decode models of this config, or "" if they can."""
    if config.model != "gpt" or config.encoder_layers or config.value_embeddings:
        return "they are for decoders of model=gpt without value embeddings"
    if POSITION[config.position] not in (NoPosition, LearnedPosition, SinusoidalPosition):
        return f"they know no position={config.position}"
    parts, width = config.parts(), config.n_embd
    whole = config.cf_control == "none" and config.cf_impl == "continuant"
    columns = whole and CAttnM.is_collapsed(config) and not config.cattn_proj
    columns = columns and heads_of(config) == 1 and value_width_of(config) == width
    softmax = not (config.token_shift or config.qk_norm)
    known = {SoftmaxAttention: softmax, CAttnM: columns}
    if not all(known.get(mixer) for mixer in parts["attention"]):
        return f"they know no attention={config.attention} with these keys"
    known = {MLP: True, CffnGated: whole and not is_glu(config)}
    if not all(known.get(mixer) for mixer in parts["ffn"]):
        return f"they know no ffn={config.ffn} with these keys"
    widest = max(width, MLP.hidden(config)) if MLP in parts["ffn"] else width
    return f"they take widths up to {WIDEST:,}, not {widest:,}" if widest > WIDEST else ""


class FusedStep:
    """`LanguageModel.decode` for one token of few sequences, with float32 sums and logits.

    copy: a model of `prepared`. Raises ValueError for one that `unfit` names a reason for, and a
    step does for more sequences than `gemv_triton.MOST_ROWS`.
    """

    def __init__(self, copy: LanguageModel):
        if reason := unfit(copy.config):
            raise ValueError(f"fused steps cannot decode this model: {reason}")
        self.model, self.layers = copy, []
        for block in copy.blocks:
            attend = Softmax if type(block.attention) is SoftmaxAttention else Columns
            self.layers.append((attend(block), (Perceptron if type(block.ffn) is MLP else Gated)(block)))

    def __call__(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """tokens: [B, 1] int64; cache: with room for one more -> logits, [B, vocab_size] float32"""
        model, filled = self.model, cache.filled
        rows = Rows(model.embed(tokens, filled[None])[:, 0].float().contiguous())
        for (attend, feed), held in zip(self.layers, cache.blocks, strict=True):
            rows = feed(attend(rows, held, filled))
        logits = gemv(rows, model.head_weight(), norm=model.norm)
        filled.add_(1)
        return softcapped(logits[:, : model.config.vocab_size], model.config.logit_softcap)


class Softmax:
    def __init__(self, block):
        self.norm, self.qkv, self.proj = block.norm1, block.attention.qkv, block.attention.proj

    def __call__(self, rows, held, filled):
        x, keep = kept(rows)
        written = Written(held, filled)
        q = gemv(rows, self.qkv.weight, self.qkv.bias, self.norm, keep_x=keep, written=written)
        parts, stats = split_attention(q, *held, filled)
        summed = Rows(x, "heads", parts, stats=stats)
        return Rows(gemv(summed, self.proj.weight, self.proj.bias, residual=x))


class Columns:
    def __init__(self, block):
        mixer = block.attention
        self.norm, self.strict, width = block.norm1, mixer.strict, mixer.ladders.n_in
        value = mixer.value.weight
        weight, bias, self.ladders = stacked(mixer.ladders, value.dtype)
        self.weight, self.bias = torch.cat((weight, value)), torch.cat((bias, bias.new_zeros(len(value))))
        self.U, self.V = mixer.by_column[0, :, :width].contiguous(), mixer.columns[0, width:]
        self.intercept = None if mixer.intercept is None else mixer.intercept[0]

    def __call__(self, rows, held, filled):
        (x, keep), h = kept(rows), torch.empty_like(rows.x)
        written = Written(held, filled)
        a = gemv(rows, self.weight, self.bias, self.norm, keep_x=keep, keep_h=h, written=written)
        scored = self.ladders._replace(a=a), self.V, filled
        scores = gemv(Rows(h), self.U, self.intercept, scored=scored)
        return Rows(x, "parts", weighted_values(scores, held[0], filled, self.strict))


class Perceptron:
    def __init__(self, block):
        self.norm, self.up, self.down = block.norm2, block.ffn.up, block.ffn.down
        self.activation = block.ffn.activation
        if self.activation == "gelu" and block.ffn.approximation == "tanh":
            self.activation = "gelu_tanh"

    def __call__(self, rows):
        x, keep = kept(rows)
        h = gemv(rows, self.up.weight, self.up.bias, self.norm, self.activation, keep_x=keep)
        return Rows(gemv(Rows(h), self.down.weight, self.down.bias, residual=x))


class Gated:
    def __init__(self, block):
        self.norm, self.gate, U = block.norm2, block.ffn.gate.weight, block.ffn.ladders.U
        self.V = block.ffn.ladders.V.weight.T.contiguous()
        weight, bias, self.ladders = stacked(block.ffn.ladders, U.weight.dtype)
        of_U = bias.new_zeros(len(U.weight)) if U.bias is None else U.bias.float()
        self.weight, self.bias = torch.cat((U.weight, weight)), torch.cat((of_U, bias))
        self.width = len(of_U)

    def __call__(self, rows):
        x, keep = kept(rows)
        h = gemv(rows, self.gate, None, self.norm, "gate", keep_x=keep)
        linear, a = gemv(Rows(h), self.weight, self.bias).tensor_split([self.width], 1)
        return Rows(x, "ladders", linear, self.ladders._replace(a=a), self.V)


def kept(rows):
    """-> (x with what is added to it; the same tensor if a kernel has still to fill it, else None)"""
    if rows.added == "none":
        return rows.x, None
    x = torch.empty_like(rows.x)
    return x, x


def stacked(ladders, dtype):
    """-> W: [parts d L, n_in] in this dtype, b: [parts d L] float32, and the fractions, without their a.

    Weights of another dtype have a high and a low part: partial denominators are not rounded.
    """
    W, b = ladders.stacked
    high = W.to(dtype)
    parts = [high] if W.dtype == dtype else [high, (W - high.to(W.dtype)).to(dtype)]
    bias = torch.zeros(len(parts) * len(W), device=W.device)
    if b is not None:
        bias[: len(W)] = b.flatten()
    fraction = ladders.fraction
    clipped = (fraction.z_min, fraction.z_max) if fraction.has_range and fraction.clip else (None, None)
    positive = fraction.pole == "positive"
    constant = fraction.floor if positive else fraction.eps
    shape = ladders.depth, ladders.ladders, positive, constant, len(parts)
    return torch.cat(parts), bias, Ladders(None, *shape, *clipped)
