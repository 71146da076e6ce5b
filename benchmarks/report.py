"""The tables that bench.py prints of whole models."""

import dataclasses

from benchmarks.timing import quartiles
from benchmarks.training_step import PARTS
from evaluation import published
from models.kinds import cache_bytes_per_token, flops_per_token, parameter_counts
from reports.markdown_table import table
from training.hardware import device_name, peak_flops

PUBLISHED = {
    "train": "hours of a whole training, of GPT2-xl on 16 H100 (table 4), of Llama on 128 H100 (table 7)",
    "infer": "microseconds of inference for a sample of GPT2-xl's size on an A100 (table 4)",
}


def training(config, models, seconds, memory, tokens, device) -> dict:
    """Prints the table of a training step, and returns all numbers.

    seconds, memory: results of bench.py's `measure`.
    """
    peak = peak_flops(device_name(device), config.dtype)
    rows, parts, numbers = [], [], {}
    first = None
    for name, model in models.items():
        low, median, high = quartiles(seconds[name]["whole"])
        flops = 3 * flops_per_token(model)
        head = 3 * 2 * model.n_embd * model.padded_vocab_size if model.model == "gpt" else flops
        blocks = quartiles(seconds[name].get("blocks", [0.0]))[1]
        found = {
            "config": dataclasses.asdict(model),
            "parameters": sum(parameter_counts(model).values()),
            "flops_per_token": flops,
            "flops_per_token_blocks": flops - head,
            "tokens_per_second": tokens / median,
            "seconds": seconds[name],
            "peak_bytes": memory[name],
        }
        first = first or (median, blocks, found)
        speed_up, flop_ratio = first[0] / median, first[2]["flops_per_token"] / flops
        numbers[name] = found | {"speed_up": speed_up, "flop_ratio": flop_ratio}
        rows.append(
            {
                "model": name,
                "parameters": f"{found['parameters']:,}",
                "MFLOPs/token": millions(flops),
                "tokens/s": f"{tokens / median:,.0f}",
                "quartiles": f"{tokens / high:,.0f} .. {tokens / low:,.0f}",
                "peak MB": "" if memory[name] is None else f"{memory[name] / 1e6:,.0f}",
                "TFLOP/s": f"{tokens * flops / median / 1e12:.3g}",
                "MFU": share(tokens * flops / median, peak),
                "speed-up": f"{speed_up:.2f}",
                "by FLOPs": f"{flop_ratio:.2f}",
                "of that": f"{speed_up / flop_ratio:.2f}",
            }
        )
        if config.parts:
            body_up = first[1] / blocks
            body_ratio = first[2]["flops_per_token_blocks"] / (flops - head)
            numbers[name] |= {"blocks_speed_up": body_up, "blocks_flop_ratio": body_ratio}
            parts.append(
                {
                    "model": name,
                    "step ms": f"{1e3 * median:,.1f}",
                    **{part: f"{1e3 * quartiles(seconds[name][part])[1]:,.1f}" for part in PARTS},
                    "blocks": f"{1e3 * blocks:,.1f}",
                    "speed-up": f"{body_up:.2f}",
                    "by FLOPs": f"{body_ratio:.2f}",
                    "of that": f"{body_up / body_ratio:.2f}",
                }
            )
    print(table(rows))
    if parts:
        print("\nmilliseconds of the parts, each measured alone; at the end the stack of blocks")
        print(table(parts))
    _show_published(config)
    return {"models": numbers}


def decoding(config, models, seconds, memory) -> dict:
    """Prints the table of steps and prompts, and returns all numbers. seconds, memory: see `training`."""
    rows, numbers, first = [], {}, None
    for name, model in models.items():
        low, median, high = quartiles(seconds[name]["step"])
        prompt = quartiles(seconds[name]["prefill"])[1]
        flops = flops_per_token(model)
        first = first or (median, prompt)
        found = {
            "config": dataclasses.asdict(model),
            "parameters": sum(parameter_counts(model).values()),
            "flops_per_token": flops,
            "cache_bytes_per_token": cache_bytes_per_token(model),
            "microseconds_per_token": 1e6 * median / config.batch_size,
            "speed_up": first[0] / median,
            "prompt_speed_up": first[1] / prompt,
            "seconds": seconds[name],
            "peak_bytes": memory[name],
        }
        numbers[name] = found
        rows.append(
            {
                "model": name,
                "parameters": f"{found['parameters']:,}",
                "MFLOPs/token": millions(flops),
                "cache bytes/token": f"{found['cache_bytes_per_token']:,}",
                "us/step": f"{1e6 * median:,.0f}",
                "quartiles": f"{1e6 * low:,.0f} .. {1e6 * high:,.0f}",
                "us/token": f"{found['microseconds_per_token']:,.0f}",
                "speed-up": f"{found['speed_up']:.2f}",
                "prompt ms": f"{1e3 * prompt:,.1f}",
                "its speed-up": f"{found['prompt_speed_up']:.2f}",
                "peak MB": "" if memory[name] is None else f"{memory[name] / 1e6:,.0f}",
            }
        )
    print(table(rows))
    _show_published(config)
    return {"models": numbers}


def _show_published(config):
    if config.compare:
        print(f"\nthe CoFrGeNet papers: {PUBLISHED[config.mode]}")
        print(table(published.times(config.mode)))


def millions(count: float) -> str:
    """In millions, with at least three digits: 1,234.5, but 0.0123."""
    return f"{count / 1e6:,.1f}" if count >= 1e7 else f"{count / 1e6:.3g}"


def share(part: float, whole: float | None) -> str:
    return "" if whole is None else f"{100 * part / whole:.1f} %"
