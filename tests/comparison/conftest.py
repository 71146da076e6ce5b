"""Run folders whose logs the tests write."""

import dataclasses
import json

import pytest

from training.config import TrainConfig
from training.log import Log

KEYS = {
    "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab_size": 257, "dataset": "data/a",
    "batch_size": 4, "gradient_accumulation_steps": 2, "max_iters": 20, "eval_interval": 10,
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """write("name", [loss at step 0, 10, ...], rate=..., clamped=[...], **config) -> a run folder.

    bits: bits per byte for a nat per token.
    """

    def make(name, losses, rate=1000.0, clamped=(), bits=0.5, **config):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = TrainConfig(**{**KEYS, "out_dir": str(folder), **config})
        (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
        log = Log(folder, 0)
        per_step = config.batch_size * config.gradient_accumulation_steps * config.block_size
        for number, loss in enumerate(losses):
            at = {"step": 10 * number, "tokens": 10 * number * per_step, "seconds": 60.0 * number}
            if number:
                speed = rate if number > 1 else 1.0  # the compiler is in the first one
                log.add({**at, "loss": loss, "tokens_per_second": speed})
            ladders = {f"blocks.{i}.ffn": {"clamped": share} for i, share in enumerate(clamped)}
            log.add(
                {**at, "val_loss": loss, "val_bits_per_byte": loss * bits}
                | ({"ladders": ladders} if ladders else {})
            )
        log.file.close()  # without loss.png, which takes time
        return folder

    return make
