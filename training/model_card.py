"""The model card of an export: README.md of a folder that transformers and the hub read."""

import shlex

import config_keys
from models.architecture import ModelConfig
from models.kinds import parameter_counts
from training import tracking
from training.config import DEFAULTS

# keys that say where and under which eyes a run trained
LEFT_OUT = {"out_dir", "resume", "init_from", *config_keys.names(tracking.Keys)}
CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: other # fill in: see below
tags:
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
```

With the codebase: `python sample.py path/to/{name}`, `python evaluate.py path/to/{name} --texts=text.txt`.

## How it was trained

{training}

## Licence

Fill in the licence of these weights, here and in the first lines of this file. The licence of the training
text may limit it.
{code}"""


def card(name: str, config: ModelConfig, own_code: bool, about: dict | None = None) -> str:
    """The text of the card.

    own_code: whether the folder holds the model's code. about: of the checkpoint of a run: its config,
    step, tokens, best_val_loss and commit; None where the model comes from elsewhere.
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
        keys = {key: value for key, value in about["config"].items() if value != DEFAULTS.get(key)}
        command = [f"--{key}={_written(value)}" for key, value in keys.items() if key not in LEFT_OUT]
        training = f"With the keys of its last checkpoint, at commit `{about['commit']}`:\n\n    "
        training += " \\\n        ".join(["python train.py", *map(shlex.quote, command)])
        rows |= {
            "training data": f"`{about['config']['dataset']}`",
            "trained for": f"{about['step']:,} steps, {about['tokens']:,} tokens",
            "lowest validation loss": f"{about['best_val_loss']:.4f} nats per token",
        }
    return CARD.format(
        name=name,
        tags="\n".join(f"- {tag}" for tag in dict.fromkeys(["cofrgenet", *_names(kinds)])),
        parts=", ".join(f"{part} `{kind}`" for part, kind in kinds.items()),
        rows="\n".join(f"| {what} | {value} |" for what, value in rows.items()),
        trust=", trust_remote_code=True" if own_code else "",
        training=training,
        code="The model's code in this folder has the licence of the file LICENSE.\n" if own_code else "",
    )


def _names(kinds: dict[str, str]) -> list[str]:
    return [name for kind in kinds.values() for name in kind.split(",")]


def _written(value) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
