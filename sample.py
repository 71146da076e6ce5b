"""Write text with a trained model.

python sample.py out/demo_dense --start="Fellow citizens," --num_samples=2
python sample.py out/gpt2/ckpt/step_00002000.pt --start=FILE:prompt.txt --temperature=0.7 --top_p=0.95
python sample.py out/demo_dense --interactive
python sample.py out/demo_dense --start="Fellow citizens," --beams=5 --no_repeat_ngram=2
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)
from host.disk import append_whole, refuse_unreadable

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

import configurator
from config_keys import Count, CountOrNone, Seed, ShareOrNone
from corpus import DataError
from corpus.tokenizer import valid_unicode
from decoding import beam
from decoding.decoder import Decoder
from decoding.no_repeat import without_repeats
from models.compilation import missing_for_compile
from reports.plural import counted
from training import pretrained
from training.checkpoint import CheckpointError
from training.hardware import Device, choose_device, choose_dtype, missing_gpu


@dataclass
class SampleConfig:
    """Write text with a trained model; prints as it generates, and keeps a copy in samples.txt."""

    out_dir: str  # run folder of train.py, one checkpoint of it, or a model folder of export.py
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest
    start: str = ""  # prompt; FILE:path reads it from a file; empty: start a new document
    interactive: bool = False  # read prompts from the terminal or a pipe, line by line, and continue each
    num_samples: Count = 1  # how many texts, in interactive use of each prompt
    max_new_tokens: Count = 300  # most tokens of a text; an end-of-text token ends it earlier
    temperature: float = 0.8  # 0: always the likeliest token; 1: the model's own probabilities
    top_k: CountOrNone = 200  # draw from the k likeliest tokens only; None: from all
    top_p: ShareOrNone = None  # draw from the likeliest tokens that together reach this probability
    beams: CountOrNone = None  # search the likeliest text with so many beams; None: draw tokens
    length_penalty: float = 1.0  # beams: a text's score is log p / tokens^this; above 0 favours long texts
    no_repeat_ngram: CountOrNone = None  # write no sequence of so many tokens twice; None: any text
    window: CountOrNone = None  # past tokens that the model sees; None: its block_size
    compile: bool = False  # torch.compile the decoding step; on a CPU, eager steps are about as fast
    seed: Seed = 1337  # seed of the sampling: same seed, same texts
    device: Device = "auto"  # auto: a CUDA GPU if there is one; mps: Apple's, untried
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"  # dtype of the weights, and of their products

    def check(self) -> list[str]:
        wrong = []
        if self.temperature != 0 and not 1e-3 <= self.temperature < float("inf"):
            wrong.append(f"temperature must be 0 or at least 0.001, not {self.temperature}")
        wrong += beam.mistakes(self)
        if self.beams is not None and 1 <= self.beams < self.num_samples:
            wrong.append(
                f"num_samples={self.num_samples}: a search keeps the best {counted(self.beams, 'text')}; "
                f"take at least --beams={self.num_samples}"
            )
        if self.interactive and self.start:
            wrong.append("start acts without interactive only: leave it out, and type it as the first line")
        if self.compile and self.device != "cuda" and (lacks := missing_for_compile()):
            wrong.append(f"compile=True, but torch.compile lacks {' and '.join(lacks)}")
        wrong += missing_gpu(self.device)
        return wrong


def main(argv: list[str]):
    config = configurator.parse(SampleConfig, argv, positional="out_dir")
    try:
        start = read_start(config.start)
        source = pretrained.open_source(config.out_dir, config.which)
        pretrained.check_no_encoder(source, "sample.py")
        model, tokenizer = load_model(source, config.device, config.dtype)
        prompt = encode(tokenizer, start)
    except (CheckpointError, DataError, OSError) as error:
        sys.exit(f"sample.py: {error}")
    try:
        model.check_length(config.window or 1)
    except ValueError as error:
        sys.exit(f"sample.py: window={config.window}: {error}")
    if config.compile and source.config.model != "gpt":
        sys.exit(
            f"sample.py: compile=True is for model=gpt; {source.path} is of model={source.config.model}, "
            "whose steps cost little: leave it out"
        )
    print(source.path if source.step is None else f"{source.path}, step {source.step:,}", file=sys.stderr)
    step = Decoder(model, "inductor" if config.compile else None)
    sys.stdout.reconfigure(errors="replace")  # a terminal may know only ASCII
    write = functools.partial(write_one, tokenizer, source_of_tokens(model, tokenizer, config, step))
    failed = []
    try:
        if config.interactive:
            talk(config, source.path, tokenizer, write, failed)
        else:
            for number in range(1, config.num_samples + 1):
                print(f"--- sample {number} of {config.num_samples} ---")
                written = []
                try:
                    show(write(prompt, start, number), written)
                    print()
                finally:  # Ctrl-C, or a reader of the output who has gone
                    if any(written):
                        keep(Path(config.out_dir), source.path, config, "".join(written), failed)
    except KeyboardInterrupt:
        if not config.interactive:  # else between a text and the next prompt
            kept = Path(config.out_dir) / "samples.txt"
            where = f"; finished texts are in {kept}" if kept.is_file() and not failed else ""
            sys.exit(f"\nsample.py: interrupted{where}")
    except FloatingPointError as error:
        sys.exit(f"sample.py: {error}")
    except RuntimeError as error:
        if "probability tensor contains" in str(error):
            sys.exit("sample.py: the model's outputs are not finite, so no token can be drawn")
        if not config.compile or not type(error).__module__.startswith(
            ("torch._dynamo", "torch._inductor")
        ):
            raise
        reason = (str(getattr(error, "inner_exception", error)).splitlines() or [type(error).__name__])[0]
        sys.exit(f"sample.py: torch.compile failed ({reason}); mend the compiler, or leave out --compile")
    if failed:
        sys.exit(1)


def talk(
    config: SampleConfig,
    path: Path,
    tokenizer,
    write: Callable[[list[int], str], Iterator[str]],
    failed: list[str],
):
    """Continue each line of standard input. Ctrl-C stops a text, which is kept as far as it came.

    failed: see `keep`.
    """
    for line in prompts():
        try:
            prompt = encode(tokenizer, line)
        except DataError as error:
            print(f"sample.py: {error}", file=sys.stderr)
            continue
        stopped = False
        for number in range(1, config.num_samples + 1):
            if config.num_samples > 1:
                print(f"--- sample {number} of {config.num_samples} ---")
            written = []
            try:
                show(write(prompt, line, number), written)
            except KeyboardInterrupt:
                stopped = True
            print()
            keep(Path(config.out_dir), path, config, "".join(written), failed)
            if stopped:
                break


def prompts() -> Iterator[str]:
    """The lines of standard input, until it ends or until Ctrl-C at an empty prompt."""
    if sys.stdin is None:
        sys.exit("sample.py: interactive reads standard input, which is closed")
    sys.stdin.reconfigure(errors="replace")
    terminal, readline = sys.stdin.isatty(), None
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # gives input() its history and its editing of a line
        print(
            "a line is a prompt, an empty line starts a new document; Ctrl-C stops a text; "
            "Ctrl-C or Ctrl-D at the prompt ends",
            file=sys.stderr,
        )
    while True:
        try:
            yield valid_unicode(input("> " if terminal else ""))
        except EOFError:
            break
        except KeyboardInterrupt:
            if readline is None or not readline.get_line_buffer():
                break
            print()
    if terminal:
        print()


def encode(tokenizer, start: str) -> list[int]:
    """The tokens of a prompt: in our training, every document follows an end-of-text token."""
    return [tokenizer.start_of_text, *tokenizer.encode(start)]


def show(pieces: Iterator[str], written: list[str]):
    """Prints each piece at once; `written` gets it first, so that Ctrl-C loses nothing that was printed."""
    for piece in pieces:
        written.append(piece)
        print(piece, end="", flush=True)


def source_of_tokens(model, tokenizer, config: SampleConfig, step) -> Callable[[list[int], int], Iterable]:
    """tokens(prompt, number) -> the token ids of the text of that number, counted from 1."""
    end, forbid = tokenizer.end_of_text, None
    if config.no_repeat_ngram is not None:
        forbid = functools.partial(without_repeats, size=config.no_repeat_ngram, end=end)
    keys = {
        "below": tokenizer.vocab_size,  # the model's vocabulary may be larger
        "window": config.window,
        "step": step,
        "forbid": forbid,
    }
    if config.beams is not None:
        # the texts of a prompt come from one search
        found = functools.lru_cache(1)(functools.partial(search, model, config, end, keys))
        return functools.partial(ranked, found)
    generator = torch.Generator(device=model.device).manual_seed(config.seed)
    how = (config.max_new_tokens, config.temperature, config.top_k, config.top_p, generator)
    return lambda prompt, number: model.generate(prompt, *how, **keys)


def search(
    model, config: SampleConfig, end: int, keys: dict, prompt: tuple[int, ...]
) -> list[beam.Hypothesis]:
    """The texts that a beam search finds, the best first."""
    # without a terminal, no bar
    with tqdm(total=config.max_new_tokens, unit="token", leave=False, disable=None) as bar:
        how = (config.beams, config.max_new_tokens, end, config.length_penalty)
        return beam.beam_search(model, [prompt], *how, **keys, tick=bar.update)[0]


def ranked(search, prompt, number) -> list[int]:
    """The tokens of a search's text of that rank, counted from 1."""
    found = search(tuple(prompt))
    if number > len(found):
        print(f"sample.py: the search found {counted(len(found), 'text')} only", file=sys.stderr)
        return []
    return found[number - 1].tokens


def write_one(tokenizer, tokens, prompt, start, number) -> Iterator[str]:
    """Generates one text: yields its start, then each piece as soon as its bytes are whole characters.

    tokens: of `source_of_tokens`.
    """
    written = tokens(prompt, number)  # first: the bar of a search would overwrite the start
    yield start
    written = itertools.takewhile(lambda token: token != tokenizer.end_of_text, written)
    yield from tokenizer.continued(prompt, written)


def read_start(start: str) -> str:
    """The prompt; raises OSError or DataError where its file cannot be read."""
    if start.startswith("FILE:"):
        if not (name := start.removeprefix("FILE:")):
            raise DataError("start=FILE: names no file: write FILE:path")
        path = Path(name)
        try:
            refuse_unreadable(path)
            with path.open(encoding="utf-8-sig", newline="") as file:  # as data are prepared
                return file.read()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 ({error})") from None
        except OSError as error:
            raise DataError(f"start=FILE:{path} cannot be read: {error.strerror or error}") from None
    return valid_unicode(start)


def load_model(source: pretrained.Source, device: str, dtype: str):
    """(model in evaluation mode, tokenizer); raises CheckpointError or DataError."""
    tokenizer = pretrained.tokenizer_of(source)
    device = choose_device(device)
    # SAFFU's products are float32, whatever the dtype
    dtype = choose_dtype(dtype, device) if source.config.model == "gpt" else "float32"
    return pretrained.build(source).to(device, getattr(torch, dtype)).eval(), tokenizer


def keep(run: Path, path: Path, config: SampleConfig, text: str, failed: list[str]):
    """Append a text to samples.txt, if `run` is a run folder. Where the file cannot be written, say why and
    append the text to `failed`.
    """
    if not (run / "ckpt").is_dir():
        return
    if config.beams is None:
        settings = f"temperature {config.temperature}, top_k {config.top_k}, top_p {config.top_p}"
        settings += f", seed {config.seed}"
    else:
        settings = f"beams {config.beams}, length_penalty {config.length_penalty}"
    if config.no_repeat_ngram is not None:
        settings += f", no_repeat_ngram {config.no_repeat_ngram}"
    try:
        append_whole(run / "samples.txt", f"--- {path.name}, {settings} ---\n{text}\n\n")
    except OSError as error:
        print(f"sample.py: {error}", file=sys.stderr)
        failed.append(text)


if __name__ == "__main__":
    main(sys.argv[1:])
