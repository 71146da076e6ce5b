"""A pretrained GPT with a linear head over the classes, which reads the last token."""

import torch
from torch import nn
from torch.nn import functional as F

from model import GPT


class Classifier(nn.Module):
    """logits = W norm(x_last), W in R^{classes x C}, x the residual stream behind the last block.

    Padding stands on the right, behind the last token of a text. No mixer lets a token see what comes
    after it, and positions count from the left, so that padding changes nothing of what the head reads.
    """

    def __init__(self, model: GPT, classes: int):
        super().__init__()
        self.model = model
        self.classes = nn.Linear(model.config.n_embd, classes, bias=False)
        nn.init.normal_(self.classes.weight, std=0.02)

    def forward(self, tokens, lengths, labels=None):
        """tokens: [B, T] int64, lengths: [B] int64, from 1 to T -> logits [B, classes] float32; with labels
        [B] int64 the sum of the batch's cross-entropies in nats.
        """
        x = self.model.hidden(tokens)
        last = x[torch.arange(len(x), device=x.device), lengths - 1]
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would make scores of one text tie
            logits = self.classes(last.float())
        return logits if labels is None else F.cross_entropy(logits, labels, reduction="sum")
