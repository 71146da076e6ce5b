"""The model card of an export: README.md of a folder that transformers and the hub read."""

import contextlib
import os
import shlex
from pathlib import Path

import config_keys
from corpus import DataError, mixture
from corpus.loader import read_meta
from models.architecture import ModelConfig
from models.kinds import parameter_counts
from reports.plural import counted
from training import tracking
from training.config import DEFAULTS
from training.log import RunFolderError, read_log

# keys that say where and under which eyes a run trained
LEFT_OUT = {"out_dir", "resume", *config_keys.names(tracking.Keys)}
CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: other # fill in: see below
{base_model}tags:
{tags}
---

# {name}

A language model of the CoFrGeNet codebase: {parts}.

| | |
|---|---|
{rows}

## Load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "path/to/{name}"  # this folder
model = AutoModelForCausalLM.from_pretrained(folder{trust})
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
written = model.generate(**tokenizer("The", return_tensors="pt"), do_sample=True, max_new_tokens={new})
print(tokenizer.decode(written[0], skip_special_tokens=True))
```

With the codebase: `python sample.py path/to/{name}`, `python evaluate.py path/to/{name} --texts=text.txt`.

## How it was trained

{training}

## Licence

Fill in the licence of these weights, here and in the first lines of this file. The licence of the training
text may limit it.
{code}"""


def card(
    name: str,
    config: ModelConfig,
    own_code: bool,
    about: dict | None = None,
    base_model: str | None = None,
) -> str:
    """The text of the card.

    own_code: whether the folder holds the model's code. about: of the checkpoint of a run: its path,
    config, step, tokens, commit, data and tokenizer; None where the model comes from
    elsewhere. base_model: the hub's OWNER/NAME that the run started from, if it did.
    """
    counts = parameter_counts(config)
    kinds = {part: getattr(config, part) for part in config.parts()}
    bare = sum(counts.values()) - counts["embedding"] - counts.get("position", 0)
    rows = {
        "parameters": f"{sum(counts.values()):,}, without embeddings {bare:,}",
        "layers, width, heads": f"{config.n_layer}, {config.n_embd}, {config.n_head}",
        "context": f"{config.block_size:,} tokens",
        "vocabulary": f"{config.vocab_size:,} tokens",
    }
    training = "Not known: the weights come from another folder."
    if about is not None:
        given = {**about["config"], "dataset": _shown_data(about["config"]["dataset"])}
        training = f"With the keys of its last checkpoint, at commit `{about['commit']}`:\n\n    "
        if given["init_from"]:
            start = base_model or _last_folder(given["init_from"])
            where = "of the Hugging Face hub" if base_model else "a local model"
            given["init_from"] = start
            training = f"Started from the weights of `{start}`, {where}. {training}"
        keys = {key: value for key, value in given.items() if value != DEFAULTS.get(key)}
        command = [f"--{key}={_written(value)}" for key, value in keys.items() if key not in LEFT_OUT]
        training += " \\\n        ".join(["python train.py", *map(shlex.quote, command)])
        rows |= {
            "training data": f"`{given['dataset']}`",
            **({"source of the text": sources} if (sources := _sources(about)) else {}),
            "tokenizer": f"`{about['tokenizer']['kind']}`",
            "trained for": f"{about['step']:,} steps, {about['tokens']:,} tokens",
            **_validation(about),
        }
    return CARD.format(
        name=name,
        base_model=f"base_model: {base_model}\n" if base_model else "",
        tags="\n".join(f"- {tag}" for tag in dict.fromkeys(["cofrgenet", *_names(kinds)])),
        parts=", ".join(f"{part} `{kind}`" for part, kind in kinds.items()),
        rows="\n".join(f"| {what} | {value} |" for what, value in rows.items()),
        trust=", trust_remote_code=True" if own_code else "",
        new=min(50, config.block_size // 2),
        training=training,
        code="The model's code in this folder has the licence of the file LICENSE.\n" if own_code else "",
    )


def _names(kinds: dict[str, str]) -> list[str]:
    return [name for kind in kinds.values() for name in kind.split(",")]


def _written(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _last_folder(path: str) -> str:
    """Of a checkpoint, the run's."""
    path = Path(os.path.abspath(path))
    return path.parents[1].name if path.parent.name == "ckpt" else path.name


def _shown_data(dataset: str) -> str:
    """The key `dataset`, with the last folder only of a path that begins elsewhere (/ or ..)."""
    with contextlib.suppress(DataError):
        for folder in sorted(mixture.parse(dataset)[0], key=len, reverse=True):
            if Path(folder).is_absolute() or ".." in Path(folder).parts:
                dataset = dataset.replace(folder, Path(os.path.abspath(folder)).name)
    return dataset


def _sources(about: dict) -> str:
    """What the data sets say of their texts, unless one is not here, or holds other data now."""
    found = []
    with contextlib.suppress(DataError):
        trained_on = about["data"].get("sources", [about["data"]])
        for folder, known in zip(mixture.parse(about["config"]["dataset"])[0], trained_on, strict=True):
            meta = read_meta(Path(folder))
            if meta["splits"] != known["splits"]:
                return ""
            found.append(_source(meta.get("source", {})))
        return "; ".join(found)
    return ""


def _source(source: dict) -> str:
    """source: as meta.json has it. Names of local files are the owner's."""
    if "hub" in source:
        config = f", config `{source['config']}`" if source.get("config") else ""
        return f"`{source['hub']}` of the Hugging Face hub{config}"
    if "package" in source:
        return f"package `{source['package']}`"
    if "sources" in source:
        return ", ".join(f"`{name}`" for name in source["sources"])
    return counted(source["number_of_files"], "local file") if "number_of_files" in source else "local text"


def _validation(about: dict) -> dict[str, str]:
    """A row with the loss of these weights, where the run's log has an evaluation of their step."""
    with contextlib.suppress(RunFolderError):
        for record in read_log(about["path"].parents[1]) if about["path"].parent.name == "ckpt" else []:
            if record["step"] == about["step"] and "val_loss" in record:
                bits = f"{record['val_bits_per_byte']:.4f} bits per byte"
                return {"validation loss": f"{record['val_loss']:.4f} nats per token, {bits}"}
    return {}
