"""What every language model here does with its hidden states and its head: losses, logits, generation."""

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn import functional as F

from kernels.linear_cross_entropy import CHUNK_BYTES, IGNORED, linear_cross_entropy, softcapped


class LanguageModel(nn.Module, ABC):
    """A causal language model: logits = h W^T of `hidden` and `head_weight`, which a subclass defines.

    A subclass sets `config`, whose block_size and vocab_size are read here, and defines `hidden`,
    `head_weight`, `new_cache` and `init_weights`.

    source, lengths of its methods are for a model with an encoder, which raises ValueError without them:
    [B, S] int64, padded on the right with any token, and [B] int64, the tokens of each, at least 1.
    """

    def __init__(self):
        super().__init__()
        self.loss_bytes = None  # float32 logits of the loss at once, in bytes; None: by the device
        self.label_smoothing = 0.0  # of the loss in training; evaluation scores the targets alone

    @abstractmethod
    def hidden(self, tokens, cache=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> [B, T, C], what the head reads. With a cache as in `decode`. Raises
        ValueError as `decode` does.
        """

    @abstractmethod
    def head_weight(self) -> torch.Tensor:
        """W: [at least vocab_size, C]; rows from vocab_size on are padding."""

    @abstractmethod
    def new_cache(self, batch, length=None, dtype=None, source=None, lengths=None):
        """An empty cache for `batch` sequences of up to `length` tokens each (None: block_size), on the
        model's device; dtype: of what is kept, None for that of the weights. An encoder reads the source
        here, once. Raises ValueError for a length that `forward` would refuse.
        """

    @property
    def device(self) -> torch.device:
        return self.head_weight().device

    def stacks(self) -> list:
        """All blocks of the model."""
        return [*self.blocks]

    def forward(self, tokens, targets=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> logits [B, T, vocab_size]; with targets [B, T] int64 the mean
        cross-entropy in nats (scalar, float32). Padding rows of the embedding get no share of the
        probability. Raises ValueError for T > block_size where attention or position has no more places.
        """
        h = self.hidden(tokens, None, source, lengths)
        return self.logits(h) if targets is None else self.loss(h, targets)

    def logits(self, h):
        """h: [..., C] of `hidden` -> [..., vocab_size]"""
        return softcapped(self.scores(h), self.config.logit_softcap)

    def scores(self, h):
        """`logits` before the cap"""
        return F.linear(h, self.head_weight())[..., : self.config.vocab_size]

    def loss(self, h, targets):
        """h: [B, T, C] of `hidden`, targets: [B, T] int64 -> the mean cross-entropy of `forward`"""
        keys = (self.config.vocab_size, self.loss_bytes, self.label_smoothing if self.training else 0.0)
        return linear_cross_entropy(h, self.head_weight(), targets, *keys, self.config.logit_softcap)

    @torch.no_grad()
    def token_losses(self, tokens, targets, source=None, lengths=None):
        """tokens, targets: [B, T] int64 -> the cross-entropy of each target in nats, [B, T] float32, and 0
        where the target is -100, which costs no row of the head. `forward` gives their mean. Raises
        ValueError as `forward` does.
        """
        h = self.hidden(tokens, None, source, lengths)
        scored = targets != IGNORED
        rows = max(1, CHUNK_BYTES["cpu"] // (4 * len(self.head_weight())))
        losses = torch.zeros(targets.shape, device=targets.device)
        parts = []
        for part, target in zip(h[scored].split(rows), targets[scored].split(rows), strict=True):
            logits = softcapped(self.scores(part).float(), self.config.logit_softcap)
            parts.append(F.cross_entropy(logits, target, reduction="none"))
        losses[scored] = torch.cat(parts)
        return losses

    @torch.no_grad()
    def decode(self, tokens, cache=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> logits of what follows the last one, [B, vocab_size].

        With a cache of `new_cache(B)` the tokens stand after those that are in it, which are seen too, and
        join them: a prompt at once or in pieces, then one token at a time. A step of one token costs
        `flops_per_token(config, tokens so far)`; a window of attention is read whole from the first on.

        Raises ValueError as `forward` does, and for tokens that the cache has no room for.
        """
        return self.logits(self.hidden(tokens, cache, source, lengths)[:, -1])

    @torch.no_grad()
    def logits_at(self, tokens, wanted, cache=None):
        """tokens: [B, T] int64, wanted: [B, T] bool -> logits of what follows each wanted token, one row
        after the other, [wanted, vocab_size]; the others cost no row of the head. With a cache as in
        `decode`. Raises ValueError as `decode` does.
        """
        return self.logits(self.hidden(tokens, cache)[wanted])

    def check_length(self, length: int):
        """Raises ValueError, naming the parts at fault, where the model cannot see so many tokens."""
        if length > self.config.block_size and (limits := self.config.length_limits()):
            raise ValueError(
                f"{length} tokens do not fit into block_size={self.config.block_size}, "
                f"which is the end for {' and '.join(limits)}"
            )

    @torch.no_grad()
    def generate(
        self, tokens, max_new_tokens, temperature=1.0, top_k=None, top_p=None, generator=None, below=None,
        window=None, step=None, forbid=None, source=None, lengths=None,
    ):  # fmt: skip
        """Yields one token id after the other; of a batch, one int64 [B] after the other.

        tokens: list of ids, not empty, or [B, T] int64: equally long prompts. temperature 0 takes the
        likeliest token; top_k keeps the k likeliest, top_p the fewest whose probabilities reach p; only
        ids below `below` are drawn. step: decodes one token with a cache in place of `decode`, which it is
        when compiled. forbid(text [B, T], logits [B, vocab_size]) -> logits, -inf where a token must not
        follow; it sees the whole text.

        Up to `window` tokens (None: block_size) a step decodes one token with a cache. From then on the
        window slides: the model sees the last tokens, at positions counted from the window's start, and
        each step computes all of the window. With absolute positions (learned, sinusoidal, ExPE; CAttnM's
        columns, CAttnU, the Synthesizer, BigBird's blocks) every token's part moves by one at a slide.
        RoPE, distances (`cattn_relative`) and no position do not notice it, but from the second
        block on the cache has seen tokens that left.
        Raises ValueError for no tokens, and for a window that `forward` would refuse; FloatingPointError
        where the first logits are not finite.
        """
        window = window or self.config.block_size
        self.check_length(window)
        context = torch.as_tensor(tokens, device=self.device)
        single = context.dim() == 1
        context = context[None] if single else context
        text = None if forbid is None else context
        context = context[:, -window:]
        batch, length = context.shape
        if not length:
            raise ValueError("there are no tokens to continue: give end-of-text for a new document")
        # the last token that is drawn is never read
        room, of_source = min(window, length + max_new_tokens - 1), {}
        if source is not None:
            of_source = {"source": source, "lengths": lengths}
        cache = self.new_cache(batch, room, **of_source) if length < window else None
        unread = context
        for count in range(max_new_tokens):
            if length + count > window:
                unread, cache = context, None
            if cache is None:
                logits = self.decode(unread, None, **of_source)[:, :below].float()
            else:
                logits = (step if step and count else self.decode)(unread, cache)[:, :below].float()
            if not count:
                check_finite(logits)
            if forbid is not None:
                logits = forbid(text, logits)
            token = sample_token(logits, temperature, top_k, top_p, generator)
            yield int(token) if single else token
            unread = token[:, None]
            context = torch.cat((context, unread), dim=1)[:, -window:]
            if forbid is not None:
                text = torch.cat((text, unread), dim=1)

    def parameter_count(self) -> int:
        """Parameters as stored, every padding row included."""
        return sum(p.numel() for p in self.parameters())


def check_finite(logits):
    """Raises FloatingPointError where one is not."""
    if not logits.isfinite().all():
        raise FloatingPointError("the model's outputs are not finite, so no token can be chosen")


def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    """logits: [vocab_size] or [B, vocab_size] float32 -> token ids, int64 scalar or [B].

    Exactly top_k tokens are kept; of equal logits, those with the lower ids.
    """
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        last = logits.topk(top_k).values[..., -1:]
        above, equal = logits > last, logits == last
        kept = above | equal & (equal.cumsum(-1) <= top_k - above.sum(-1, keepdim=True))
        logits = logits.masked_fill(~kept, float("-inf"))
    probabilities = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        # a token stays if the likelier ones before it do not reach p: the likeliest always does
        kept = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probabilities = torch.zeros_like(kept).scatter(-1, order, kept)
    return torch.multinomial(probabilities, 1, generator=generator)[..., 0]
