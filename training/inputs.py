"""What a run starts from, opened and checked before anything is built: an earlier configuration, data,
another model's weights.
"""

import contextlib
import dataclasses
import difflib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from configurator import ConfigError
from corpus import DataError, VocabularyError, commands, mixture
from corpus.loader import Dataset
from corpus.mixture import Mixture
from training import checkpoint, pretrained, surgery
from training.checkpoint import CheckpointError
from training.config import RunConfig, TrainConfig
from training.distributed import Ranks

VERIFY_SECONDS = 5  # between two signs of life
# what nanoGPT's other values of init_from are here
NANOGPTS = {
    "scratch": ". To start with random weights, leave it out",
    "resume": ". To go on with a run, give --resume=True and its --out_dir",
}


def saved_config(given: dict) -> Path | dict | None:
    """A resumed run has the configuration that it was started with, where the command line says nothing;
    a run that starts from another model's weights has its architecture.

    Without a checkpoint there is nothing to resume, and nothing of an earlier start counts. Raises
    ConfigError where such a run would start anew and nothing but its folder is named.
    """
    folder = Path(given.get("out_dir", TrainConfig.out_dir))
    if given.get("resume") and checkpoint.saved(folder) and (folder / "config.json").is_file():
        return folder / "config.json"
    if given.get("resume") and given.keys() <= {"resume", "out_dir"}:
        if checkpoint.saved(folder):
            missing = (
                "has checkpoints, but its config.json is gone, and no config file or key says the same"
            )
            raise ConfigError([f"resume: {folder} {missing}: put the file back, or name what it held"])
        runs = [str(run.parent) for run in folder.parent.glob("*/ckpt") if run.parent != folder]
        runs = [] if (folder / "config.json").is_file() else runs
        near = difflib.get_close_matches(str(folder), runs, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        missing = "has no checkpoint to go on from, and no config file or key says what to train anew"
        raise ConfigError([f"resume: {folder} {missing}{hint}"])
    if not given.get("init_from"):
        return None
    try:
        planned = bool(given.get("dry_run"))
        return surgery.architecture(pretrained.open_source(given["init_from"], planned=planned), given)
    except CheckpointError as error:
        instead = NANOGPTS.get(given["init_from"], "")
        raise ConfigError([f"init_from: {error}{instead}"]) from None


def open_source(config: TrainConfig, data: Dataset | Mixture) -> pretrained.Source:
    """The model to start from; raises CheckpointError where its tokens are not the data's."""
    source = pretrained.open_source(config.init_from, planned=config.dry_run)
    if source.config.encoder_layers and source.tokenizer is None:
        raise CheckpointError(
            f"{source.path} is a T5, which begins to decode with padding and ends a source with </s>: the "
            "pairs of a data set here do neither. docs/weights.md shows how to use it in Python. "
            "--init_from takes translators that were trained here"
        )
    try:
        pretrained.check_tokenizer(source, data.tokenizer())
    except CheckpointError as error:
        if data.unit == "rows":
            raise CheckpointError(f"{error}. No tokenizer of texts can: start anew") from None
        raise CheckpointError(f"{error}:\n{how_to_prepare(config, source, data)}") from None
    return source


def how_to_prepare(config: TrainConfig, source: pretrained.Source, data: Dataset | Mixture) -> str:
    """The commands that prepare the data with the source's tokenizer, and how to train on the result."""
    option, lines, dataset = pretrained.tokenizer_option(source), [], config.dataset
    if option is None:
        folder = Path("exported", Path(config.init_from).stem)
        option = str(folder / "tokenizer.json")
        lines.append(commands.typeable(commands.ROOT / "export.py", [config.init_from, str(folder)]))
    for one in data.sources if isinstance(data, Mixture) else [data]:
        out, how = commands.with_tokenizer(one.folder, one.meta, option)
        lines += how
        dataset = dataset.replace(str(one.folder), str(out))
    return "\n".join(
        [f"  {line}" for line in lines] + [f"then train with {shlex.join([f'--dataset={dataset}'])}"]
    )


def open_data(config: TrainConfig) -> tuple[Dataset | Mixture, np.ndarray]:
    """The training split, opened and checked, and the fixed validation windows [count, T + 1].

    Of pairs, the validation loss is always that of the targets. Raises DataError before anything is built.
    """
    samples_per_step = config.batch_size * config.gradient_accumulation_steps
    keys = (config.block_size, config.vocab_size)
    if config.init_from:
        check_prepared(config)
    try:
        data = mixture.open_dataset(config.dataset, "train", *keys, samples_per_step, config.score_source)
    except VocabularyError:
        if config.init_from:  # the source fixes vocab_size, so that another one is no way out
            refuse_vocabulary(config)
        raise
    if config.encoder_layers and not data.of_pairs:
        raise DataError(
            f"encoder_layers={config.encoder_layers}, but {config.dataset} has no pairs: an encoder reads "
            "the source of a pair; prepare pairs, such as by data/pairs/prepare.py, or leave it out"
        )
    if config.model == "saffu" and data.unit != "tokens":
        raise DataError(
            f"model=saffu sees no token before an end-of-text, and {config.dataset} holds {data.unit}, "
            "whose targets stand behind one: it would never see what they depend on. Take model=gpt, or "
            "texts"
        )
    data.windows(0, samples_per_step, config.seed)  # refuses tokens that the vocabulary does not have
    validation = mixture.open_dataset(config.dataset, "val", *keys)
    windows = validation.validation_windows(max(1, config.eval_tokens // config.block_size))
    # what an evaluation and a checkpoint will need must not be found missing hours later
    data.target_bytes(windows)
    data.tokenizer()
    for _ in validation.verified():  # small, and every loss that the run reports rests on it
        pass
    return data, windows


def resolved(config: TrainConfig, data: Dataset | Mixture, dtype: str) -> RunConfig:
    """What a run is: the config with all that it left open. dtype: of `choose_dtype`."""
    values = dataclasses.asdict(config) | {"dtype": dtype}
    values["vocab_size"] = config.vocab_size or data.meta["vocab_size"]
    if config.model == "saffu" and config.saffu_end_of_text is None:
        values["saffu_end_of_text"] = data.meta["end_of_text"]
    if config.dyadic and config.dyadic_iters is None:
        values["dyadic_iters"] = config.max_iters
    return RunConfig(**values)


def check_prepared(config: TrainConfig):
    """Raises DataError that says how to prepare a missing data set with the tokenizer of init_from."""
    for folder in map(Path, mixture.parse(config.dataset)[0]):
        if not (folder / "meta.json").is_file():
            option = None
            with contextlib.suppress(CheckpointError):  # said later, where the source is needed
                option = pretrained.tokenizer_option(pretrained.open_source(config.init_from))
            raise DataError(commands.missing(folder, option))


def refuse_vocabulary(config: TrainConfig):
    """Raises DataError where the tokens of the data are not those of init_from."""
    data = mixture.open_dataset(config.dataset, "train", config.block_size)
    try:
        open_source(config, data)
    except CheckpointError as error:
        raise DataError(str(error)) from None


def verify_training_data(config: TrainConfig, data: Dataset | Mixture, ranks: Ranks, resumed: bool):
    """Read the whole training split and compare it with what was prepared; raises DataError.

    verify_data=None: at the start of a run that reads at least half as many tokens as the split has, where
    checksums are recorded. Then reading and checking a token takes about 4 ns, training on it 200 ns or
    more, even on eight GPUs: at most 4 % of such a run, and below 1 % on one GPU. One rank of each machine
    reads, the others wait.
    """
    wanted, sources = config.verify_data, data.sources if isinstance(data, Mixture) else [data]
    if wanted is None:
        samples = config.max_iters * config.batch_size * config.gradient_accumulation_steps
        tokens = sum(len(source.tokens) for source in sources)
        recorded = all("files" in source.meta for source in sources)
        wanted = recorded and not resumed and 2 * samples * config.block_size >= tokens
    if not wanted:
        return
    portions = data.verified() if ranks.local_rank == 0 else iter(())
    total = sum(source.tokens.nbytes for source in sources)
    # the bar appears after two seconds: most data sets are read by then
    keys = {"total": total, "unit": "B", "unit_scale": True, "delay": 2, "disable": not ranks.first}
    with tqdm(desc="verifying the training data", **keys) as bar:
        # in turns, because a rank that waits for another one gives up after distributed_timeout
        while ranks.any((read := ranks.agree(lambda: _read_on(portions), (DataError,))) > 0):
            bar.update(read)


def _read_on(portions: Iterator[int]) -> int:
    """The bytes that were read in about VERIFY_SECONDS; 0 at the end."""
    start, read = time.monotonic(), 0
    for size in portions:
        read += size
        if time.monotonic() - start > VERIFY_SECONDS:
            break
    return read
