"""Beam search: the likeliest texts that a search of limited breadth finds.

A text y of n new tokens (end-of-text included) has the score  log p(y) / n^length_penalty.  Each step
keeps the `beams` likeliest unfinished texts. The scores, and the rule that ends a search, are those of
transformers' `generate(num_beams=.., early_stopping=False)`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.language_model import LanguageModel, check_finite

LARGEST_PENALTY = 10  # of both signs; powers of the number of tokens overflow beyond some hundred


@dataclass
class Hypothesis:
    """A text that a search has found."""

    tokens: list[int]  # new ones, without end-of-text
    score: float  # log-probability in nats, divided by the number of tokens to the power length_penalty


@torch.no_grad()
def beam_search(
    model: LanguageModel,
    tokens,
    beams: int,
    max_new_tokens: int,
    end: int,
    length_penalty: float = 1.0,
    forbid: Callable | None = None,
    below: int | None = None,
    window: int | None = None,
    step: Callable | None = None,
    tick: Callable[[], object] = lambda: None,
    source=None,
    lengths=None,
) -> list[list[Hypothesis]]:
    """For each prompt, up to `beams` hypotheses, the best first.

    tokens: [B, T] int64, or lists: equally long prompts, not empty. A text ends at the token `end`, or
    after max_new_tokens. length_penalty: above 0 favours long texts, below 0 short ones. forbid, below,
    window, step, source, lengths: as in `LanguageModel.generate`; forbid gets log-probabilities. tick() is
    called after each step. Raises ValueError as `LanguageModel.generate` does, and FloatingPointError where
    logits are not finite.
    """
    device = model.device
    window = window or model.config.block_size
    model.check_length(window)
    text = torch.as_tensor(tokens, device=device)
    batch, prompt = text.shape
    if not prompt:
        raise ValueError("there are no tokens to continue: give end-of-text for a new document")
    # the last token that is found is never read
    room = min(window, prompt + max_new_tokens - 1)
    of_source = {} if source is None else {"source": source, "lengths": lengths}
    cache = model.new_cache(batch, room, **of_source) if prompt < window else None
    logits = model.decode(text[:, -window:], cache, **of_source).repeat_interleave(beams, 0)
    text = text.repeat_interleave(beams, 0)
    if cache is not None:
        cache = cache.of_rows(torch.arange(batch, device=device).repeat_interleave(beams))
    of_source = {name: held.repeat_interleave(beams, 0) for name, held in of_source.items()}
    running = torch.full((batch, beams), float("-inf"), device=device)
    running[:, 0] = 0.0  # all beams hold the same prompt: only one of them counts
    first_rows = torch.arange(0, batch * beams, beams, device=device)[:, None]
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    done = [False] * batch

    for count in range(1, max_new_tokens + 1):
        logits = logits[:, :below].float()
        check_finite(logits)
        scores = logits.log_softmax(-1)
        if forbid is not None:
            scores = forbid(text, scores)
        vocabulary = scores.shape[-1]
        total = (running.flatten()[:, None] + scores).view(batch, -1)
        # of twice as many, enough go on even if all beams end
        values, places = total.topk(min(2 * beams, total.shape[1]))
        rows, following = first_rows + places // vocabulary, places % vocabulary
        ends = following == end
        last = count == max_new_tokens
        over = (ends | last)[:, :beams] & values[:, :beams].isfinite()
        for place, rank in over.nonzero().tolist():
            if not done[place]:
                new = text[rows[place, rank], prompt:].tolist()
                new += [] if ends[place, rank] else [int(following[place, rank])]
                found[place].append(Hypothesis(new, float(values[place, rank]) / count**length_penalty))
        running, chosen = values.masked_fill(ends, float("-inf")).topk(beams)
        for place, best in enumerate(running[:, 0].tolist()):
            ranked = found[place] = sorted(found[place], key=lambda one: -one.score)[:beams]
            hopeless = len(ranked) == beams and best / count**length_penalty <= ranked[-1].score
            done[place] = done[place] or hopeless or best == float("-inf")
        tick()
        if last or all(done):
            break
        rows, following = (both.gather(1, chosen).flatten() for both in (rows, following))
        text = torch.cat((text[rows], following[:, None]), dim=1)
        if cache is not None and prompt + count > window:
            cache = None
        if cache is None:
            logits = model.decode(text[:, -window:], None, **of_source)
        else:
            cache.reorder(rows)
            logits = (step or model.decode)(following[:, None], cache)
    return found


def mistakes(config) -> list[str]:
    """What is wrong with a script's keys of a search, and with those that act on drawn tokens only."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    if config.beams is None:
        if config.length_penalty == defaults["length_penalty"]:
            return []
        return ["length_penalty acts with beams only: leave it out, or add --beams=5"]
    if not -LARGEST_PENALTY <= config.length_penalty <= LARGEST_PENALTY:
        return [
            f"length_penalty={config.length_penalty} must be in [-{LARGEST_PENALTY}, {LARGEST_PENALTY}]: "
            "beyond, only the length counts"
        ]
    idle = {"temperature": 0, "top_k": None, "top_p": None}
    return [
        f"{key}={value} acts on drawn tokens only, and a search with beams draws none: leave out {key} or "
        "beams"
        for key, nothing in idle.items()
        if (value := getattr(config, key)) not in (nothing, defaults[key])
    ]
