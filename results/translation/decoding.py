"""Greedy decoding with a cache, and the same text with the whole prefix computed for each token.

    OMP_NUM_THREADS=1 python results/translation/decoding.py --out=out/translation_study

Takes the models of seed 1 and random sources of equal length. Both ways must write the same tokens. They
take turns; the figures are medians.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, Python looks for modules in this folder only

from host import interruption, openmp  # noqa: E402, F401 (first, before torch)

import torch  # noqa: E402

import configurator  # noqa: E402
from evaluation import EvaluationError  # noqa: E402
from evaluation.models import Loaded, open_model  # noqa: E402
from reports.markdown_table import table  # noqa: E402
from results.translation.study import MODELS, SMALL  # noqa: E402
from training.checkpoint import CheckpointError  # noqa: E402

BLOCK = 128  # of config/translation.py


@dataclass
class DecodingConfig:
    """Times decoding with and without a cache."""

    out: str = "out/translation_study"  # folder of the study's runs
    sources: int = 32  # at a time
    length: int = 24  # tokens of a source
    tokens: int = 40  # to write
    repetitions: int = 5  # of each way

    def check(self) -> list[str]:
        keys = ("sources", "length", "tokens", "repetitions")
        wrong = [
            f"{key} must be above 0, not {getattr(self, key)}" for key in keys if getattr(self, key) < 1
        ]
        if self.length + self.tokens > BLOCK - 2:
            wrong.append(
                f"length and tokens together must be at most {BLOCK - 2}: models see {BLOCK} tokens"
            )
        return wrong


def prompts(loaded: Loaded, config: DecodingConfig):
    """-> (prompts [B, T], what an encoder reads)"""
    drawn = torch.Generator().manual_seed(1)
    shape = (config.sources, config.length)
    source = torch.randint(loaded.tokenizer.vocab_size, shape, generator=drawn)
    end = torch.full((config.sources, 1), loaded.end_of_text)
    if loaded.model.config.encoder_layers:
        return end, {"source": source, "lengths": torch.full((config.sources,), config.length)}
    return torch.cat((end, source, end), 1), {}


def cached(loaded: Loaded, config: DecodingConfig, prompt, read) -> torch.Tensor:
    below = loaded.tokenizer.vocab_size
    return torch.stack(list(loaded.model.generate(prompt, config.tokens, 0.0, below=below, **read)), 1)


@torch.no_grad()
def recomputed(loaded: Loaded, config: DecodingConfig, prompt, read) -> torch.Tensor:
    text = prompt
    for _ in range(config.tokens):
        logits = loaded.model.decode(text, **read)[:, : loaded.tokenizer.vocab_size]
        text = torch.cat((text, logits.argmax(-1, keepdim=True)), 1)
    return text[:, prompt.shape[1] :]


def measured(loaded: Loaded, config: DecodingConfig) -> dict[str, list[float]]:
    """{way: seconds of each repetition}. Ends the script if the ways write different tokens."""
    given, seconds, texts = prompts(loaded, config), {}, {}
    for repetition in range(config.repetitions + 1):
        for way in (cached, recomputed):
            start = time.perf_counter()
            texts[way] = way(loaded, config, *given)
            if repetition:  # the first one warms up
                seconds.setdefault(way.__name__, []).append(time.perf_counter() - start)
    same = (texts[cached] == texts[recomputed]).float().mean()
    if same < 0.99:  # rounding may decide between two tokens of nearly equal probability
        sys.exit(f"{loaded.path}: only {100 * same:.1f} % of the tokens are the same without a cache")
    return seconds


def main(config: DecodingConfig):
    rows = []
    for model in (model for model in MODELS if model not in SMALL):
        folders = sorted((Path(config.out) / "runs" / model.replace(" ", "_")).glob("*seed=1"))
        if not folders:
            sys.exit(
                f"{config.out} has no run of {model}, seed 1: python results/translation/study.py runs"
            )
        try:
            loaded = open_model(str(folders[0]), "best", of_pairs=True).load("cpu", "float32")
        except (CheckpointError, EvaluationError) as error:
            sys.exit(f"decoding.py: {error}")
        found = measured(loaded, config)
        median = {way: statistics.median(seconds) for way, seconds in found.items()}
        count = config.sources * config.tokens
        ratios = sorted(b / a for a, b in zip(found["cached"], found["recomputed"], strict=True))
        rows.append(
            {
                "model": model,
                "tokens/s with a cache": f"{count / median['cached']:,.0f}",
                "prefix computed again": f"{count / median['recomputed']:,.0f}",
                "ratio": f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} .. {ratios[-1]:.1f})",
            }
        )
        print(f"{model}: {rows[-1]['ratio']}", file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main(configurator.parse(DecodingConfig, sys.argv[1:]))
