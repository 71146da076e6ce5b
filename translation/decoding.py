"""SourceTexts -> translations, in batches of equally long sources, with a cache.

A prompt is what stands before a target in training: end-of-text, source, end-of-text, and for an
encoder-decoder, which gets the source by itself, end-of-text alone. A translation ends with end-of-text.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from tqdm import tqdm

from decoding.beam import beam_search
from decoding.decoder import Decoder
from decoding.no_repeat import without_repeats
from evaluation.models import Loaded

EXTRA = 50  # tokens by which a translation may be longer than its source (Vaswani et al. 2017, section 6.1)


@dataclass
class Decoding:
    """How translations are found; the keys are those of translate.py."""

    beams: int | None = None
    length_penalty: float = 1.0
    no_repeat_ngram: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1337
    max_new_tokens: int | None = None
    batch_size: int = 32

    def __str__(self):
        if self.beams is not None:
            name = f"{self.beams} beams, length_penalty {self.length_penalty:g}"
        elif self.temperature == 0:
            name = "greedy"
        else:
            name = f"temperature {self.temperature:g}, top_k {self.top_k}, top_p {self.top_p}"
            name += f", seed {self.seed}"
        return name + (f", no_repeat_ngram {self.no_repeat_ngram}" if self.no_repeat_ngram else "")


def translate(
    loaded: Loaded, sources: list[list[int]], how: Decoding, progress: str | None = None
) -> list[list[int]]:
    """The tokens of each source -> those of its translation, without end-of-text, in the same order.

    Each source and its two end-of-text tokens must fit into the model's block. progress: the label of a
    progress bar, None for no bar. Unless tokens are drawn, equal sources are translated once.
    """
    drawn = how.beams is None and how.temperature > 0
    alike = defaultdict(list)  # places of equal sources
    for place, source in enumerate(sources):
        alike[place if drawn else tuple(source)].append(place)
    different = [sources[places[0]] for places in alike.values()]
    shared = list(alike.values())
    generator = torch.Generator(device=loaded.device).manual_seed(how.seed)
    step = Decoder(loaded.model)
    found: list[list[int]] = [[] for _ in sources]
    with tqdm(total=len(sources), desc=progress, unit="text", disable=progress is None) as bar:
        for batch in batches(different, how.batch_size):
            with loaded.autocast():
                written = _decoded(loaded, step, [different[number] for number in batch], how, generator)
            for number, tokens in zip(batch, written, strict=True):
                for place in shared[number]:
                    found[place] = tokens
                bar.update(len(shared[number]))
    return found


def batches(sources: list[list[int]], size: int) -> Iterator[list[int]]:
    """The places of up to `size` equally long sources, the longest first: memory runs out soon or never."""
    by_length = defaultdict(list)
    for place, tokens in enumerate(sources):
        by_length[len(tokens)].append(place)
    for length in sorted(by_length, reverse=True):
        places = by_length[length]
        for start in range(0, len(places), size):
            yield places[start : start + size]


def _decoded(loaded: Loaded, step: Decoder, sources, how: Decoding, generator) -> list[list[int]]:
    model, end, length = loaded.model, loaded.end_of_text, len(sources[0])
    if model.config.encoder_layers:
        prompts = [[end]] * len(sources)
        read = {
            "source": torch.tensor(sources, device=loaded.device),
            "lengths": torch.full((len(sources),), length, device=loaded.device),
        }
    else:
        prompts, read = [[end, *source, end] for source in sources], {}
    prompt = len(prompts[0])
    # both models have room for the same targets; the last token is never read
    new = min(loaded.block_size - 1 - length, how.max_new_tokens or length + EXTRA)
    forbid = None
    if how.no_repeat_ngram:
        # a translation may repeat its source, such as a name, but not itself
        forbid = partial(without_repeats, size=how.no_repeat_ngram, end=end, start=prompt)
    keys = {"forbid": forbid, "below": loaded.tokenizer.vocab_size, "step": step, **read}
    if how.beams is not None:
        searched = beam_search(model, prompts, how.beams, new, end, how.length_penalty, **keys)
        return [ranked[0].tokens for ranked in searched]
    drawn = (how.temperature, how.top_k, how.top_p, generator)
    written, running = [[] for _ in prompts], set(range(len(prompts)))
    for tokens in model.generate(torch.tensor(prompts), new, *drawn, **keys):
        for place, token in enumerate(tokens.tolist()):
            if token == end:
                running.discard(place)
            elif place in running:
                written[place].append(token)
        if not running:
            break
    return written
