"""Translate with a model that was trained on pairs.

    python translate.py out/en_fr --text="Open the file."
    python translate.py out/en_fr --input=text.en --beams=5
    python translate.py out/en_fr --input=text.en --references=text.fr
    python translate.py out/en_fr --pairs=data/pairs/en_fr/val.bin --beams=5 --json=out/en_fr_beams.json

With references, which pairs have, it prints BLEU and chrF beside those of copying the source.
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)
from host.disk import make_folder, unwritable, write_whole

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import configurator
from config_keys import Count, CountOrNone, Seed, ShareOrNone
from corpus import DataError
from decoding import beam
from evaluation import EvaluationError
from evaluation.models import Opened, open_model
from reports.plural import counted
from training.checkpoint import CheckpointError
from training.environment import environment
from training.hardware import DeviceError, choose_device, missing_gpu
from translation import TranslationError, report, scores, sources
from translation.decoding import Decoding, translate
from translation.sources import SourceTexts


@dataclass
class TranslateConfig:
    """Translate with a model that was trained on pairs; keeps a copy in translations.txt."""

    out_dir: str  # run folder of train.py, one checkpoint of it, or a model folder of export.py
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest
    text: str | None = None  # translate this text
    input: str | None = None  # translate each line of this file
    references: str | None = None  # input: a file whose line n translates line n, for BLEU and chrF
    pairs: str | None = None  # translate the sources of a prepared .bin file, or of a folder's val.bin
    limit: CountOrNone = None  # pairs: only the first so many
    max_new_tokens: CountOrNone = None  # most tokens of a translation; None: those of its source and 50
    temperature: float = 0.0  # 0: always the likeliest token; 1: the model's own probabilities
    top_k: CountOrNone = None  # temperature: draw from the k likeliest tokens only; None: from all
    top_p: ShareOrNone = None  # temperature: draw from the likeliest tokens of this probability together
    beams: CountOrNone = None  # search the likeliest text with so many beams; None: token by token
    length_penalty: float = 1.0  # beams: a text's score is log p / tokens^this; above 0 favours long texts
    no_repeat_ngram: CountOrNone = None  # no sequence of so many tokens twice in a translation
    batch_size: Count = 32  # sources of one length that are translated at once; memory grows with beams
    bleu_tokenizer: Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char"] = "auto"  # auto: by script
    json: str | None = None  # new file that gets scores, settings, versions and the commit
    seed: Seed = 1337  # seed of the sampling: same seed, same texts
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"  # dtype of matrix products

    def check(self) -> list[str]:
        wrong = []
        for key in ("input", "references", "pairs"):
            if getattr(self, key) == "":
                wrong.append(f"{key} is empty: name a file")
        given = [key for key in ("text", "input", "pairs") if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"not {' and '.join(given)}" if given else "none is given"
            wrong.append(f"give one of --text=TEXT, --input=FILE and --pairs=FILE.bin: {what}")
        for key, with_key in (("references", "input"), ("limit", "pairs")):
            if getattr(self, key) is not None and getattr(self, with_key) is None:
                wrong.append(f"{key} acts with {with_key} only: leave it out")
        if self.temperature != 0 and not 1e-3 <= self.temperature < float("inf"):
            wrong.append(f"temperature must be 0 or at least 0.001, not {self.temperature}")
        if self.beams is None and self.temperature == 0:
            idle = [key for key in ("top_k", "top_p") if getattr(self, key) is not None]
            wrong += [f"{key} acts with a temperature above 0 only: leave it out" for key in idle]
        wrong += beam.mistakes(self)
        if self.json is not None and not self.json.endswith(".json"):
            wrong.append(f"json must end in .json, not {self.json!r}")
        elif self.json is not None and (reason := unwritable(Path(self.json))):
            wrong.append(f"json={self.json} {reason}")
        elif self.json is not None and self.pairs is None and self.references is None:
            wrong.append("json acts with pairs or references only: without them there are no scores")
        if self.bleu_tokenizer != "auto" and self.pairs is None and self.references is None:
            wrong.append(
                "bleu_tokenizer acts with pairs or references only: without them there are no scores"
            )
        wrong += missing_gpu(self.device)
        return wrong


def main(argv: list[str]):
    config = configurator.parse(TranslateConfig, argv, positional="out_dir")
    how = Decoding(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Decoding)})
    try:
        opened = open_model(config.out_dir, config.which, of_pairs=True)
        sources.check_trained_on_pairs(opened)
        chosen = read(config, opened)
        if chosen.references is not None:
            tokenizer = config.bleu_tokenizer
            tokenizer = scores.tokenizer_of(chosen.references) if tokenizer == "auto" else tokenizer
            scores.check_installed(tokenizer)
        loaded = opened.load(config.device, config.dtype)
        print(f"{loaded.path}, {how}", file=sys.stderr)
        if chosen.left_out:
            print(
                f"left out {counted(chosen.left_out, 'pair')} longer than block_size={loaded.block_size}",
                file=sys.stderr,
            )
        start = time.monotonic()
        tokens = translate(loaded, chosen.tokens, how, None if config.text else "translating")
        seconds = time.monotonic() - start
    except (CheckpointError, DataError, DeviceError, EvaluationError, TranslationError, OSError) as error:
        sys.exit(f"translate.py: {error}")
    except FloatingPointError as error:
        sys.exit(f"translate.py: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"translate.py: out of memory ({str(error).splitlines()[0]}): take a smaller batch_size")
    except KeyboardInterrupt:
        sys.exit("translate.py: interrupted; nothing was written")
    translations = [report.one_line(loaded.tokenizer.decode(ids)) for ids in tokens]
    sys.stdout.reconfigure(errors="replace")  # a terminal may know only ASCII
    # files are written before anything is printed, which nobody may read
    shown, failed = translations, None
    if chosen.references is not None:
        found = report.measured(f"{loaded.name}, {how}", chosen, translations, tokenizer)
        found["seconds"], found["new_tokens"] = seconds, sum(map(len, tokens))
        shown = [report.table(found)]
        if config.json:
            about = {"settings": dataclasses.asdict(config), "sources": chosen.about}
            about |= environment(choose_device(config.device)) | {"model": loaded.facts()}
            try:
                write_json(config.json, {**found, **about})
                shown.append(f"\nnumbers: {config.json}")
            except OSError as error:
                failed = f"translate.py: {error}"
    if (run := Path(config.out_dir) / "ckpt").is_dir():
        heading = f"{loaded.path.name}, {how}, {config.pairs or config.input or 'text'}"
        if not report.keep(run.parent / "translations.txt", heading, chosen, translations):
            failed = failed or 1
    print("\n".join(shown))
    if failed:
        sys.exit(failed)


def read(config: TranslateConfig, opened: Opened) -> SourceTexts:
    if config.text is not None:
        return sources.of_text(config.text, opened)
    if config.input is not None:
        return sources.of_file(config.input, config.references, opened)
    return sources.of_pairs(config.pairs, config.limit, opened)


def write_json(name: str, found: dict):
    path = Path(name)
    make_folder(path.parent)
    if path.exists():
        raise OSError(f"{path} was written by another process meanwhile, and nothing is overwritten")
    write_whole(path, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
