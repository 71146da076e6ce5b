"""The tables of bench.py, and the report of a file of lines (tables and a picture), on any machine."""

from host.disk import write_whole

from pathlib import Path

from benchmarks.lines import LinesError, key_of, read
from benchmarks.measurements import CUDA_GRAPH
from benchmarks.roofline import roofline
from benchmarks.training_step import PARTS
from evaluation import published
from reports import picture
from reports.markdown_table import table
from training.hardware import peak_flops

HEAD = "# Measured by launch/measure_gpu.py"
TITLES = {
    "ceilings": "Upper limits",
    "correct": "Correctness of kernels",
    "kernels": "Kernels",
    "training": "Training step",
    "small": "Training step at GPT-2 small's size",
    "xl": "Training step at GPT2-xl's size",
    "llama": "Training step at Llama-3.2-3B's size",
    "decoding": "Decoding",
    "decode": "Decoding at GPT2-xl's size",
    "train": "train.py, killed and resumed",
    "profile": "Where a training step spends its time",
}
PUBLISHED = {
    "train": "hours of a whole training, of GPT2-xl on 16 H100 (table 4), of Llama on 128 H100 (table 7)",
    "infer": "microseconds of inference for a sample of GPT2-xl's size on an A100 (table 4)",
}
KINDS = {"copy": None, "matrix product, bfloat16": "bfloat16", "matrix product, float32": "float32"}


def write(path: Path) -> int:
    """Writes the tables (.md) and the picture (.png) beside the lines, and prints the tables.

    Returns 1 if a result failed, a kernel is wrong or a resumed run differs, else 0. Raises LinesError,
    OSError.
    """
    lines = read(path)
    if not lines:
        raise LinesError(f"--json={path} holds no result yet")
    check_place(path)
    text, drawn = report(lines), path.with_suffix(".png")
    try:
        if figure := roofline(lines):
            picture.write(figure, drawn, own=True)
            text += f"\n![kernels below their roofs]({drawn.name})\n"
    except (ImportError, OSError) as error:
        text += f"\nno picture: {error}\n"
    write_whole(path.with_suffix(".md"), text)
    print(f"\n{text}\n{path.with_suffix('.md')}", flush=True)
    return int(any(went_wrong(line) for line in lines))


def check_place(path: Path):
    """Raises LinesError if a file that is no report of this script lies where the tables are to be."""
    tables = path.with_suffix(".md")
    if tables.exists() and not (tables.is_file() and tables.read_text(errors="replace").startswith(HEAD)):
        raise LinesError(f"{tables} is no report of this script: move it away, or choose another --json")


def went_wrong(line: dict) -> bool:
    return bool("error" in line or line.get("wrong") or not line.get("equal_to_the_bit", True))


def report(lines: list[dict]) -> str:
    """The Markdown of a file's tables."""
    facts = ("device", "sizes", "python", "torch", "triton", "cores", "commit")
    seen = {fact: dict.fromkeys(str(line.get(fact)) for line in lines) for fact in facts}
    about = "; ".join(f"{fact} {', '.join(values)}" for fact, values in seen.items())
    parts = [HEAD, about]
    if any(line["sizes"] == "tiny" for line in lines):
        parts.append("A trial with tiny sizes: it shows what is measured, and no figure means anything.")
    return "\n\n".join([*parts, *tables(lines)]) + "\n"


def tables(lines: list[dict], detailed: bool = False) -> list[str]:
    """Paragraphs and tables of each stage, and what failed; detailed: with more columns, but without what
    others published.
    """
    by_stage, parts = {}, []
    for line in lines:
        by_stage.setdefault(line["stage"], []).append(line)
    found = Found(by_stage, detailed)
    for stage, title in TITLES.items():
        right = [line for line in by_stage.get(stage, []) if "error" not in line]
        if right:
            parts += [f"## {title}", *getattr(found, f"of_{stage}", found.of_training)(right)]
    if failed := [line for line in lines if "error" in line]:
        parts += ["## Failed", *(f"- {', '.join(key_of(line))}: {line['error']}" for line in failed)]
    return parts


def published_times(mode: str) -> list[str]:
    return [f"The CoFrGeNet papers: {PUBLISHED[mode]}", table(published.times(mode))]


class Found:
    """Makes the tables of each stage; by_stage: all lines."""

    def __init__(self, by_stage: dict[str, list[dict]], detailed: bool = False):
        self.by_stage, self.detailed = by_stage, detailed
        self.limits = {line["item"]: line for line in by_stage.get("ceilings", []) if "error" not in line}
        self.compiled = {
            line["task"]: line["compile_seconds"]
            for line in by_stage.get("compile", [])
            if "compile_seconds" in line
        }

    def of_ceilings(self, lines):
        rows = []
        for line in lines:
            dtype = KINDS.get(line["item"])
            peak = dtype and peak_flops(line["device"].partition(",")[0], dtype)
            flops = line.get("flops_per_second")
            rows.append(
                {
                    "limit": line["item"],
                    "ms": f"{1e3 * line['seconds']:,.3g}",
                    "rate": f"{flops / 1e12:,.4g} TFLOP/s"
                    if flops
                    else f"{line['bytes_per_second'] / 1e9:,.5g} GB/s",
                    "of the data sheet": share(flops, peak) if flops else "",
                    "timed by": line["method"],
                }
            )
        return [table(rows)]

    def of_correct(self, lines):
        """One row for each implementation of a kernel."""
        rows, wrong = {}, []
        for line in lines:
            for form in {**line["distances"], **line["wrong"]}:
                row = rows.setdefault((line["task"], form), [0, 0, 0.0])
                row[0] += 1
                row[1] += form in line["wrong"]
                row[2] = max(row[2], line["distances"].get(form, 0.0))
            wrong += [f"- {line['task']}, {line['item']}: {f}: {why}" for f, why in line["wrong"].items()]
        shown = [
            {
                "kernel": task,
                "implementation": form.rpartition(", ")[0],
                "shapes": str(count),
                "wrong": str(bad),
                "largest distance": f"{distance:.1e}",
            }
            for (task, form), (count, bad, distance) in rows.items()
        ]
        text = "Distances of outputs and gradients from the oracle in float32, relative to their norm."
        return [text, table(shown), *wrong]

    def of_kernels(self, lines):
        parts = ["Forward and backward. Speed-up: against the first row."]
        for task in dict.fromkeys(line["task"] for line in lines):
            these = [line for line in lines if line["task"] == task]
            first = these[0]["seconds"]
            unit = "GB/s" if these[0]["limit"] == "bytes" else "TFLOP/s"
            rows = []
            for line in these:
                rate = line[line["limit"]] / line["seconds"] if line["same_function"] else None
                limit = self.limit(line)
                scale = 1e9 if line["limit"] == "bytes" else 1e12
                low, high = line["quartiles"]
                rows.append(
                    {
                        task: line["item"],
                        "us": f"{1e6 * line['seconds']:,.1f}",
                        "quartiles": f"{1e6 * low:,.1f} .. {1e6 * high:,.1f}",
                        unit: "" if rate is None else f"{rate / scale:,.4g}",
                        "of the limit": "" if rate is None else share(rate, limit),
                        "speed-up": f"{first / line['seconds']:.2f}",
                        **self.also({"peak MB": megabytes(line["peak_bytes"])}),
                        "timed by": line["method"],
                    }
                )
            parts += [f"{these[0]['what']}, {these[0]['settings']['dtype']}", table(rows)]
        return parts

    def also(self, columns: dict) -> dict:
        return columns if self.detailed else {}

    def limit(self, line) -> float | None:
        """The measured upper limit of a kernel."""
        if line["limit"] == "bytes":
            return self.limits.get("copy", {}).get("bytes_per_second")
        product = self.limits.get(f"matrix product, {line['settings']['dtype']}", {})
        return product.get("flops_per_second")

    def of_training(self, lines):
        """A table for each way to run a step."""
        parts, whole = [described(lines[0])], []
        for item in ("step", CUDA_GRAPH):
            these = [line for line in lines if line["item"] == item]
            if these:
                parts += [] if item == "step" else [f"The {item}:"]
                parts.append(table(self.steps(these)))
                whole = whole or these
        if rows := self.parts(lines, whole):
            parts += ["Milliseconds of the parts, each measured alone; at the end the stack of blocks:"]
            parts.append(table(rows))
        return parts

    def parts(self, lines, whole) -> list[dict]:
        """One row for each model of which all parts were measured. whole: lines of the step."""
        rows, first = [], None
        for step in whole:
            these = {line["item"]: line["seconds"] for line in lines if line["task"] == step["task"]}
            if not {"blocks", *PARTS} <= these.keys():
                continue
            blocks, flops = these["blocks"], step["flops_per_token_blocks"]
            first = first or (blocks, flops)
            speed_up, by_flops = first[0] / blocks, first[1] / flops
            rows.append(
                {
                    "model": step["task"],
                    "step ms": f"{1e3 * step['seconds']:,.1f}",
                    **{part: f"{1e3 * these[part]:,.1f}" for part in PARTS},
                    "blocks": f"{1e3 * blocks:,.1f}",
                    "speed-up": f"{speed_up:.2f}",
                    "by FLOPs": f"{by_flops:.2f}",
                    "of that": f"{speed_up / by_flops:.2f}",
                }
            )
        return rows

    def steps(self, lines) -> list[dict]:
        first, rows = lines[0], []
        for line in lines:
            settings = line["settings"]
            tokens = settings["batch_size"] * settings["block_size"]
            tokens *= settings["gradient_accumulation_steps"]
            low, high = line["quartiles"]
            compiled = self.compiled.get(f"{line['stage']}: {line['task']}")
            speed_up = line["tokens_per_second"] / first["tokens_per_second"]
            by_flops = first["flops_per_token"] / line["flops_per_token"]
            rows.append(
                {
                    "model": line["task"],
                    "parameters": f"{line['parameters']:,}",
                    "MFLOPs/token": millions(line["flops_per_token"]),
                    "tokens/s": f"{line['tokens_per_second']:,.0f}",
                    "quartiles": f"{tokens / high:,.0f} .. {tokens / low:,.0f}",
                    "peak GB": "" if line["peak_bytes"] is None else f"{line['peak_bytes'] / 1e9:,.3g}",
                    "TFLOP/s": f"{line['flops_per_second'] / 1e12:,.3g}",
                    "MFU": "" if line["mfu"] is None else f"{100 * line['mfu']:.1f} %",
                    "speed-up": f"{speed_up:.2f}",
                    "by FLOPs": f"{by_flops:.2f}",
                    "of that": f"{speed_up / by_flops:.2f}",
                    "first step s": f"{line['first_seconds']:,.1f}",
                    "compiled before s": "" if compiled is None else f"{compiled:,.0f}",
                }
            )
        return rows

    def of_decode(self, lines):
        items = list(dict.fromkeys(line["item"] for line in lines))
        rows, first = [], {}
        for task in dict.fromkeys(line["task"] for line in lines):
            these = {line["item"]: line for line in lines if line["task"] == task}
            one = next(iter(these.values()))
            first = first or these
            compiled = self.compiled.get(f"{one['stage']}: {task}")
            more, read = {}, {}
            if "step" in these:
                low, high = these["step"]["quartiles"]
                more["quartiles"] = f"{1e6 * low:,.0f} .. {1e6 * high:,.0f}"
                more["us/token"] = f"{these['step']['microseconds'] / one['batch_size']:,.0f}"
                read["MB/step"] = f"{these['step']['bytes'] / 1e6:,.0f}"
            for item in (item for item in items if "bytes" in these.get(item, {})):
                rate = these[item]["bytes"] / these[item]["seconds"]
                copied = self.limits.get("copy", {}).get("bytes_per_second")
                read |= {f"{item} GB/s": f"{rate / 1e9:,.1f}", f"{item}: of a copy": share(rate, copied)}
            for item in (item for item in items if item in these and item in first):
                ratio = first[item]["microseconds"] / these[item]["microseconds"]
                more[f"{item} speed-up"] = f"{ratio:.2f}"
            times = {i: f"{these[i]['microseconds']:,.0f}" if i in these else "" for i in items}
            rows.append(
                {
                    "model": task,
                    "parameters": f"{one['parameters']:,}",
                    "cache bytes/token": f"{one['cache_bytes_per_token']:,}",
                    **{f"{item} us": text for item, text in times.items()},
                    **read,
                    **self.also(more),
                    "peak GB": "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 1e9:,.3g}",
                    "compiled before s": "" if compiled is None else f"{compiled:,.0f}",
                }
            )
        methods = "; ".join(f"{i}: {next(x['method'] for x in lines if x['item'] == i)}" for i in items)
        ours = [described(lines[0]), table(rows), f"Timed by: {methods}"]
        return ours if self.detailed else [*ours, *published_times("infer")]

    of_decoding = of_decode

    def of_train(self, lines):
        rows = [
            {
                "model": line["item"],
                "steps": str(line["steps"]),
                "tokens/s": f"{line['tokens_per_second']:,.0f}",
                "killed after step": str(line["killed_after_step"]),
                "resumed from step": str(line["resumed_from_step"]),
                "losses equal to the bit": "yes" if line["equal_to_the_bit"] else "NO",
                "first difference": str(line["first_difference"] or ""),
                "largest difference": f"{line['largest_difference']:.2g}",
                "last loss": f"{list(line['losses'].values())[-1]:.4f}",
            }
            for line in lines
        ]
        return [f"Tokens: {lines[0]['settings']['dataset']}", table(rows)]

    def of_profile(self, lines):
        parts = []
        for line in lines:
            rows = [
                {
                    "kernel": row["name"].replace("|", "/"),
                    "calls": str(row["calls"]),
                    "ms": f"{row['microseconds'] / 1e3:,.3f}",
                    "share": share(row["microseconds"], line["microseconds"]),
                }
                for row in line["kernels"]
            ]
            parts += [f"{line['task']}: {line['microseconds'] / 1e3:,.2f} ms in all kernels", table(rows)]
            parts += [f"Its trace: {line['trace']}"] if "trace" in line else []
        return parts


def described(line: dict) -> str:
    """How the models of a stage were run."""
    settings = line["settings"]
    words = [f"{settings['batch_size']} x {settings['block_size']} tokens, {settings['dtype']}"]
    if (batches := settings.get("gradient_accumulation_steps", 1)) > 1:
        words[0] = f"{batches} x {words[0]}"
    words.append("compiled" if settings["compile"] else "eager")
    if settings.get("activation_checkpointing"):
        words.append("blocks recomputed in the backward pass")
    return ", ".join([*words, *([f"keys {' '.join(settings['keys'])}"] if settings["keys"] else [])])


def megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.0f}"


def millions(count: float) -> str:
    """In millions, with at least three digits: 1,234.5, but 0.0123."""
    return f"{count / 1e6:,.1f}" if count >= 1e7 else f"{count / 1e6:.3g}"


def share(part: float, whole: float | None) -> str:
    return "" if whole is None else f"{100 * part / whole:.1f} %"
