"""No n-gram twice: the rule that keeps greedy and beam search from going round in circles.

Paulus et al. 2018, "A deep reinforced model for abstractive summarization", section 2.5.
"""

import torch


def without_repeats(text, logits, size: int, end: int, start: int = 0):
    """Sets the logits of all tokens that would repeat an n-gram of `size` tokens to -inf.

    text: [B, T] int64, all tokens so far; only n-grams that begin at `start` or later count. logits: [B,
    vocab_size] of what follows, or log-probabilities. `end` is always allowed: otherwise a text could not
    end where its prompt has an end-of-text. Returns [B, vocab_size].
    """
    text = text[:, start:]
    if text.shape[1] < size:
        return logits
    grams = text.unfold(1, size, 1)
    last = text[:, text.shape[1] - size + 1 :]
    begun = (grams[..., :-1] == last[:, None]).all(-1)
    vocabulary = logits.shape[-1]
    # what is not repeated goes to a column of its own, which is cut off
    follows = torch.where(begun & (grams[..., -1] < vocabulary), grams[..., -1], vocabulary)
    banned = torch.zeros(len(text), vocabulary + 1, dtype=torch.bool, device=text.device)
    banned = banned.scatter(1, follows, True)[:, :vocabulary]
    banned[:, end] = False
    return logits.masked_fill(banned, float("-inf"))
