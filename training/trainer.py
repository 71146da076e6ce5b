"""The training loop: batches -> gradients -> update, with evaluations and checkpoints in between."""

import contextlib
import dataclasses
import functools
import hashlib
import math
import sys

import numpy as np
import torch
from tqdm import tqdm

from corpus.loader import Dataset, Loader
from corpus.mixture import Mixture
from corpus.pairs import batches_for
from models import compilation
from models.language_model import LanguageModel
from training import checkpoint, cuda_graph, profiling, sharding
from training.distributed import Ranks
from training.endings import TrainingError
from training.environment import commit
from training.evaluation import evaluate, ladder_gradients, ladder_statistics, reduce_ranges
from training.hardware import Clock, autocast, repeatable
from training.health import Watch, diagnose, failure
from training.optimizer import Optimizer, norm_and_divisor
from training.reporting import BAR, Report, Speed
from training.resume import Progress, fingerprint
from training.schedule import Dyadic, learning_rate
from training.stopping import Stop


class Trainer:
    """The loop of one run on one rank. All ranks do the same, and the first one alone writes.

    config: a TrainConfig. validation: the windows [count, T + 1] that every evaluation scores.
    model, optimizer, scaler, progress: as they were drawn, or as a checkpoint left them.
    """

    def __init__(
        self,
        config,
        ranks: Ranks,
        device: torch.device,
        data: Dataset | Mixture,
        validation: np.ndarray,
        model: LanguageModel,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
        dyadic: Dyadic | None,
        progress: Progress,
        report: Report,
    ):
        self.config, self.ranks, self.device = config, ranks, device
        self.data, self.validation, self.tokenizer = data, validation, data.tokenizer().to_json()
        self.model, self.optimizer, self.scaler, self.dyadic = model, optimizer, scaler, dyadic
        self.progress, self.report, self.folder = progress, report, report.folder
        self.start = None  # how far the explicit start of a SAFFU came
        self.micro_batches = config.gradient_accumulation_steps // ranks.world
        self.samples_per_step = config.batch_size * config.gradient_accumulation_steps
        self.stride = ranks.world * config.batch_size
        first = progress.samples + ranks.rank * config.batch_size
        self.to_batch = batches_for(config.encoder_layers)
        self.loader = Loader(
            data, config.batch_size, config.seed, device, first, self.stride, self.to_batch
        )
        self.compiles = config.compile and self.compile()
        self.sharded = sharding.is_sharded(model)
        self.training_model = model if self.sharded else ranks.wrap(model)
        self.captures, self.captured = cuda_graph.fits(config, device, ranks.world, data), None
        self.saver = None
        if config.checkpoint_format == "sharded":
            from training.sharded_checkpoint import Saver  # brings a part of PyTorch that few need

            self.saver = Saver(self.folder / "ckpt", ranks, config.keep_checkpoints)
        self.commit = commit() if ranks.first else None
        self.clock = Clock(device, progress.seconds)
        self.watch = Watch(device)

    def compile(self) -> bool:
        """Compile the model, if the machine has what torch.compile needs; say what comes."""
        say, shapes = self.ranks.say, self.data.shapes
        if self.device.type == "cpu" and (missing := compilation.missing_for_compile()):
            say(f"torch.compile lacks {' and '.join(missing)}: training goes on without it, slower")
            return False
        of_shapes = f", and again for each of up to {shapes} widths of batches" if shapes > 1 else ""
        say(f"compiling at the first step{of_shapes}: that takes a minute or so")
        compilation.compile_parts(self.model, shapes=shapes)
        return True

    def eager(self) -> contextlib.AbstractContextManager:
        """A context for everything but training: its shapes differ."""
        return compilation.eager() if self.compiles else contextlib.nullcontext()

    def train(self, stop: Stop) -> bool:
        """Train up to step config.max_iters. False if a signal ended it earlier, after a checkpoint.

        Raises TrainingError if a loss or gradient is not finite. From that step on nothing is updated; the
        host notices before it next logs, evaluates or saves anything.
        """
        config, progress = self.config, self.progress
        if self.due(config.eval_interval):
            with self.clock.paused() as progress.seconds:
                self.catch_up()
        first = progress.step
        speed = Speed(first, progress.tokens, self.clock.seconds())
        bar = tqdm(
            total=config.max_iters, initial=progress.step, dynamic_ncols=True, bar_format=BAR,
            mininterval=0.5, disable=not (self.ranks.first and sys.stderr.isatty()),
        )  # fmt: skip
        trace = profiling.Trace(config.profile, self.device, self.folder, self.ranks.first)
        with bar, trace:  # closed before an error is printed
            while progress.step < config.max_iters:
                rate, ladders, stopping = self.step(stop)
                bar.update()
                traced = trace.step()
                if self.compiles and progress.step == first + 1:
                    speed.restart(progress.step, progress.tokens, self.clock.seconds())
                logging, evaluating, saving = map(
                    self.due, (config.log_interval, config.eval_interval, config.checkpoint_interval)
                )
                if logging or evaluating or saving or stopping:
                    values = self.log_values(rate)
                if logging:
                    now = self.clock.seconds()
                    self.report.training(values, now, speed.rate(progress.step, progress.tokens, now))
                    pace = speed.in_words(config.max_iters - progress.step)
                    bar.set_postfix_str(f"loss {values['loss']:.3f}{pace}", refresh=False)
                if traced:
                    with self.clock.paused() as progress.seconds, bar.external_write_mode(file=sys.stdout):
                        self.ranks.say(self.report.on_first(trace.write))
                if stopping:
                    # at once: the sender of a signal waits only seconds; a due evaluation follows on resume
                    with self.clock.paused() as progress.seconds:
                        self.save(improved=False)
                        self.finish_saving()
                    bar.close()
                    self.report.stopped()
                    return False
                if evaluating or saving:
                    with self.clock.paused() as progress.seconds, bar.external_write_mode(file=sys.stdout):
                        improved = evaluating and self.evaluate(ladders)
                        if saving or improved:
                            self.save(improved)
        self.finish_saving()
        self.report.done()
        return True

    def catch_up(self):
        """Make the evaluation that is due before the next step: of step 0, or one that a signal cut off.

        Where a kill came between this evaluation and its checkpoint, the log has it already: its loss is
        taken from there, and a best one is saved.
        """
        logged = self.report.evaluated()
        if logged is None:
            improved = self.evaluate({})
        elif improved := self.progress.step > 0 and logged < self.progress.best_val_loss:
            self.progress.best_val_loss = logged
        if improved:
            self.save(improved=True)

    def step(self, stop: Stop) -> tuple[float, dict, bool]:
        """One update -> (learning rate, gradient norms of ladders by layer, whether to stop).

        All ranks return the same. The gradient norms, scalars on the device, are empty unless an evaluation
        follows. The host never waits for the device here, so that a GPU always has work.
        """
        config, progress, ranks = self.config, self.progress, self.ranks
        step = progress.step
        ranks.where = f"step {step:,}"
        self.model.train()
        # dropout depends on step and rank alone, so that a resumed run repeats it
        torch.manual_seed(seed_of(config.seed, step, ranks.rank))
        rate = self.set_learning_rates(step)
        loss = self.backward(step)
        if self.dyadic:
            self.dyadic.drop_gradients(step)
        self.scaler.unscale_(self.optimizer)
        followed = (step + 1) % config.eval_interval == 0 or step + 1 == config.max_iters
        with ranks.waiting("the gradients of the other ranks"):
            ladders = ladder_gradients(self.model) if followed else {}
            norm, divisor = norm_and_divisor(self.model, config.grad_clip)
            scale = self.scaler.scale(torch.ones((), device=self.device))  # get_scale() would wait
            self.watch.note(step, loss, norm, scale)
            self.scaler.step(self.optimizer, skip=self.watch.unsound, divisor=divisor)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += self.loader.targets(progress.samples, self.samples_per_step)
        progress.samples += self.samples_per_step
        # a missing rank is noticed here, with a message, before the host waits for a GPU
        failed = self.saver is not None and self.saver.failed()
        return rate, ladders, ranks.any(bool(stop) or failed)

    def log_values(self, rate: float) -> dict:
        """Wait for the device -> values for the log; raises TrainingError if a step was not sound."""
        step, loss, norm, scale, sound = self.watch.wait()
        if not sound:
            self.explain(step, loss, norm, scale)
        # JSON has no infinity, which a step has that float16's scaler skipped
        values = {"loss": loss, "learning_rate": rate, "grad_norm": norm if math.isfinite(norm) else None}
        if self.scaler.is_enabled():
            values["loss_scale"] = self.scaler.get_scale()
        return values

    def backward(self, step: int) -> torch.Tensor:
        """Accumulate the gradients of this rank's micro-batches -> the loss, averaged over all of them.

        Micro-batches of pairs differ in their number of targets: all targets of a step count alike.
        """
        ranks = self.ranks
        targets_of_step = self.loader.targets(self.progress.samples, self.samples_per_step)
        loss = torch.zeros((), device=self.device)
        what = f"{'weights or ' if self.sharded else ''}gradients of the other ranks"
        for number in range(self.micro_batches):
            targets_here = self.loader.targets(self.loader.next_sample, self.config.batch_size)
            parts = targets_of_step / (targets_here * ranks.world)  # of equal size: the micro-batches
            batch = next(self.loader)
            with self.synchronised(number == self.micro_batches - 1), ranks.waiting(f"the {what}"):
                if self.captures:
                    loss += self.replay(batch, parts, number == 0)
                else:
                    loss += self.passes(*batch, parts=parts)
        return ranks.sum(loss) / ranks.world

    def passes(self, *batch: torch.Tensor, parts: float) -> torch.Tensor:
        """Forward and backward pass of a micro-batch -> its loss, divided by `parts`."""
        with repeatable(self.config.deterministic):
            with autocast(self.device, self.config.dtype, keep=not self.sharded):
                part = self.training_model(*batch) / parts
            self.scaler.scale(part).backward()
        return part.detach()

    def replay(self, batch: tuple, parts: float, first: bool) -> torch.Tensor:
        """`passes` as a CUDA graph. Raises TrainingError if the model cannot be captured."""
        try:
            if self.captured is None:
                compute = functools.partial(self.passes, parts=parts)
                self.captured = cuda_graph.CapturedBackward(self.model.parameters(), compute, batch)
            return self.captured(batch, first)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            said = str(error).splitlines()[0]
            raise TrainingError(
                f"forward and backward pass cannot be captured as a CUDA graph ({said}): give "
                "--cuda_graph=False"
            ) from error

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager:
        """A context for one micro-batch: gradients travel to the other ranks after the last one.

        Among ranks that share a model they travel after each: a rank that kept them would hold those of the
        whole model. Between groups of such ranks (sharding=hybrid) they travel after the last.
        """
        if self.sharded:
            self.model.set_requires_all_reduce(last)
        elif not last and self.ranks.world > 1:
            return self.training_model.no_sync()
        return contextlib.nullcontext()

    def set_learning_rates(self, step: int) -> float:
        config = self.config
        decay = config.wsd_decay_iters or max(1, config.max_iters // 5)
        rate = learning_rate(
            step, config.lr_schedule, config.max_iters, config.warmup_iters, decay,
            config.learning_rate, config.min_lr,
        )  # fmt: skip
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if group["muon"]:  # the same schedule from another peak
                group["lr"] *= (config.muon_learning_rate or config.learning_rate) / config.learning_rate
            if group["depth"]:
                group["lr"] *= config.ladder_lr
        return rate

    def explain(self, step: int, loss: float, norm: float, scale: float):
        """Raise TrainingError that says where it began; from that step on nothing was updated or saved."""
        self.finish_saving()
        later = self.progress.step - 1 - step
        samples = self.progress.samples - (later + 1) * self.samples_per_step
        first = samples + self.ranks.rank * self.config.batch_size
        seed = seed_of(self.config.seed, step, self.ranks.rank)
        starts = [first + number * self.stride for number in range(self.micro_batches)]
        batches = [self.loader.batch(start) for start in starts]
        try:
            with self.eager():
                faults = diagnose(self.model, batches, self.config.dtype, seed)
        except RuntimeError as error:  # for example out of memory, because a compiled model needs less
            faults = [(0, f"a second pass over the batches failed ({str(error).splitlines()[0]})")]
        found = [
            f"rank {self.ranks.rank}, samples {starts[number]:,} to "
            f"{starts[number] + self.config.batch_size - 1:,}: {what}"
            for number, what in faults
        ]
        found = [what for one in self.ranks.gather(found) for what in one]
        saved = checkpoint.numbered(self.folder / "ckpt")
        scale = scale if self.scaler.is_enabled() else None
        message = failure(step, loss, norm, scale, later, found, saved[-1] if saved else None, self.config)
        self.ranks.fail(TrainingError(message))

    def evaluate(self, gradients: dict) -> bool:
        """Evaluate and report; returns whether this is the lowest validation loss so far."""
        config, progress = self.config, self.progress
        reduce_ranges(self.model, self.ranks)
        text_bytes = self.data.target_bytes(self.validation)
        parts = self.data.parts(len(self.validation)) if isinstance(self.data, Mixture) else {}
        batch = self.to_batch(self.validation[: config.batch_size])
        with self.ranks.waiting("the weights of the other ranks"), self.eager():
            result = evaluate(
                self.model, self.validation, text_bytes, config.batch_size, config.dtype, self.ranks, parts
            )
            ladders = ladder_statistics(self.model, config.dtype, *(one.to(self.device) for one in batch))
        if self.sharded:
            self.model.reshard()  # the embedding is kept after a forward pass, for a backward pass
        for layer, statistics in ladders.items():
            norm = gradients[layer].item() if gradients else math.nan
            statistics["grad_norm"] = norm if math.isfinite(norm) else None  # JSON has no nan
        self.report.evaluation(result, list(parts), ladders)
        self.validation_loss = result["val_loss"]
        improved = progress.step > 0 and result["val_loss"] < progress.best_val_loss
        if improved:
            progress.best_val_loss = result["val_loss"]
        return improved

    def save(self, improved: bool):
        """Write a checkpoint, or begin to. If that fails, or has failed for the one before, all ranks end,
        and earlier checkpoints stay as they are.
        """
        reduce_ranges(self.model, self.ranks)
        content = {
            "config": dataclasses.asdict(self.config),
            "commit": self.commit,
            "ranks": self.ranks.world,
            "records": len(self.report.log.records) if self.ranks.first else 0,
            "scaler": self.scaler.state_dict(),
            "tokenizer": self.tokenizer,
            "data": fingerprint(self.data),
            "start": self.start,
            **dataclasses.asdict(self.progress),
        }
        if self.saver is not None:
            self.report.on_first(lambda: self.report.log.sync())
            self.saver.save(content, self.model, self.optimizer, improved)
            return
        with self.ranks.waiting("the weights of the other ranks"):
            for part in ("model", "optimizer"):
                state = getattr(self, part).state_dict()
                content[part] = sharding.gathered(state, self.ranks.first)

        def write():
            self.report.log.sync()
            folder = self.folder / "ckpt"
            checkpoint.save(folder, content["step"], content, self.config.keep_checkpoints, improved)

        self.report.on_first(write, long=True)

    def finish_saving(self):
        """Wait for a checkpoint that is being written."""
        if self.saver is not None:
            self.saver.finish()

    def due(self, interval: int) -> bool:
        return self.progress.step % interval == 0 or self.progress.step == self.config.max_iters


def seed_of(*numbers: int) -> int:
    """A seed that depends on every number in all its bits: the CPU generator uses only the low 32."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
