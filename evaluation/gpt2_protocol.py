"""Perplexity as OpenAI measured it for GPT-2 (Radford et al. 2019, section 3.1), as far as this is known.

    perplexity = exp(summed nats / words),    words: those of the data set as published

The data sets were published tokenized: "M @-@ 82", "do n't", spaces before full stops. A model of plain
text gets them de-tokenized. Its nats are divided by the words of the published text, so that models with
different tokenizers can be compared. For LAMBADA only the final words are scored, each given its context.

OpenAI's de-tokenizers are not public. These are our own, so figures may differ from OpenAI's. Ends of lines
and sentences do not count as words here.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from evaluation import EvaluationError
from evaluation.models import Loaded
from evaluation.perplexity import perplexity
from evaluation.texts import Documents, Text

CLOSING = r"([.,;:!?%)\]}])"
CONTRACTIONS = r"(n't|'(?:s|re|ve|ll|d|m)\b)"


def wikitext(text: str) -> str:
    """De-tokenizes a line of WikiText: hyphens and separators between @, spaces around punctuation."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(rf" {CLOSING}(?=\s|$)", r"\1", text)
    text = re.sub(r"([(\[{]) ", r"\1", text)
    text = re.sub(r'(^|\s)" (.*?) "(?=\W|$)', r'\1"\2"', text)
    return re.sub(rf" {CONTRACTIONS}", r"\1", text)


def penn_treebank(text: str) -> str:
    """De-tokenizes a sentence of the Penn Treebank, which has no punctuation and N instead of numbers."""
    text = re.sub(rf" {CONTRACTIONS}", r"\1", text)
    return re.sub(r"\$ N", "$N", text)


def billion_words(text: str) -> str:
    """De-tokenizes a sentence of the One Billion Word Benchmark."""
    text = re.sub(rf" {CLOSING}(?=\s|$)", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    text = re.sub(r'(^|\s)" (.*?) "(?=\W|$)', r'\1"\2"', text)
    return re.sub(rf" {CONTRACTIONS}", r"\1", text)


@dataclass(frozen=True)
class Rule:
    """How a data set becomes plain text. between: the text between rows; None: each row by itself."""

    detokenize: Callable[[str], str]
    between: str | None


# data sets in the tables of both papers; only CoFrGeNet's also has AG News
RULES = {
    "wikitext2": Rule(wikitext, "\n"),
    "wikitext103": Rule(wikitext, "\n"),
    "ptb": Rule(penn_treebank, " "),
    "lm1b": Rule(billion_words, None),
}
FINAL_WORD = ("lambada",)


def check_texts(names: list[str]):
    """Raises EvaluationError for a text whose published form is not known."""
    if unknown := [name for name in names if name not in RULES and name not in FINAL_WORD]:
        raise EvaluationError(
            f"protocol=gpt2 undoes the tokenization of {', '.join([*RULES, *FINAL_WORD])}, and "
            f"{', '.join(unknown)} is none of them: take protocol=raw, or other --texts"
        )


def score(loaded: Loaded, text: Text, stride: int, window: int | None, batch_size: int, label: str) -> dict:
    """Nats per word (`loss`), perplexity, words and tokens scored, and for LAMBADA the accuracy.

    text: one of `RULES` or `FINAL_WORD`, in the form of the hub. Other arguments: see
    `perplexity.perplexity`.
    """
    if text.name in FINAL_WORD:
        return final_words(loaded, text.documents, batch_size, label)
    plain, words = plain_text(text)
    streams, sizes = plain.sized(loaded.tokenizer)
    found = perplexity(loaded, streams, stride, window, batch_size, label, sizes)
    nats = found["loss"] * found["tokens"]
    more = {"loss": nats / words, "perplexity": math.exp(min(nats / words, 700)), "words": words}
    return found | more | {"protocol": "gpt2"}


def plain_text(text: Documents) -> tuple[Documents, int]:
    """(the de-tokenized text, the number of words of its published form)"""
    rule = RULES[text.name]
    rows = [row.strip() for row in text.documents]
    words = sum(len(row.split()) for row in rows)
    rows = [rule.detokenize(row) for row in rows]
    if rule.between is not None:
        rows = [rule.between.join(rows)]
    return Documents(text.name, "separate", text.stride, text.source, rows), words


@torch.no_grad()
def final_words(loaded: Loaded, texts: list[str], batch_size: int, label: str | None = None) -> dict:
    """Scores the last word of each text, given the text before it.

    Returns the perplexity per word, and as accuracy the share of words of which every token is the
    likeliest one. Contexts that are too long lose their beginning.
    """
    examples = []
    for text in texts:
        context, space, word = text.strip().rpartition(" ")
        if not space:
            raise EvaluationError(f"{text!r} is a single word: its last word has no context")
        # not the word by itself, before which some tokenizers put a space of their own
        whole = loaded.tokenizer.encode(f"{context} {word}")
        count = len(loaded.tokenizer.encode(context))
        before, target = whole[:count], whole[count:]
        room = loaded.config.block_size + 1 - len(target)
        given = [loaded.end_of_text, *before][-room:]
        if room < 1:
            raise EvaluationError(f"the word {word!r} is longer than block_size={loaded.config.block_size}")
        examples.append((given, target))
    examples.sort(key=lambda pair: -len(pair[0]) - len(pair[1]))
    nats, right = [], 0
    with tqdm(total=len(examples), unit=" words", desc=label, disable=label is None) as bar:
        for at in range(0, len(examples), batch_size):
            part = examples[at : at + batch_size]
            for loss, hit in _score(loaded, part):
                nats.append(loss)
                right += hit
            bar.update(len(part))
    loss = math.fsum(nats) / len(nats)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700)),
        "bits_per_byte": None,
        "accuracy": right / len(nats),
        "words": len(nats),
        "tokens": sum(len(target) for _, target in examples),
        "window": loaded.config.block_size,
        "stride": None,
        "protocol": "gpt2",
    }


def _score(loaded: Loaded, examples: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """(nats of the target, whether all its tokens are the likeliest) of each (context, target)."""
    longest = max(len(given) + len(target) for given, target in examples) - 1
    tokens = np.full((len(examples), longest), loaded.end_of_text, dtype=np.int64)
    wanted = np.zeros(tokens.shape, dtype=bool)
    for row, (given, target) in enumerate(examples):
        whole = [*given, *target]
        tokens[row, : len(whole) - 1] = whole[:-1]
        wanted[row, len(given) - 1 : len(whole) - 1] = True
    with loaded.autocast():
        at = (torch.from_numpy(array).to(loaded.device) for array in (tokens, wanted))
        logits = loaded.model.logits_at(*at).double().cpu()
    found, start = [], 0
    for _, target in examples:
        rows, ids = logits[start : start + len(target)], torch.tensor(target)
        start += len(target)
        nats = -rows.log_softmax(-1).gather(-1, ids[:, None]).sum().item()
        found.append((nats, bool((rows.argmax(-1) == ids).all())))
    return found
