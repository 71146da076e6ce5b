"""A pretrained GPT with a linear head over the classes that reads the last token."""

import torch
from torch import nn
from torch.nn import functional as F

from model import GPT


class Classifier(nn.Module):
    """logits = W norm(x_last), W in R^{classes x C}, x the residual stream after the last block.

    Padding is on the right, after the last token of a text. All mixers are causal, and positions count from
    the left, so padding does not change the head's input.
    """

    def __init__(self, model: GPT, classes: int):
        super().__init__()
        self.model = model
        self.classes = nn.Linear(model.config.n_embd, classes, bias=False)
        nn.init.normal_(self.classes.weight, std=0.02)

    def forward(self, tokens, lengths, labels=None):
        """tokens: [B, T] int64, lengths: [B] int64 from 1 to T -> logits [B, classes] float32.

        With labels [B] int64, returns the sum of the batch's cross-entropies in nats instead.
        """
        x = self.model.hidden(tokens)
        last = x[torch.arange(len(x), device=x.device), lengths - 1]
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would make logits of a text equal
            logits = self.classes(last.float())
        return logits if labels is None else F.cross_entropy(logits, labels, reduction="sum")
