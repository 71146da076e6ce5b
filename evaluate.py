"""Measure trained models: perplexity, length extrapolation, recall, MQAR, zero-shot tasks.

    python evaluate.py out/demo_dense out/demo_cofrgenet      # on the validation split of their data set
    python evaluate.py out/demo_dense --ngrams=True
    python evaluate.py out/gpt2 gpt2 --texts=table_3 --compare=True --json=out/table_3.json
    python evaluate.py out/gpt2 Qwen/Qwen2.5-0.5B --texts=wikitext103 --window=1024
    python evaluate.py gpt2-xl --protocol=gpt2 --texts=wikitext103,lambada,lm1b
    python evaluate.py out/expe out/rope --task=extrapolation --texts=data/fineweb/gpt2/val.bin
    python evaluate.py out/gpt2 out/cofrgenet_a --task=recall --texts=data/openwebtext/gpt2/val.bin
    python evaluate.py out/mqar_softmax out/mqar_cattn_m --task=mqar
    python evaluate.py out/gpt2 --task=zero_shot --tasks=piqa,sciq

Several models become rows of one table, the best in bold.
"""

from host import interruption, openmp  # noqa: F401 (first, before torch)
from host.disk import make_folder, unwritable, write_whole

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import configurator
from config_keys import Count, CountOrNone
from corpus import DataError, mixture
from corpus.tokenizer import Tokenizer
from corpus.tokenizer_registry import Keys
from evaluation import (
    EvaluationError,
    extrapolation,
    figure,
    gpt2_protocol,
    mqar,
    ngram_rows,
    recall,
    report,
    texts,
    zero_shot,
)
from evaluation.models import Loaded, Opened, check_scale, different_tokenizers, open_model
from evaluation.perplexity import check_layout, perplexity
from reports import picture
from training.checkpoint import CheckpointError
from training.environment import environment
from training.hardware import Device, DeviceError, choose_device, missing_gpu

OF_TEXTS = ("texts", "split", "field", "join", "max_bytes", "max_tokens")
OF_PICTURES = ("plot", "plot_size", "plot_title", "plot_labels")
OF_TASK = {
    "perplexity": (*OF_TEXTS, "window", "stride", "compare", "protocol", "ngrams", "ngram_tokens"),
    "extrapolation": (*OF_TEXTS, "lengths", "scales", *OF_PICTURES, "compare"),
    "recall": (*OF_TEXTS, "window", "stride", *OF_PICTURES),
    "mqar": ("data",),
    "zero_shot": ("tasks", "include_path", "limit", "compare"),
}


@dataclass
class EvaluateConfig(Keys):
    """Measure trained models; several become rows of one table, the best in bold."""

    models: list[str]  # run folders, checkpoints, model folders, gpt2 and so on, or the hub's OWNER/NAME
    #: what to measure
    task: Literal["perplexity", "extrapolation", "recall", "mqar", "zero_shot"] = "perplexity"
    which: Literal["best", "last"] = "best"  # checkpoint of a run folder: lowest validation loss, or newest
    compare: bool = False  # also show the rows that the papers publish
    json: str | None = None  # new file that gets all numbers, settings, versions and the commit
    batch_size: Count = 8  # sequences in a batch; extrapolation: windows of the training length
    tokenizer: str | None = None  # for a model without one: gpt2, bytes or the path of a tokenizer.json
    trust_remote_code: bool = False  # run the Python code in the folder of a model of transformers
    device: Device = "auto"  # auto: a CUDA GPU if there is one; mps: Apple's, untried
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"  # dtype of matrix products
    # perplexity, extrapolation and recall
    texts: list[str] | None = None  # named sets, table_3, local files, prepared .bin; None: the runs' own
    split: str | None = None  # None: val for a prepared folder, test for what else has splits
    field: str = "text"  # which field of .jsonl, .csv and .parquet rows holds the text
    join: str | None = None  # between documents: blank_line, space, end_of_text, separate; None: published
    max_bytes: CountOrNone = None  # score only so many bytes of UTF-8, from the beginning of each text
    max_tokens: CountOrNone = None  # the same limit in tokens, for models of one tokenizer
    # perplexity and recall
    window: CountOrNone = None  # tokens that the model sees at once; None: its block_size
    stride: CountOrNone = None  # tokens by which the window moves; None: as published, or half a window
    # perplexity
    protocol: Literal["raw", "gpt2"] = "raw"  # per token, or (gpt2) per word of plain text
    ngrams: bool = False  # rows of unigram, bigram and trigram models of the runs' training tokens
    ngram_tokens: Count = 50_000_000  # training tokens to count at most, 60 bytes of memory for each
    # extrapolation
    lengths: list[str] | None = None  # multiples of the training length; None: 1,2,4,8,16
    scales: list[str] | None = None  # expe, exqpe: one row for each expe_inference_scale; None: the model's
    # extrapolation and recall
    plot: str | None = None  # picture file (.png, .pdf, .svg), which must not exist
    plot_size: str | None = None  # width and height of the picture in inches, such as 3.3x2.4
    plot_title: str | None = None  # title of the picture
    plot_labels: str | None = None  # what the legend calls the models, in the table's order: dense,ours
    # mqar
    data: str | None = None  # folder whose validation rows are scored; None: the runs' own data set
    # zero-shot
    tasks: list[str] | None = None  # harness tasks; None: the paper's table 6, mmlu and arc_challenge
    include_path: str | None = None  # folder with tasks of your own as YAML files
    limit: CountOrNone = None  # use only so many examples of each task

    def check(self) -> list[str]:
        wrong = []
        for field in dataclasses.fields(self):
            key, tasks = field.name, [t for t, keys in OF_TASK.items() if field.name in keys]
            if tasks and self.task not in tasks and getattr(self, key) != field.default:
                wrong.append(f"{key} acts with task={' or '.join(tasks)} only, not with {self.task}")
        kinds = {
            "lengths": (int, "multiples of the training length, whole numbers such as 1,2,4"),
            "scales": (float, "numbers above 0, separated by commas"),
        }
        for key, (kind, told) in kinds.items():
            for value in getattr(self, key) or []:
                try:
                    if not 0 < kind(value) < float("inf"):
                        raise ValueError
                except ValueError:
                    wrong.append(f"{key} must be {told}, not {value!r}")
        if self.end_token is not None and self.tokenizer is None:
            wrong.append("end_token is of --tokenizer: give the path of the tokenizer.json too")
        if self.max_bytes is not None and self.max_tokens is not None:
            wrong.append("max_bytes and max_tokens both limit the texts: give one of them")
        for key in ("join", "max_bytes", "max_tokens"):
            if self.protocol == "gpt2" and getattr(self, key) is not None:
                wrong.append(f"{key} acts with protocol=raw only: gpt2 joins and scores all of each text")
        if self.ngrams and self.protocol == "gpt2":
            wrong.append("ngrams acts with protocol=raw only: its models are of tokens, not of words")
        if not self.ngrams and self.ngram_tokens != type(self).ngram_tokens:
            wrong.append("ngram_tokens acts with ngrams=True only")
        if self.join is not None and self.join not in texts.JOINS:
            wrong.append(f"join must be one of {', '.join(texts.JOINS)}, not {self.join!r}")
        if self.task in ("extrapolation", "recall") and not self.texts:
            wrong.append(f"task={self.task} needs --texts=...: long documents, such as a prepared val.bin")
        if self.json is not None and not self.json.endswith(".json"):
            wrong.append(f"json must end in .json, not {self.json!r}")
        elif self.json is not None and (reason := unwritable(Path(self.json))):
            wrong.append(f"json={self.json} {reason}")
        drawn = picture.mistakes(self)
        if not drawn and self.task == "extrapolation":
            look = picture.look(self)
            drawn = picture.wrong_size(look, *figure.panels(look))
        wrong += drawn
        if len({Path(model) for model in self.models}) < len(self.models):
            wrong.append(f"a model is named twice: {', '.join(self.models)}")
        wrong += missing_gpu(self.device)
        return wrong


def main(argv: list[str]):
    config = configurator.parse(EvaluateConfig, argv, positional="models")
    try:
        keys = {"which": config.which, "tokenizer": config.tokenizer, "end_token": config.end_token}
        keys["trust_remote_code"] = config.trust_remote_code
        opened = [open_model(path, **keys) for path in config.models]
        names = [model.name for model in opened]
        for model, path in zip(opened, config.models, strict=True):
            model.name = path if names.count(model.name) > 1 else model.name
        tokenizers = different_tokenizers(opened)
        check_limit(config, tokenizers)
        found, results = MEASURES[config.task](config, opened)
    except (CheckpointError, DataError, DeviceError, EvaluationError, OSError) as error:
        sys.exit(f"evaluate.py: {error}")
    except torch.OutOfMemoryError as error:
        sys.exit(f"evaluate.py: out of memory ({str(error).splitlines()[0]}): take a smaller batch_size")
    except KeyboardInterrupt:
        sys.exit("evaluate.py: interrupted; nothing was written")
    per_token = {"tokenizers": tokenizers} if config.task in ("perplexity", "extrapolation") else {}
    lines, failed = [getattr(report, config.task)(results, config.compare, **per_token)], None
    lines += [f"{', '.join(counted['results'])}: {counted['of']}" for counted in found.get("ngrams", [])]
    if pairs := [name for name, source in found["texts"].items() if source.get("pairs")]:
        lines.append(f"both sides of pairs are scored ({', '.join(pairs)}), in train.py the targets alone")
    try:  # before anything is printed, which nobody may read
        if config.json:
            write_json(config, found)
            lines.append(f"numbers: {config.json}")
        if config.plot:
            drawn = getattr(figure, config.task)(results, picture.look(config), **per_token)
            picture.write(drawn, Path(config.plot))
            lines.append(f"picture: {config.plot}")
    except OSError as error:
        failed = f"evaluate.py: {error}"
    print("\n\n".join(lines))
    if failed:
        sys.exit(failed)


def check_limit(config: EvaluateConfig, tokenizers: str | None):
    """Raises EvaluationError if a limit in tokens would score other text for each model."""
    if config.max_tokens is not None and tokenizers is not None:
        raise EvaluationError(
            f"max_tokens={config.max_tokens} is another piece of text for each tokenizer, and those of the "
            f"models differ ({tokenizers}): give --max_bytes=N, which scores the same text for all"
        )


def limits(config: EvaluateConfig) -> dict[str, int | None]:
    return {"max_tokens": config.max_tokens, "max_bytes": config.max_bytes}


def of_texts(config: EvaluateConfig, opened: list[Opened]) -> tuple[dict, dict]:
    """(for JSON, {model: {text: result}})"""
    names = text_names(config, opened)
    if config.protocol == "gpt2":
        gpt2_protocol.check_texts(names)
    chosen = open_texts(config, names)
    for model in opened:
        for text in chosen:
            check_layout(model.name, model.config, stride(config, model.config, text), config.window)
    counted = ngram_rows.training_tokens(opened, config.ngram_tokens) if config.ngrams else []
    known: dict[str, dict[str, tuple]] = {}

    def sized(tokenizer: Tokenizer) -> dict[str, tuple]:
        if tokenizer.hash not in known:
            given = (tokenizer, config.join)
            known[tokenizer.hash] = {text.name: text.sized(*given, **limits(config)) for text in chosen}
        return known[tokenizer.hash]

    found = about(config, opened, chosen)
    results, found["ngrams"] = ngram_rows.measured(counted, {model.name for model in opened}, sized)
    for loaded in in_turn(config, opened, found):
        results[loaded.name] = {}
        for text in chosen:
            step, label = stride(config, loaded.config, text), f"{loaded.name}, {text.name}"
            if config.protocol == "gpt2":
                given = (loaded, text, step, config.window, config.batch_size, label)
                results[loaded.name][text.name] = gpt2_protocol.score(*given)
                continue
            pieces, sizes = sized(loaded.tokenizer)[text.name]
            results[loaded.name][text.name] = perplexity(
                loaded, pieces, step, config.window, config.batch_size, label, sizes
            )
        found["models"][-1]["results"] = results[loaded.name]
    return found, results


def text_names(config: EvaluateConfig, opened: list[Opened]) -> list[str]:
    """The texts of --texts, or the data sets that the runs were trained on, whose validation splits count.

    Raises EvaluationError where there are none.
    """
    six = [name for name in texts.NAMED if of_protocol(config, name)]
    if config.texts is not None:
        named = [six if name == texts.TABLE_3 else [name] for name in config.texts]
        return list(dict.fromkeys(itertools.chain.from_iterable(named)))
    if config.protocol == "gpt2":
        return six
    give = f"give a text, as in --texts=PATH, or --texts={texts.TABLE_3} for the papers' six"
    trained = {model.name: model.source.dataset for model in opened if model.source.dataset}
    if not trained:
        raise EvaluationError(f"{opened[0].name} is no run, which would have a validation split: {give}")
    found = {folder: name for name, dataset in trained.items() for folder in mixture.parse(dataset)[0]}
    for folder, name in found.items():
        if not (Path(folder) / "meta.json").is_file():
            raise EvaluationError(f"{name} was trained on {folder}, which is not here: {give}")
    return list(found)


def of_protocol(config: EvaluateConfig, name: str) -> bool:
    known = {*gpt2_protocol.RULES, *gpt2_protocol.FINAL_WORD}
    return config.protocol == "raw" or name in known


def of_lengths(config: EvaluateConfig, opened: list[Opened]) -> tuple[dict, dict]:
    """(for JSON, {model: result}), a row for each scale of a model"""
    chosen = open_texts(config, text_names(config, opened))
    factors = [int(k) for k in config.lengths or (1, 2, 4, 8, 16)]
    for model in opened:
        extrapolation.check_model(model.name, model.config)
    scales = [float(s) for s in config.scales or []]
    if len(opened) == 1:
        for scale in scales:
            check_scale(opened[0].name, opened[0].config, scale)
    arms = []
    for model in opened:
        of_expe = model.config.position in ("expe", "exqpe")
        for scale in (scales if of_expe else []) or [model.config.expe_inference_scale]:
            name = f"{model.name}, scale {scale:g}" if of_expe and scales else model.name
            arms.append((dataclasses.replace(model, name=name), scale))
    check_labels(config, [model.name for model, _ in arms])
    streams: dict[str, list] = {}
    for model in opened:  # before anything is measured: whether the texts have documents for all of them
        if (key := model.tokenizer.hash) not in streams:
            given = (model.tokenizer, config.join or "separate")
            streams[key] = [s for text in chosen for s in text.streams(*given, **limits(config))]
        extrapolation.check_documents(model.name, streams[key], model.config.block_size, factors)
    found, results = about(config, opened, chosen), {}
    for loaded in in_turn(config, [model for model, _ in arms], found, [scale for _, scale in arms]):
        results[loaded.name] = extrapolation.extrapolate(
            loaded, streams[loaded.tokenizer.hash], factors, config.batch_size, loaded.name
        )
        found["models"][-1]["results"] = results[loaded.name]
    return found, results


def of_repeats(config: EvaluateConfig, opened: list[Opened]) -> tuple[dict, dict]:
    """(for JSON, {model: result}), of all texts together"""
    recall.check_comparable(opened)
    check_labels(config, [model.name for model in opened])
    chosen = open_texts(config, text_names(config, opened))
    window = config.window or min(model.config.block_size for model in opened)
    step = config.stride or max(1, window // 2)
    for model in opened:
        check_layout(model.name, model.config, step, window)
    given = (opened[0].tokenizer, config.join)
    streams = [stream for text in chosen for stream in text.streams(*given, **limits(config))]
    found, results = about(config, opened, chosen), {}
    for loaded in in_turn(config, opened, found):
        results[loaded.name] = recall.recall(loaded, streams, step, window, config.batch_size, loaded.name)
        found["models"][-1]["results"] = results[loaded.name]
    return found, results


def of_rows(config: EvaluateConfig, opened: list[Opened]) -> tuple[dict, dict]:
    """(for JSON, {model: result})"""
    data = mqar.open_rows(opened, config.data)
    found, results = about(config, opened, []), {}
    found["data"] = {"folder": str(data.folder), "recipe": data.meta.get("source")}
    for loaded in in_turn(config, opened, found):
        results[loaded.name] = mqar.mqar(loaded, data, config.batch_size, loaded.name)
        found["models"][-1]["results"] = results[loaded.name]
    return found, results


def of_tasks(config: EvaluateConfig, opened: list[Opened]) -> tuple[dict, dict]:
    """(for JSON, {model: {task: {metric: value}}})"""
    answer = zero_shot.evaluate(
        {model.name: path for model, path in zip(opened, config.models, strict=True)},
        which=config.which,
        tokenizer=config.tokenizer,
        end_token=config.end_token,
        trust_remote_code=config.trust_remote_code,
        device=config.device,
        dtype=config.dtype,
        tasks=config.tasks or zero_shot.TASKS,
        batch_size=config.batch_size,
        limit=config.limit,
        include_path=config.include_path,
    )
    found = about(config, opened, [])
    found["models"] = answer["models"]
    found["versions"] |= answer["versions"]
    return found, {model["name"]: model["results"] for model in answer["models"]}


def check_labels(config: EvaluateConfig, names: list[str]):
    """Raises EvaluationError where plot_labels are not as many as the rows of the table."""
    if wrong := picture.wrong_labels(picture.look(config).labels, names):
        raise EvaluationError(wrong[0])


def open_texts(config: EvaluateConfig, names: list[str]) -> list[texts.Text]:
    return [texts.open_text(name, config.split, config.field) for name in names]


def stride(config: EvaluateConfig, model, text: texts.Text) -> int:
    """config.stride, else the published stride if the window has room for it, else half a window."""
    window = config.window or model.block_size
    if config.stride is not None:
        return config.stride
    return text.stride if text.stride and text.stride < window else max(1, window // 2)


def in_turn(
    config: EvaluateConfig, opened: list[Opened], found: dict, scales: list[float] | None = None
) -> Iterator[Loaded]:
    """Load the models, one at a time, and note each in found["models"]."""
    for number, model in enumerate(opened):
        loaded = model.load(config.device, config.dtype, scales[number] if scales else None)
        found["models"].append({"name": loaded.name, **loaded.facts(), "dtype": loaded.dtype})
        yield loaded


def about(config: EvaluateConfig, opened: list[Opened], chosen: list[texts.Text]) -> dict:
    """What the JSON file says about the numbers: settings, environment, versions, texts."""
    return {
        "task": config.task,
        "settings": dataclasses.asdict(config),
        **environment(choose_device(config.device)),
        "versions": report.versions(),
        "texts": {text.name: text.source for text in chosen},
        "models": [],
    }


def write_json(config: EvaluateConfig, found: dict):
    path = Path(config.json)
    make_folder(path.parent)
    if path.exists():
        raise OSError(f"{path} was written by another process meanwhile, and nothing is overwritten")
    write_whole(path, json.dumps(found, indent=1) + "\n")


MEASURES = {
    "perplexity": of_texts,
    "extrapolation": of_lengths,
    "recall": of_repeats,
    "mqar": of_rows,
    "zero_shot": of_tasks,
}

if __name__ == "__main__":
    main(sys.argv[1:])
