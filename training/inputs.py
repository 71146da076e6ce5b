"""What a run starts from, opened and checked before anything is built: an earlier configuration, data,
another model's weights.
"""

from pathlib import Path

import numpy as np

from configurator import ConfigError
from data import mixture
from data.loader import Dataset
from data.mixture import Mixture
from training import pretrained, surgery
from training.checkpoint import CheckpointError
from training.config import TrainConfig


def saved_config(given: dict) -> Path | dict | None:
    """A resumed run has the configuration that it was started with, where the command line says nothing;
    a run that starts from another model's weights has its architecture.

    Without a checkpoint there is nothing to resume, and nothing of an earlier start counts.
    """
    folder = Path(given.get("out_dir", TrainConfig.out_dir))
    if given.get("resume") and any(folder.glob("ckpt/*.pt")) and (folder / "config.json").is_file():
        return folder / "config.json"
    if not given.get("init_from"):
        return None
    try:
        return surgery.architecture(pretrained.open_source(given["init_from"]), given)
    except CheckpointError as error:
        raise ConfigError([f"init_from: {error}"]) from None


def open_source(config: TrainConfig, data: Dataset | Mixture) -> pretrained.Source:
    """The model to start from; raises CheckpointError where its tokens are not the data's."""
    source = pretrained.open_source(config.init_from)
    pretrained.check_tokenizer(source, data.tokenizer())
    return source


def open_data(config: TrainConfig) -> tuple[Dataset | Mixture, np.ndarray]:
    """The training split, opened and checked, and the fixed validation windows [count, block_size + 1].

    Sets config.vocab_size where it was None. Raises DataError before anything is built.
    """
    samples_per_step = config.batch_size * config.gradient_accumulation_steps
    keys = (config.block_size, config.vocab_size)
    data = mixture.open_dataset(config.dataset, "train", *keys, samples_per_step)
    config.vocab_size = config.vocab_size or data.meta["vocab_size"]
    data.windows(0, samples_per_step, config.seed)  # refuses tokens that the vocabulary does not have
    validation = mixture.open_dataset(config.dataset, "val", *keys)
    windows = validation.validation_windows(max(1, config.eval_tokens // config.block_size))
    # what an evaluation and a checkpoint will need must not be found missing hours later
    data.target_bytes(windows)
    data.tokenizer()
    return data, windows
