"""A copy of a model whose weights are laid out once, for steps of one token."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from kernels.autocast import product_dtype, without_autocast
from kernels.linear_cross_entropy import softcapped
from kernels.packed_linear import packed, packed_linear
from models.language_model import LanguageModel


class FrozenLinear(nn.Module):
    """A linear map whose weight has the dtype of its products, and oneDNN's layout where that is faster."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows: int):
        super().__init__()
        dtype = product_dtype(weight)
        self.weight = weight.detach().to(dtype)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.out_features, self.in_features = weight.shape  # as of nn.Linear, which a module may read
        self.packed = packed(self.weight, rows)

    def forward(self, x):
        """x: [.., n_in] -> [.., n_out]"""
        x = x.to(self.weight.dtype)
        if self.packed is None and x.is_cuda and self.bias is not None:
            return F.linear(x, self.weight) + self.bias  # a sum by itself fuses with what follows
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        with without_autocast(x):
            return packed_linear(x, self.packed, self.bias, len(self.weight))


@torch.no_grad()
def prepared(model: LanguageModel, rows: int) -> LanguageModel:
    """A copy to decode with, `rows` sequences at a time. The given model stays as it is; parameters are
    shared, but linear maps have the dtype that autocast gives them here, and on a CPU a copy.

    A module's own `prepare_to_decode()` is called on the copy: it may keep its weights in another layout.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    new = copy.deepcopy(model, shared)
    for name in ("embed", "loss"):  # compiled functions of the given model
        vars(new).pop(name, None)
    # ExPE's columns are multiplied in float32: their weights stay what they are
    exact = getattr(getattr(new, "position", None), "exact_columns", 0)
    for module in list(new.modules()):
        if hasattr(module, "prepare_to_decode"):
            module.prepare_to_decode()
        for name, child in module.named_children():
            if type(child) is nn.Linear and not (name == "qkv" and exact):
                setattr(module, name, FrozenLinear(child.weight, child.bias, rows))
    head, config = FrozenLinear(model.head_weight(), None, rows), model.config
    new.logits = lambda h: softcapped(head(h)[..., : config.vocab_size], config.logit_softcap)
    return new
