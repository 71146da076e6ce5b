"""The training loop: batches -> gradients -> update, and what is written down along the way."""

import contextlib
import dataclasses
import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import configurator
from architecture import model_config
from data.loader import Dataset, Loader
from data.mixture import Mixture
from model import GPT, flops_per_token, parameter_counts
from training import checkpoint
from training.checkpoint import CheckpointError
from training.distributed import Ranks
from training.evaluation import evaluate, ladder_gradients, ladder_statistics, reduce_ranges
from training.hardware import Clock, autocast, compiled, device_name, peak_flops
from training.health import Watch, diagnose, steadier
from training.log import Log, start_wandb, write_whole
from training.optimizer import adamw, muon
from training.pretrained import Source
from training.resume import Progress, fingerprint, load_state
from training.schedule import Dyadic, learning_rate
from training.stopping import Stop
from training.surgery import initialise


class TrainingError(RuntimeError):
    """Training cannot go on; says why and what to do."""


class Trainer:
    """One run on one rank; all ranks do the same, and rank 0 alone writes.

    config: a TrainConfig. folder: the claimed run folder. validation: the windows [count, block_size + 1]
    that every evaluation scores. restored: what `resume.restore` gave, or None for a start,
    from scratch or from the weights of `source`.
    """

    def __init__(
        self,
        config,
        ranks: Ranks,
        device: torch.device,
        folder: Path,
        data: Dataset | Mixture,
        validation: np.ndarray,
        restored,
        source: Source | None = None,
    ):
        self.config, self.ranks, self.device, self.folder = config, ranks, device, folder
        self.data, self.validation = data, validation
        torch.manual_seed(config.seed)
        with torch.device("meta"):
            model = GPT(model_config(config))
        self.model = model.to_empty(device=device).init_weights()
        self.model.activation_checkpointing = config.activation_checkpointing
        betas = (config.beta1, config.beta2)
        keys = (config.learning_rate, config.weight_decay, betas, config.decay_ladders)
        if config.optimizer == "muon":
            # bfloat16 where the run uses it anyway; what trains in float16 may not have it
            half = config.dtype == "bfloat16"
            self.optimizer = muon(self.model, *keys, torch.bfloat16 if half else torch.float32)
        else:
            self.optimizer = adamw(self.model, *keys)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.dtype == "float16")
        self.dyadic = Dyadic(self.model, config.dyadic_iters) if config.dyadic else None
        self.progress = Progress()
        changes = {}
        if restored is not None:
            path, content, changes = restored
            self.progress = ranks.agree(
                lambda: load_state(path, content, self.model, self.optimizer, self.scaler),
                (CheckpointError,),
            )
            self.say(f"resuming from {path}, step {self.progress.step:,} of {config.max_iters:,}")
            for change in changes.values():
                self.say(f"  {change}")
        else:
            if config.resume:
                begin = "at" if config.init_from else "from"
                self.say(f"{folder} holds no checkpoint: starting {begin} {config.init_from or 'scratch'}")
            if source is not None:
                for line in ranks.agree(lambda: initialise(self.model, source), (CheckpointError,)):
                    self.say(line)
        self.announce()
        self.log = self.on_first(lambda: self.open_log(changes))
        self.tokenizer = data.tokenizer().to_json()

        self.micro_batches = config.gradient_accumulation_steps // ranks.world
        self.samples_per_step = config.batch_size * config.gradient_accumulation_steps
        self.tokens_per_step = self.samples_per_step * config.block_size
        self.stride = ranks.world * config.batch_size
        first = self.progress.samples + ranks.rank * config.batch_size
        self.loader = Loader(data, config.batch_size, config.seed, device, first, self.stride)
        # the compiled model trains, the plain one evaluates: other shapes must not recompile it
        self.training_model = ranks.wrap(compiled(self.model, config.compile, device, self.say))
        self.clock = Clock(device, self.progress.seconds)
        self.watch = Watch(device)

    def train(self, stop: Stop) -> bool:
        """Up to config.max_iters steps; False where a signal ended it before, after a checkpoint.

        Raises TrainingError where a loss or gradient is not finite. From then on nothing is updated; the
        host learns of it when it next looks, before it logs, evaluates or saves anything.
        """
        config, progress = self.config, self.progress
        # at step 0, and where a signal came between a step and its evaluation
        if self.due(config.eval_interval) and not self.evaluated():
            with self.clock.paused() as progress.seconds:
                if self.evaluate({}):
                    self.save(improved=True)
        logged_at = (progress.step, self.clock.seconds())
        bar = tqdm(
            total=config.max_iters, initial=progress.step, unit="step", dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 30.0, disable=not self.ranks.first,
        )  # fmt: skip
        while progress.step < config.max_iters:
            rate, ladders, stopping = self.step(stop)
            bar.update()
            logging, evaluating, saving = map(
                self.due, (config.log_interval, config.eval_interval, config.checkpoint_interval)
            )
            if logging or evaluating or saving or stopping:
                values = self.look(rate)
            if logging:
                now = self.clock.seconds()
                speed = (progress.step - logged_at[0]) * self.tokens_per_step / (now - logged_at[1])
                logged_at = (progress.step, now)
                self.record({"seconds": now, **values, "tokens_per_second": speed, **self.mfu(speed)})
                bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed:,.0f} tokens/s", refresh=False)
            if stopping:
                # at once, as whoever sent the signal waits seconds; an evaluation that is due comes later
                with self.clock.paused() as progress.seconds:
                    self.save(improved=False)
                bar.close()
                self.close()
                self.say(f"stopped at step {progress.step:,}; --resume=True goes on from there")
                return progress.step == config.max_iters
            if evaluating or saving:
                with self.clock.paused() as progress.seconds, bar.external_write_mode(file=sys.stdout):
                    improved = evaluating and self.evaluate(ladders)
                    if saving or improved:
                        self.save(improved)
        bar.close()
        self.close()
        self.say(
            f"done: {progress.step:,} steps, {progress.samples * config.block_size:,} tokens; "
            f"curve: {self.folder / 'loss.png'}\nsample with: python sample.py {self.folder}"
        )
        return True

    def step(self, stop: Stop) -> tuple[float, dict, bool]:
        """One update -> (learning rate, gradient norms of ladders by layer, whether to stop).

        All ranks agree on what is returned. The gradient norms, scalars on the device, are there where an
        evaluation follows. The host never waits for the device here, so that a GPU always has work.
        """
        config, progress, ranks = self.config, self.progress, self.ranks
        step = progress.step
        ranks.where = f"step {step:,}"
        self.model.train()
        # dropout's randomness is a function of step and rank, so that a resumed run repeats it
        torch.manual_seed(seed_of(config.seed, step, ranks.rank))
        rate = self.set_learning_rates(step)
        loss = self.backward(step)
        if self.dyadic:
            self.dyadic.drop_gradients(step)
        self.scaler.unscale_(self.optimizer)
        followed = (step + 1) % config.eval_interval == 0 or step + 1 == config.max_iters
        ladders = ladder_gradients(self.model) if followed else {}
        # what it returns is the norm of all gradients before
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip or math.inf)
        scale = self.scaler.scale(torch.ones((), device=self.device))  # get_scale() would wait
        self.watch.note(step, loss, norm, scale)
        self.scaler.step(self.optimizer, skip=self.watch.unsound)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.samples += self.samples_per_step
        # before the host waits for a GPU: a rank that is missing is noticed here, with a message
        return rate, ladders, ranks.any(bool(stop))

    def look(self, rate: float) -> dict:
        """Wait for the device -> values for the log; raises TrainingError where a step was not sound."""
        step, loss, norm, scale, sound = self.watch.read()
        if not sound:
            self.explain(step, loss, norm, scale)
        # JSON has no infinity: it is there where float16's scaler left a step out
        values = {"loss": loss, "learning_rate": rate, "grad_norm": norm if math.isfinite(norm) else None}
        if self.scaler.is_enabled():
            values["loss_scale"] = self.scaler.get_scale()
        return values

    def backward(self, step: int) -> torch.Tensor:
        """Accumulate the gradients of this rank's micro-batches -> the loss, averaged over all of them."""
        ranks = self.ranks
        loss = torch.zeros((), device=self.device)
        for number in range(self.micro_batches):
            last = number == self.micro_batches - 1
            tokens, targets = next(self.loader)
            local = not last and ranks.world > 1
            with self.training_model.no_sync() if local else contextlib.nullcontext():
                with autocast(self.device, self.config.dtype):
                    part = self.training_model(tokens, targets) / self.micro_batches
                with ranks.waiting("the gradients of the other ranks"):
                    self.scaler.scale(part).backward()
            loss += part.detach()
        return ranks.sum(loss) / ranks.world

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
        """Raise TrainingError with where it began; from that step on nothing was updated or saved."""
        later = self.progress.step - 1 - step
        samples = self.progress.samples - (later + 1) * self.samples_per_step
        first = samples + self.ranks.rank * self.config.batch_size
        seed = seed_of(self.config.seed, step, self.ranks.rank)
        starts = [first + number * self.stride for number in range(self.micro_batches)]
        batches = [self.loader.batch(start) for start in starts]
        try:
            told = diagnose(self.model, batches, self.config.dtype, seed)
        except RuntimeError as error:  # such as memory that a compiled model did not need
            told = [(0, f"a second pass over the batches failed ({str(error).splitlines()[0]})")]
        found = [
            f"rank {self.ranks.rank}, samples {starts[number]:,} to "
            f"{starts[number] + self.config.batch_size - 1:,}: {what}"
            for number, what in told
        ]
        found = [what for one in self.ranks.gather(found) for what in one]
        saved = checkpoint.numbered(self.folder / "ckpt")
        last = f"the last checkpoint is {saved[-1]}, from before" if saved else "there is no checkpoint yet"
        scaled = f", loss scale {scale:g}" if self.scaler.is_enabled() else ""
        nor = f" (nor the {later:,} after it)" if later else ""
        message = (
            f"loss {loss:.4g} and gradient norm {norm:.4g}{scaled} at step {step:,}, "
            f"which was not made{nor}.\n  "
            + "\n  ".join(found[:8] or ["in a second pass over the same batches everything was finite"])
            + f"\n{last}. Try {' or '.join(steadier(self.config))}"
        )
        self.ranks.fail(TrainingError(message))

    def evaluate(self, gradients: dict) -> bool:
        """Evaluate and write it down; whether this is the lowest validation loss since training began."""
        config, progress = self.config, self.progress
        reduce_ranges(self.model, self.ranks)
        text_bytes = self.data.target_bytes(self.validation)
        parts = self.data.parts(len(self.validation)) if isinstance(self.data, Mixture) else {}
        result = evaluate(
            self.model, self.validation, text_bytes, config.batch_size, config.dtype, self.ranks, parts
        )
        record = {"seconds": progress.seconds, **result}
        if self.ranks.first:
            tokens = torch.from_numpy(self.validation[: config.batch_size, :-1]).to(self.device)
            ladders = ladder_statistics(self.model, tokens, config.dtype)
            for layer, statistics in ladders.items():
                statistics["grad_norm"] = gradients[layer].item() if gradients else None
            record |= {"ladders": ladders} if ladders else {}
        self.record(record)
        self.on_first(lambda: self.log.draw())
        self.say(
            f"step {progress.step:>7,}: validation loss {result['val_loss']:.4f}, perplexity "
            f"{result['val_perplexity']:.2f}, {result['val_bits_per_byte']:.4f} bits per byte"
            + "".join(f", {name} {result[f'val_loss_{name}']:.4f}" for name in parts)
        )
        improved = progress.step > 0 and result["val_loss"] < progress.best_val_loss
        if improved:
            progress.best_val_loss = result["val_loss"]
        return improved

    def save(self, improved: bool):
        """Write a checkpoint; where the disk does not take it, all ranks end and the earlier ones stay."""
        reduce_ranges(self.model, self.ranks)

        def write():
            content = {
                "config": dataclasses.asdict(self.config),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "tokenizer": self.tokenizer,
                "data": fingerprint(self.data),
                **dataclasses.asdict(self.progress),
            }
            self.log.sync()
            folder, step = self.folder / "ckpt", self.progress.step
            checkpoint.save(folder, step, content, self.config.keep_checkpoints, improved)

        self.on_first(write)

    def open_log(self, changes: dict) -> Log:
        config, progress, wandb_run = self.config, self.progress, None
        if config.wandb_log:
            name = config.wandb_run_name or self.folder.name
            settings = dataclasses.asdict(config)
            wandb_run = start_wandb(config.wandb_project, name, self.folder, settings, progress.wandb_id)
            progress.wandb_id = wandb_run.id
        write_whole(self.folder / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")
        log = Log(self.folder, progress.step, wandb_run)
        if changes:
            tokens = progress.samples * config.block_size
            log.add({"step": progress.step, "tokens": tokens, "resumed": changes})
        return log

    def record(self, values: dict):
        where = {"step": self.progress.step, "tokens": self.progress.samples * self.config.block_size}
        self.on_first(lambda: self.log.add({**where, **values}))

    def evaluated(self) -> bool:
        """Whether the log has an evaluation of this step."""
        step = self.progress.step
        seen = self.ranks.first and any(r["step"] == step and "val_loss" in r for r in self.log.records)
        return self.ranks.any(seen)

    def mfu(self, tokens_per_second: float) -> dict[str, float]:
        """Model FLOPs utilisation; nothing on a device whose peak is not known."""
        peak = peak_flops(device_name(self.device), self.config.dtype)
        if peak is None:
            return {}
        flops = 3 * flops_per_token(model_config(self.config)) * tokens_per_second
        return {"mfu": flops / (peak * self.ranks.world)}

    def due(self, interval: int) -> bool:
        return self.progress.step % interval == 0 or self.progress.step == self.config.max_iters

    def on_first(self, action):
        return self.ranks.on_first(action, (ValueError, OSError, RuntimeError))

    def close(self):
        self.on_first(lambda: self.log.close())

    def say(self, text: str):
        if self.ranks.first:
            print(text, flush=True)

    def announce(self):
        config, data = self.config, self.data
        model = model_config(config)
        counts = parameter_counts(model)
        total = sum(counts.values())
        body = total - counts["embedding"] - counts["position"]
        tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size
        ranks = f" on {self.ranks.world} ranks" if self.ranks.world > 1 else ""
        self.say(configurator.format_config(config))
        if isinstance(data, Mixture):
            samples = config.max_iters * config.batch_size * config.gradient_accumulation_steps
            sources = "\n  ".join(data.describe(samples))
            told, epochs = f"{len(data.sources)} data sets, by weight:\n  {sources}\n  ", ""
        else:
            told = f"{config.dataset}, {len(data.tokens):,} training tokens, "
            epochs = f" ({config.max_iters * tokens / len(data.tokens):.2f} epochs)"
        unused = ""
        if more := config.vocab_size - data.meta["vocab_size"]:
            unused = f", of the model's {config.vocab_size:,}: {more:,} rows of its embedding are unused"
        self.say(
            f"data: {told}vocabulary {data.meta['vocab_size']:,}{unused}\n"
            f"model: {total:,} parameters, {body:,} without embeddings, "
            f"{3 * flops_per_token(model) / 1e6:,.1f} MFLOPs per token in training\n"
            f"run: {config.max_iters:,} steps of {tokens:,} tokens, {config.max_iters * tokens:,} in all"
            f"{epochs}{ranks}, on {self.device.type}"
        )
        if idle := model.unused_keys():
            self.say(f"without effect in this model: {', '.join(idle)}")
        if self.dyadic:
            self.say(self.dyadic.table())


def seed_of(*numbers: int) -> int:
    """A generator on the CPU heeds the low 32 bits only: all of them must depend on every number."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
