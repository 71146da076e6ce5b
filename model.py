"""The language model: embedding -> blocks -> norm -> head, and exact counts of its parameters and FLOPs.

block.py holds a block. What stands behind `attention`, `ffn` and `position` is looked up by name in the
registries of `layers`. `python count.py config/gpt2.py` prints the counts of any config.
"""

import contextlib
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import encoder
from architecture import ModelConfig
from block import Block, Cache, residual_outputs
from kernels.embedding import embedding
from kernels.linear_cross_entropy import CHUNK_BYTES, IGNORED, linear_cross_entropy
from layers import ATTENTION, FFN, POSITION
from layers.cross_attention import CrossAttention
from layers.norm import norm_of
from layers.protocol import Drawn, Part, built, has_nan, keep_constructor_values


class GPT(nn.Module):
    """A language model; its head is tied to the embedding unless tie_embeddings=False.

    With encoder_layers, it is an encoder-decoder, and the embedding and the positional encoding serve both.
    Methods then take `source` ([B, S] int64, padded on the right with any token) and `lengths` ([B] int64,
    the tokens of each source, at least 1), and raise ValueError without them.

    Build it under `torch.device("meta")` for its shapes alone; call `init_weights()` to draw the
    weights. Raises ValueError where the config is not sound or has no vocab_size.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        if wrong := config.check() or ([] if config.vocab_size else ["vocab_size is not set"]):
            raise ValueError("; ".join(wrong))
        self.config = config
        self.activation_checkpointing = False  # True: keep only the blocks' inputs for the backward pass
        self.loss_bytes = None  # float32 logits of the loss at once, in bytes; None: by the device
        self.label_smoothing = 0.0  # of the loss in training; evaluation scores the targets alone
        self.embedding = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.position = built(POSITION[config.position], config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = encoder.Encoder(config) if config.encoder_layers else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = norm_of(config)
        if not config.tie_embeddings:
            self.head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)

    def init_weights(self, holding: Callable = contextlib.nullcontext):
        """Draws all weights, module by module, and returns the model.

        GPT-2's rule: N(0, 0.02), for biases 0, and N(0, 0.02 / sqrt(m)) for the m maps that write to the
        residual stream of a stack: m = 2 n_layer, with an encoder 3 n_layer, in it 2 encoder_layers. The
        deviation of the embedding is `embedding_std` of the positional encoding. A module of
        `layers.protocol.Drawn` draws what is its own. What nobody draws keeps its constructor's values.
        holding(module): a context in which the module's parameters are there, for models of which no
        process holds all (training/sharding.py). Raises ValueError, naming the parameter, where one is
        still without a value.
        """
        residual = residual_outputs(self.blocks, self.config.residual_scale)
        if self.encoder is not None:
            residual |= residual_outputs(self.encoder, (2 * self.config.encoder_layers) ** -0.5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(float("nan"))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = residual.get(id(module), 1.0)
                std = self.position.embedding_std if module is self.embedding else 0.02
                with holding(module):
                    nn.init.normal_(module.weight, std=std * scale)
                    if isinstance(module, nn.Linear) and module.bias is not None:
                        nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                with holding(module):
                    module.reset_parameters()
        for module in self.modules():
            if isinstance(module, Drawn) and module.draws():
                with holding(module):
                    module.init_weights()
        if self.embedding.weight.is_meta:
            return self
        missing = []
        for prefix, part in self.named_modules():
            if isinstance(part, Part):
                with holding(part):
                    keep_constructor_values(part)
                    named = part.named_parameters(prefix)
                    missing += [name for name, parameter in named if has_nan(parameter)]
        if missing:
            missing = list(dict.fromkeys(missing))  # a part may hold another one
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise ValueError(
                f"nothing gives a value to {', '.join(missing[:3])}{more}: set it in the module's __init__ "
                "(torch.empty sets none), or draw it in its init_weights()"
            )
        return self

    def forward(self, tokens, targets=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> logits [B, T, vocab_size]; with targets [B, T] int64 the mean
        cross-entropy in nats (scalar, float32). Padding rows of the embedding get no share of the
        probability. Raises ValueError for T > block_size where attention or position has no more places.
        """
        h = self.hidden(tokens, None, source, lengths)
        return self.logits(h) if targets is None else self.loss(h, targets)

    def stacks(self):
        """All blocks: those of the encoder, and those of the decoder."""
        return [*(self.encoder.blocks if self.encoder is not None else []), *self.blocks]

    def embed(self, tokens, pos):
        """tokens: [B, T] int64, pos: [T] int64 -> [B, T, C], what the first block reads."""
        return self.dropout(self.position.embed(embedding(self.embedding.weight, tokens), pos))

    def encode(self, source, lengths, embed=None, run=encoder.EncoderBlock.__call__):
        """source: [B, S] int64, lengths: [B] int64 -> [B, S, C], what cross-attention reads. embed, run: to
        call compiled code. Raises ValueError as `forward` does.
        """
        if source is None or lengths is None:
            raise ValueError(
                f"this model has encoder_layers={self.config.encoder_layers}: give source and lengths"
            )
        self.check_length(source.shape[1])
        pos = torch.arange(source.shape[1], device=source.device)
        x = (embed or self.embed)(source, pos)
        checkpointing = self.activation_checkpointing and self.training
        return self.encoder(x, self.position, pos, lengths, run, checkpointing)

    def run_blocks(self, x, pos, held=None, run=Block.__call__, memory=None, lengths=None):
        """x: [B, T, C], pos: [T] int64 -> [B, T, C], through all blocks. held: their caches, as
        `Cache.in_use` gives them. run: calls a block, by default uncompiled. memory: of `encode`, or a list
        of one for each block, as `Cache.source` has it.
        """
        checkpointing = self.activation_checkpointing and self.training and held is None
        for number, block in enumerate(self.blocks):
            source = () if memory is None else (memory[number] if held else memory, lengths)
            of_block = held[number] if held else None
            if checkpointing:
                x = checkpoint(run, block, x, self.position, pos, None, *source, use_reentrant=False)
            else:
                x = run(block, x, self.position, pos, of_block, *source)
        return x

    def hidden(self, tokens, cache=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> [B, T, C], what the head reads. With a cache as in `decode`. Raises
        ValueError as `decode` does.
        """
        length = tokens.shape[1]
        self.check_length(length)
        pos, held, memory = torch.arange(length, device=tokens.device), None, None
        if cache is not None:
            pos, held = cache.filled + pos, cache.in_use(length)
        if self.encoder is not None:
            memory, lengths = cache.source if cache else (self.encode(source, lengths), lengths)
        x = self.run_blocks(self.embed(tokens, pos), pos, held, memory=memory, lengths=lengths)
        if cache is not None:
            cache.filled.add_(length)
        return self.norm(x)

    def logits(self, h):
        """h: [..., C] of `hidden` -> [..., vocab_size]"""
        return F.linear(h, self._head())[..., : self.config.vocab_size]

    def loss(self, h, targets):
        """h: [B, T, C] of `hidden`, targets: [B, T] int64 -> the mean cross-entropy of `forward`"""
        keys = (self.config.vocab_size, self.loss_bytes, self.label_smoothing if self.training else 0.0)
        return linear_cross_entropy(h, self._head(), targets, *keys)

    @torch.no_grad()
    def token_losses(self, tokens, targets, source=None, lengths=None):
        """tokens, targets: [B, T] int64 -> the cross-entropy of each target in nats, [B, T] float32, and 0
        where the target is -100, which costs no row of the head. `forward` gives their mean. Raises
        ValueError as `forward` does.
        """
        h = self.hidden(tokens, None, source, lengths)
        scored = targets != IGNORED
        rows = max(1, CHUNK_BYTES["cpu"] // (4 * self.config.padded_vocab_size))
        losses = torch.zeros(targets.shape, device=targets.device)
        parts = []
        for part, target in zip(h[scored].split(rows), targets[scored].split(rows), strict=True):
            logits = self.logits(part).float()
            parts.append(F.cross_entropy(logits, target, reduction="none"))
        losses[scored] = torch.cat(parts)
        return losses

    @torch.no_grad()
    def decode(self, tokens, cache=None, source=None, lengths=None):
        """tokens: [B, T] int64 -> logits of what follows the last one, [B, vocab_size].

        With a cache of `new_cache(B)` the tokens stand after those that are in it, which are seen too, and
        join them: a prompt at once or in pieces, then one token at a time. A step of one token costs
        `flops_per_token(config, tokens so far)`. training/compilation.py does the same, compiled.

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

    def new_cache(self, batch, length=None, dtype=None, source=None, lengths=None):
        """An empty Cache for `batch` sequences of up to `length` tokens each (None: block_size), on the
        model's device; dtype: of what is kept, None for that of the weights. An encoder reads the source
        here, once. Raises ValueError for a length that `forward` would refuse.
        """
        length = self.config.block_size if length is None else length
        self.check_length(length)
        weight = self.embedding.weight
        keys = (batch, length, weight.device, dtype or weight.dtype)
        filled = torch.zeros((), dtype=torch.int64, device=weight.device)
        cache = Cache([block.attention.new_cache(*keys) for block in self.blocks], filled)
        if self.encoder is not None:
            with torch.no_grad():
                memory = self.encode(source, lengths)
                held = [block.cross.keys_and_values(memory) for block in self.blocks]
            cache.source = [tuple(part.to(keys[-1]) for part in one) for one in held], lengths
        return cache

    def _head(self):
        """[padded_vocab_size, C]"""
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight

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
        Raises ValueError for no tokens, and for a window that `forward` would refuse.
        """
        window = window or self.config.block_size
        self.check_length(window)
        context = torch.as_tensor(tokens, device=self.embedding.weight.device)
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


def sample_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    """logits: [vocab_size] or [B, vocab_size] float32 -> token ids, int64 scalar or [B]."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1:], float("-inf"))
    probabilities = logits.softmax(-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        # a token stays if the likelier ones before it do not reach p: the likeliest always does
        kept = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probabilities = torch.zeros_like(kept).scatter(-1, order, kept)
    return torch.multinomial(probabilities, 1, generator=generator)[..., 0]


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, in closed form; the values add up to `GPT(config).parameter_count()`. Those of an
    encoder and of cross-attention are in the parts of the same kind.
    """
    norm = config.n_embd * (1 + (config.bias and config.norm == "layernorm"))
    blocks, norms = config.n_layer + config.encoder_layers, 2 * config.n_layer + 1
    attention = blocks * ATTENTION[config.attention].parameter_count(config)
    if config.encoder_layers:
        attention += config.n_layer * CrossAttention.parameter_count(config)
        norms += config.n_layer + 2 * config.encoder_layers + 1
    return {
        # a head of its own counts here: it is no part of the body either
        "embedding": (2 - config.tie_embeddings) * config.padded_vocab_size * config.n_embd,
        "position": POSITION[config.position].parameter_count(config),
        "attention": attention,
        "ffn": blocks * FFN[config.ffn].parameter_count(config),
        "norm": norms * norm,
    }


def flops_per_token(config: ModelConfig, context: int | None = None) -> int:
    """Forward model FLOPs per token at a context length (block_size unless given); training takes
    three times as many. Matrix products only, the head included, causal attention counted in full, as
    nanoGPT and PaLM count. Of an encoder-decoder: for one token of the source and one of the target, of
    `context` tokens each.
    """
    context = context or config.block_size
    block = ATTENTION[config.attention].flops_per_token(config, context)
    block += FFN[config.ffn].flops_per_token(config, context)
    total = (config.n_layer + config.encoder_layers) * block
    if config.encoder_layers:
        total += config.n_layer * CrossAttention.flops_per_token(config, context)
    return total + 2 * config.n_embd * config.padded_vocab_size


def cache_bytes_per_token(config: ModelConfig) -> int:
    """Bytes in bfloat16 that decoding keeps for each token of the past, in all layers; of an
    encoder-decoder, for each of the source and of the past together.
    """
    values = ATTENTION[config.attention].cached_values(config)
    if config.encoder_layers:
        values += CrossAttention.cached_values(config)
    return 2 * config.n_layer * values


def without_embeddings(counts: dict[str, int]) -> int:
    """Parameters without token and position embeddings; counts: of `parameter_counts`."""
    return sum(counts.values()) - counts["embedding"] - counts["position"]
