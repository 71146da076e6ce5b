"""Parameters, FLOPs and cache of models as a table: what `python model.py` prints."""

import re
from pathlib import Path

import configurator
from architecture import ModelConfig
from model import cache_bytes_per_token, flops_per_token, parameter_counts


def published(arguments: list[str]) -> str:
    """The paper's figure, where the head of a config file has it as `Published: 985M`; none for what more
    files or overrides make of it, which is another model.
    """
    if len(arguments) != 1 or not arguments[0].endswith(".py"):
        return ""
    found = re.search(r"Published: ([\d.]+[MB])", Path(arguments[0]).read_text())
    return found[1] if found else ""


def print_accounts(usage: str, arguments: list[str]):
    """One line a model; without vocab_size the vocabulary is GPT-2's. `usage` is printed with --help."""
    overrides = [a for a in arguments if a.startswith("--")]
    if "--help" in overrides or not arguments:
        print(usage)
        configurator.parse(ModelConfig, ["--help"])
    models = [a for a in arguments if not a.startswith("--")] or [""]
    stacks = [list(filter(None, m.split("+"))) for m in models]
    configs = [configurator.parse(ModelConfig, [*stack, *overrides]) for stack in stacks]
    columns = (
        "parameters published no_embeddings embedding position attention ffn norm forward training cache"
    )
    widths = [max(24, *map(len, models)), 14, 9, 14, 13, 9, 13, 13, 8, 9, 9, 8]

    def row(*cells):
        first, *rest = (str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True))
        return " ".join([first.strip().ljust(widths[0]), *rest])

    print(row("model", *columns.split()))
    for name, stack, config in zip(models, stacks, configs, strict=True):
        config.vocab_size = config.vocab_size or 50257
        counts = parameter_counts(config)
        total = sum(counts.values())
        body = total - counts["embedding"] - counts["position"]
        forward = flops_per_token(config) / 1e6
        numbers = [body, *(counts[part] for part in ["embedding", "position", "attention", "ffn", "norm"])]
        flops = (f"{forward:,.1f}", f"{3 * forward:,.1f}")
        cache = f"{cache_bytes_per_token(config):,}"
        paper = published([*stack, *overrides])
        print(row(name, f"{total:,}", paper, *(f"{n:,}" for n in numbers), *flops, cache))
    print(
        "\npublished: by the papers, of the model that they give this name; forward, training: model "
        "MFLOPs per token at block_size, causal attention counted in full; cache: bytes per token of the "
        "past in bfloat16"
    )
    for name, config in zip(models, configs, strict=True):
        if idle := config.unused_keys():
            print(f"without effect in {name or 'this model'}: {', '.join(idle)}")
