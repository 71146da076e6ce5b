"""What a run says on the screen and writes into its folder; of several ranks, the first one alone does."""

import dataclasses
import json
import sys
import textwrap
from pathlib import Path

import torch
from tqdm import tqdm

import configurator
from corpus.loader import Dataset
from corpus.mixture import Mixture
from models.architecture import model_config
from models.kinds import flops_per_token, parameter_counts, without_embeddings
from reports.plural import counted
from training import tracking
from training.distributed import Ranks
from training.hardware import device_name, peak_flops, peak_memory
from training.log import Log, read_log, write_whole
from training.resume import Progress
from training.schedule import Dyadic

# without tqdm's own rate, which has the compilation in it for as long as nothing redraws the bar
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}{postfix}]"


def announcement(
    config, data: Dataset | Mixture, world: int, device: torch.device, dyadic: Dyadic | None
) -> str:
    """What a run says before its first step: keys that are not the defaults, data, model, length. config: a
    TrainConfig.
    """
    model = model_config(config)
    counts = parameter_counts(model)
    samples = config.max_iters * config.batch_size * config.gradient_accumulation_steps
    tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size
    if isinstance(data, Mixture):
        sources = "\n  ".join(data.describe(samples))
        told, epochs = f"{len(data.sources)} data sets, by weight:\n  {sources}\n  ", ""
    else:
        told = f"{config.dataset}, {data.size()}, "
        epochs = f" ({data.epochs(samples):.2f} epochs)"
    size, unit = tokens, data.unit
    if unit != "tokens":
        size = config.batch_size * config.gradient_accumulation_steps
    unused = ""
    if more := config.vocab_size - data.meta["vocab_size"]:
        unused = f", of the model's {config.vocab_size:,}: {more:,} rows of its embedding are unused"
    ranks = f" on {world} ranks" if world > 1 else ""
    keys = ", ".join(f"{key}={value}" for key, value in configurator.differing(config).items())
    lines = [
        textwrap.fill(f"keys: {keys}", 110, break_on_hyphens=False),
        f"data: {told}vocabulary {data.meta['vocab_size']:,}{unused}",
        f"model: {sum(counts.values()):,} parameters, {without_embeddings(counts):,} without embeddings, "
        f"{3 * flops_per_token(model) / 1e6:,.1f} MFLOPs per token in training",
        f"run: {counted(config.max_iters, 'step')} of {size:,} {unit}, "
        f"{config.max_iters * size:,} in all{epochs}{ranks}, on {device.type}",
    ]
    if idle := model.unused_keys():
        lines.append(f"without effect in this model: {', '.join(idle)}")
    if dyadic:
        lines.append(dyadic.table(config.max_iters))
    return "\n".join(lines)


def fullest(peaks: list[dict[str, int]]) -> dict[str, int]:
    """The largest of each kind of peak among ranks; see `hardware.peak_memory`."""
    return {kind: max(peak[kind] for peak in peaks) for kind in peaks[0]}


def memory_in_words(peak: dict[str, int]) -> str:
    """To stand before the next clause; "" where no step was recorded."""
    if not peak:
        return ""
    reserved = peak.get("peak_memory_reserved")
    more = f" of tensors, {reserved / 2**30:,.2f} GiB reserved" if reserved is not None else ""
    return f"peak memory {peak['peak_memory'] / 2**30:,.2f} GiB{more}; "


class Speed:
    """Tokens per second since the last reading: of recent steps alone.

    step, tokens, seconds: of training, where the first window begins. A compiled model's first step is left
    out with `restart`.
    """

    def __init__(self, step: int, tokens: int, seconds: float):
        self.last = self.seconds_per_step = None
        self.restart(step, tokens, seconds)

    def restart(self, step: int, tokens: int, seconds: float):
        self.step, self.tokens, self.seconds = step, tokens, seconds

    def rate(self, step: int, tokens: int, seconds: float) -> float | None:
        """None where no step was measured."""
        if step > self.step:
            self.last = (tokens - self.tokens) / (seconds - self.seconds)
            self.seconds_per_step = (seconds - self.seconds) / (step - self.step)
        measured = self.last if step > self.step else None
        self.restart(step, tokens, seconds)
        return measured

    def in_words(self, steps_left: int) -> str:
        """The last speed and the time that so many steps take at it, to follow the loss; "" before it."""
        if self.last is None:
            return ""
        left = tqdm.format_interval(steps_left * self.seconds_per_step)
        return f", {self.last:,.0f} tokens/s, {left} left"


class Report:
    """The run folder's config.json and log (and a tracker), and what is printed while a run trains.

    config, given: what the run is, and what the user said. folder: the claimed run folder. progress: the
    run's own, which the trainer advances. changes: what `resume.restore` found changed. records: how many
    the log had at a checkpoint of step 0. unit: that of the data (`Dataset`). Every method is called on
    all ranks, and where the first one cannot write, all of them end.
    """

    def __init__(
        self,
        config,
        given,
        ranks: Ranks,
        device: torch.device,
        folder: Path,
        progress: Progress,
        changes: dict[str, str],
        records: int = 0,
        unit: str = "tokens",
    ):
        self.config, self.ranks, self.device, self.unit = config, ranks, device, unit
        self.folder, self.progress = folder, progress
        self.peak = {}  # bytes, as the last training record has them
        self.log = self.on_first(lambda: self._open_log(given, changes, records))

    def record(self, values: dict):
        """Append a record to the log."""
        record = {"step": self.progress.step, "tokens": self.progress.tokens, **values}
        self.on_first(lambda: self.log.add(record))

    def training(self, values: dict, seconds: float, tokens_per_second: float | None):
        """Record a training step. seconds: of training so far; values: loss, learning rate and so on;
        tokens_per_second: None where it is not known.
        """
        rate = {}
        if tokens_per_second is not None:
            # scored tokens alone are counted, of pairs and rows that have others
            mfu = self.mfu(tokens_per_second) if self.unit == "tokens" else {}
            rate = {"tokens_per_second": tokens_per_second, **mfu}
        self.peak = fullest(self.ranks.gather(peak_memory(self.device)))
        self.record({"seconds": seconds, **values, **rate, **self.peak})
        if not sys.stderr.isatty():  # no bar tells it
            said = f"loss {values['loss']:.4f}, lr {values['learning_rate']:.3g}"
            said += f", {tokens_per_second:,.0f} tokens/s" if rate else ""
            self.ranks.say(f"step {self.progress.step:>7,}: {said}")

    def evaluation(self, result: dict, parts: list[str], ladders: dict):
        """Record, draw and print an evaluation. result: of `evaluation.evaluate`, parts: of the data."""
        record = {"seconds": self.progress.seconds, **result}
        self.record(record | {"ladders": ladders} if ladders else record)
        self.on_first(lambda: self.log.draw())
        # rows have symbols, whose names have bytes, and not the answers
        bits = "" if self.unit == "rows" else f", {result['val_bits_per_byte']:.4f} bits per byte"
        self.ranks.say(
            f"step {self.progress.step:>7,}: validation loss {result['val_loss']:.4f}, perplexity "
            f"{result['val_perplexity']:.2f}{bits}"
            + "".join(f", {name} {result[f'val_loss_{name}']:.4f}" for name in parts)
        )

    def evaluated(self) -> float | None:
        """The validation loss that the log has of this step; None: it has none."""
        records = self.log.records if self.ranks.first else []
        seen = [r["val_loss"] for r in records if r["step"] == self.progress.step and "val_loss" in r]
        return self.ranks.gather(seen[-1] if seen else None)[0]

    def mfu(self, tokens_per_second: float) -> dict[str, float]:
        """Model FLOPs utilisation; nothing on a device whose peak is not known."""
        peak = peak_flops(device_name(self.device), self.config.dtype)
        if peak is None:
            return {}
        flops = 3 * flops_per_token(model_config(self.config)) * tokens_per_second
        return {"mfu": flops / (peak * self.ranks.world)}

    def stopped(self):
        """A signal ended the run early, after a checkpoint."""
        self._close()
        resume = f"--resume=True --out_dir={self.config.out_dir}"
        self.ranks.say(f"stopped at step {self.progress.step:,}; {resume} goes on")

    def done(self):
        """The run came to its end."""
        self._close()
        use = {
            "tokens": f"sample with: python sample.py {self.folder}",
            "pairs": f'translate with: python translate.py {self.folder} --text="..."',
            "rows": f"accuracy: python evaluate.py {self.folder} --task=mqar",
        }[self.unit]
        self.ranks.say(
            f"done: {counted(self.progress.step, 'step')}, {self.progress.tokens:,} tokens; "
            f"{memory_in_words(self.peak)}curve: {self.folder / 'loss.png'}\n{use}"
        )

    def on_first(self, action, long: bool = False):
        return self.ranks.on_first(action, (ValueError, OSError, RuntimeError), long)

    def _open_log(self, given, changes: dict[str, str], records: int) -> Log:
        config, progress = self.config, self.progress
        # the trace is of this start alone: a run that goes on takes what it is not told from here
        settings = dataclasses.asdict(config) | {"profile": 0}
        tracker = None
        if config.track != "none":
            before, step = progress.tracker_id, progress.step
            again = before is not None and any(r["step"] > step for r in read_log(self.folder))
            # first, because where it does not start, the folder must stay as it is
            tracker = tracking.start(config, self.folder, settings, before, step, again)
            progress.tracker_id = tracker.id
        write_whole(self.folder / "config.json", json.dumps(settings, indent=2) + "\n")
        if progress.step == 0:  # a resumed run is given its whole config.json
            said = configurator.differing(given)
            write_whole(self.folder / "given.json", json.dumps(said, indent=2) + "\n")
        log = Log(self.folder, progress.step, tracker, config.init_from is not None, records)
        if changes:
            log.add({"step": progress.step, "tokens": progress.tokens, "resumed": changes})
        return log

    def _close(self):
        self.on_first(lambda: self.log.close())
