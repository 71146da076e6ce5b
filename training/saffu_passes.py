"""What the explicit start of a SAFFU sums over the data, pass by pass, and what it writes down from it.

    counts     the targets                 -> embeddings by the bit-cipher, hidden targets
    attention  F(Q, V) of each unit        -> W      (equations 6, 19 and 22)
    decoders   F(H, Y) of each unit        -> U      (equation 5)
    head       F(g, Y)                     -> M

Initialisation makes these passes in this order; V comes from the embeddings, because there is no U yet. A
tuning pass repeats the last three, with V from the weights of the pass before (section 2.4):

    V_m[k] = (log E[i_m] - log(E^T y) + c) . X_m[k]           y: the mean of all targets
    V_m[k] = (U[:, i_m] - U softmax(H_m U) + c) . X_m[k]      with hidden bits, U[:, i_m] is U y_m

In cat mode the rows of U come in K groups, and group k meets X_m[k]. Products are float32, sums float64:
sums of shards are equal to the sum of all, to rounding.
"""

import torch

from kernels.linear_cross_entropy import CHUNK_BYTES
from layers import bit_cipher, explicit
from layers.saffu import SPECIAL, Unit, last_ends, products, vectors
from models.saffu import Saffu

CHUNK_TOKENS = 2**14
CHUNK_NUMBERS = 2**25  # of the widest tensor of a chunk, 128 MiB


def plan(config) -> list[tuple[int, str]]:
    """(tuning pass, or 0 for the initialisation; name) of each pass of a run. config: a TrainConfig."""
    if config.saffu_init != "explicit":
        needed = config.saffu_embeddings == "cipher" or config.saffu_init == "prior"
        return [(0, "counts")] if needed else []
    names = ["attention", "decoders", "head"]
    if config.saffu_attention == "uniform":
        names.remove("attention")
    if config.saffu_hidden is None:
        names.remove("head")
    tuning = [(number, name) for number in range(1, config.saffu_tuning + 1) for name in names]
    return [(0, "counts"), *((0, name) for name in names), *tuning]


def chunk_samples(model: Saffu) -> int:
    """Samples that are summed at once, from the model alone, so that a resumed run sums the same chunks."""
    length = model.config.block_size
    widest = max(length + SPECIAL, model.head.shape[1], *(unit.inputs for unit in model.units))
    return max(1, min(CHUNK_TOKENS, CHUNK_NUMBERS // widest) // length)


class Pass:
    """One pass over the data: `zeros`, then `add` for each chunk, then `finish`. config: a TrainConfig."""

    def __init__(self, model: Saffu, config, number: int, name: str):
        self.model, self.config, self.number, self.name = model, config, number, name
        self.vocabulary = len(model.counts)
        self.bits = model.config.saffu_hidden
        if name != "counts" and self.bits is not None:
            self.hidden_targets = bit_cipher.distributions(model.counts, self.bits).float()
        if name == "attention" and number == 0:
            self.of_targets = [self._log_ratios(unit) for unit in model.units]

    def _log_ratios(self, unit: Unit) -> torch.Tensor:
        """log E - log(E^T y): [N, D]"""
        E = unit.embedding.detach()[: self.vocabulary].double()
        mean = (self.model.counts.double() / self.model.counts.sum()) @ E
        return (E.log() - mean.log()).float()

    def zeros(self) -> dict[str, torch.Tensor]:
        """The sums, float64, all 0."""
        units = {unit.kind: unit for unit in self.model.units}
        if self.name == "counts":
            shapes = {"targets": (self.vocabulary,), "special": (SPECIAL,)}
        elif self.name == "attention":
            shapes = {kind: (unit.slots, unit.slots) for kind, unit in units.items()}
        elif self.name == "decoders" and self.bits is not None:
            shapes = {kind: (unit.inputs, self.bits) for kind, unit in units.items()}
        else:
            shapes = {"head": tuple(self.model.head.shape)}
        if self.name == "decoders":
            shapes |= {f"norm of {kind}": () for kind in units}
        keys = {"dtype": torch.float64, "device": self.model.device}
        return {name: torch.zeros(shape, **keys) for name, shape in shapes.items()}

    @torch.no_grad()
    def add(self, sums: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor):
        """tokens, targets: [B, T] int64"""
        getattr(self, f"_add_{self.name}")(sums, tokens, targets)

    @torch.no_grad()
    def finish(self, sums: dict[str, torch.Tensor]):
        """Writes the weights down. Raises ValueError where the sums have no solution."""
        getattr(self, f"_finish_{self.name}")(sums)

    # --- counts ---

    def _add_counts(self, sums, tokens, targets):
        sums["targets"] += targets.flatten().bincount(minlength=self.vocabulary)
        # <sod>: documents that begin; <frg>: other blocks that begin; <pad>: documents that are padded
        ends = last_ends(tokens, self.model.config.saffu_end_of_text)
        before = torch.arange(tokens.shape[1], device=tokens.device) - ends
        length = (self.model.config.saffu_block or tokens.shape[1] + 1) - 1
        begins = (before > 0) & ((before - 1) % length == 0)
        further = (begins & ~((ends >= 0) & (before == 1))).sum()
        starts = (before == 0).sum()
        sums["special"] += torch.stack((starts, further, starts))

    def _finish_counts(self, sums):
        model = self.model
        model.counts.copy_(sums["targets"])
        every = torch.cat((sums["targets"], sums["special"]))
        if self.config.saffu_embeddings == "cipher":
            for unit in model.units:
                unit.embedding.copy_(bit_cipher.embeddings(every, unit.width))
        if self.config.saffu_init == "prior":
            # g has the norm 1 for each unit
            prior = (sums["targets"] + 1) / (sums["targets"] + 1).sum()
            model.head.add_((prior.log() / len(model.units))[:, None])
        elif self.config.saffu_init == "explicit":
            for unit in model.units:
                unit.attention.zero_()

    # --- attention ---

    def _add_attention(self, sums, tokens, targets):
        model, sign = self.model, -1 if self.config.saffu_attention == "negated" else 1
        ids, places = model.contexts(tokens)
        sides = [None] * len(places) if self.number == 0 else self._sides(tokens, targets)
        for number, (unit, place) in enumerate(zip(model.units, places, strict=True)):
            keys = unit.keys(ids)
            if self.number == 0:
                v = products(self.of_targets[number][targets], keys, place)
            elif unit.cat:
                groups = sides[number].unflatten(-1, (unit.slots, unit.width))
                v = (groups * vectors(keys, place)).sum(-1)
            else:
                v = products(sides[number], keys, place)
            v = sign * v.double() + explicit.offset(unit.slots, len(unit.embedding))
            q = unit.queries(keys, place).double()
            sums[unit.kind] += q.flatten(0, 1).T @ v.flatten(0, 1)

    def _sides(self, tokens, targets) -> list[torch.Tensor]:
        """U y_m - U softmax(H_m U) of each unit: [B, T, inputs]"""
        features = self.model.features(tokens)
        if self.bits is not None:
            wanted = self.hidden_targets[targets]
            return [
                (wanted - (h @ unit.decoder).softmax(-1)) @ unit.decoder.T
                for h, unit in zip(features, self.model.units, strict=True)
            ]
        head = self.model.head
        rows = max(1, CHUNK_BYTES["cpu"] // (4 * len(head)))
        h = torch.cat(features, -1).flatten(0, 1)
        found = [head[y] - (part @ head.T).softmax(-1) @ head
                 for part, y in zip(h.split(rows), targets.flatten().split(rows), strict=True)]  # fmt: skip
        widths = [unit.inputs for unit in self.model.units]
        return list(torch.cat(found).unflatten(0, targets.shape).split(widths, -1))

    def _finish_attention(self, sums):
        for unit in self.model.units:
            try:
                unit.attention.copy_(explicit.attention(sums[unit.kind]))
            except ValueError as error:
                raise ValueError(f"the attention of the {unit.kind} unit: {error}") from None

    # --- decoders ---

    def _add_decoders(self, sums, tokens, targets):
        features = self.model.features(tokens)
        for h, unit in zip(features, self.model.units, strict=True):
            sums[f"norm of {unit.kind}"] += h.sum(dtype=torch.float64)
            if self.bits is not None:
                wanted = self.hidden_targets[targets].flatten(0, 1)
                sums[unit.kind] += h.flatten(0, 1).T @ wanted
        if self.bits is None:
            _add_rows(sums["head"], torch.cat(features, -1), targets)

    def _finish_decoders(self, sums):
        config, units = self.config, self.model.units
        primings = [self._priming(unit, sums[f"norm of {unit.kind}"]) for unit in units]
        how = (config.saffu_floor, config.saffu_temperature)
        if self.bits is None:
            self.model.head.copy_(explicit.decoder(sums["head"].T, sum(primings), *how).T)
            return
        for unit, priming in zip(units, primings, strict=True):
            unit.decoder.copy_(explicit.decoder(sums[unit.kind], priming, *how))

    def _priming(self, unit: Unit, norm: torch.Tensor) -> float:
        if self.config.saffu_priming == "bound":
            return explicit.decoder_priming(unit.slots)
        return norm.item() / self.model.counts.sum().item()

    # --- head ---

    def _add_head(self, sums, tokens, targets):
        _add_rows(sums["head"], self.model.hidden(tokens), targets)

    def _finish_head(self, sums):
        priming = self.config.saffu_output_priming or len(self.model.units)
        self.model.head.copy_(explicit.decoder(sums["head"].T, priming, self.config.saffu_floor).T)


def _add_rows(total: torch.Tensor, h: torch.Tensor, targets: torch.Tensor):
    """total: [N, C] += F(h, Y)^T for one-hot Y; h: [B, T, C], targets: [B, T]"""
    total.index_add_(0, targets.flatten(), h.flatten(0, 1).double())


def mistakes(config) -> list[str]:
    """What is wrong with the keys of the start, and which keys a SAFFU has no use for. config: a
    TrainConfig.
    """
    wrong = []
    explicit_only = {"saffu_tuning": 0, "saffu_attention": "printed", "saffu_priming": "bound"}
    explicit_only |= {"saffu_output_priming": None, "saffu_floor": explicit.FLOOR, "saffu_temperature": 1.0}
    for key, default in explicit_only.items():
        if config.saffu_init != "explicit" and getattr(config, key) != default:
            wrong.append(f"{key} acts with saffu_init=explicit only, not with {config.saffu_init}")
    if config.saffu_tuning > 0 and config.saffu_attention == "uniform":
        wrong.append("saffu_tuning tunes the attention: with saffu_attention=uniform there is none")
    if config.saffu_output_priming is not None and config.saffu_hidden is None:
        wrong.append("saffu_output_priming is that of the head behind hidden bits: there are none")
    if config.saffu_embeddings == "random" and config.saffu_init == "explicit":
        wrong.append("saffu_embeddings=random has no explicit solution: it needs embeddings above 0")
    if config.saffu_init == "prior" and config.saffu_hidden is None:
        wrong.append("saffu_init=prior needs hidden bits, whose distributions have a known sum")
    if config.optimizer == "muon":
        wrong.append("optimizer=muon is for linear maps of blocks, and model=saffu has none: take adamw")
    if config.sharding != "none":
        wrong.append(
            f"sharding={config.sharding} gathers one block at a time, and model=saffu has none: every rank "
            "would hold all of it anyway. Take --sharding=none"
        )
    if config.activation_checkpointing:
        wrong.append("activation_checkpointing recomputes blocks, and model=saffu has none: leave it out")
    return wrong
