"""Count parameters, FLOPs and cache of models, exactly and in closed form, one line a model.

    python count.py config/gpt2*.py config/cofrgenet*.py
    python count.py config/gpt2.py config/cofrgenet_f.py+config/size/small.py --block_size=2048

Each argument is a model; `+` stacks config files within it. A --key=value applies to all models. Without
vocab_size, the vocabulary is GPT-2's.
"""

from host import interruption  # noqa: F401 (first)

import re
import sys
from pathlib import Path

import configurator
import overlays
from models.architecture import ModelConfig
from models.kinds import cache_bytes_per_token, flops_per_token, parameter_counts, without_embeddings

COLUMNS = "parameters published no_embeddings embedding position attention ffn norm forward training cache"


def published(files: list[str]) -> str:
    """The parameter count that the head of a config file quotes from its paper (`Published: 985M`).

    Empty for a stack of files: that is another model than the paper's.
    """
    if len(files) != 1:
        return ""
    found = re.search(r"Published: ([\d.]+[MB])", Path(files[0]).read_text())
    return found[1] if found else ""


def main(argv: list[str]):
    overrides = [argument for argument in argv if argument.startswith("-")]
    if not argv or "-h" in overrides or "--help" in overrides:
        print(__doc__)
        configurator.parse(ModelConfig, ["--help"])
    try:
        remarks = overlays.check("count.py", argv)
    except configurator.ConfigError as error:
        print(f"count.py: {error}", file=sys.stderr)
        sys.exit(2)
    models = [argument for argument in argv if not argument.startswith("-")] or [""]
    configs = [configurator.parse(ModelConfig, [*filter(None, [model]), *overrides]) for model in models]
    widths = [max(24, *map(len, models)), 14, 9, 14, 13, 9, 13, 13, 8, 9, 9, 8]

    def row(*cells):
        first, *rest = (str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True))
        return " ".join([first.strip().ljust(widths[0]), *rest])

    print(row("model", *COLUMNS.split()))
    for name, config in zip(models, configs, strict=True):
        config.vocab_size = config.vocab_size or 50257
        counts = parameter_counts(config)
        forward = flops_per_token(config) / 1e6
        numbers = [counts[part] for part in ("embedding", "position", "attention", "ffn", "norm")]
        numbers = [f"{n:,}" for n in (without_embeddings(counts), *numbers)]
        flops = (f"{forward:,.1f}", f"{3 * forward:,.1f}")
        cache = f"{cache_bytes_per_token(config):,}"
        # an override makes another model than the paper's
        paper = published(configurator.stacked(name)) if name and not overrides else ""
        print(row(name, f"{sum(counts.values()):,}", paper, *numbers, *flops, cache))
    print(
        "\npublished: parameter count that the paper gives for this model; forward, training: model MFLOPs "
        "per token at block_size, causal attention counted in full; cache: bytes per past token in bfloat16"
    )
    for name, config in zip(models, configs, strict=True):
        for key in ("attention", "ffn"):
            if len(names := config.names(key)) > 1:
                goes_on = ", and so on" if config.n_layer > len(names) else ""
                print(f"{key} by layer{f' in {name}' if name else ''}: {', '.join(names)}{goes_on}")
        if idle := config.unused_keys():
            print(f"without effect in {name or 'this model'}: {', '.join(idle)}")
    for line in remarks:
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
