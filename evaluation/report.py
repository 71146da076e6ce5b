"""The tables that evaluate.py prints, with the best value in bold and the papers' rows below."""

import math
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from evaluation import published
from reports.markdown_table import table
from reports.plural import counted

RAW = "raw, nats and perplexity per token of the model, of the texts as they stand"
GPT2 = (
    "gpt2, nats and perplexity per word of the published text, which the model sees de-tokenized; of "
    "LAMBADA the final words alone"
)
# Radford et al. 2019, table 3
OF_TABLE_3 = (
    "The published rows do not say their protocol. GPT2-xl (1.5B), OWT, is within 3 % of OpenAI's GPT-2 "
    "on four texts (WikiText-2 18.30 and 18.34, WikiText-103 17.50 and 17.48, LAMBADA 8.66 and 8.63, LM1B "
    "41.20 and 42.16), which OpenAI measured per published word of de-tokenized text, as --protocol=gpt2 "
    "does. WikiText-2 and WikiText-103 share their test text: by one protocol two columns agree, and the "
    "published ones do not."
)
PACKAGES = ("numpy", "tiktoken", "tokenizers", "datasets", "transformers")


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of installed packages; by default of those that read texts and tokens."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def comparison(
    rows: dict[str, dict],
    columns: list,
    form: str,
    heading: Callable[[object], str] = str,
    highest: Callable[[object], bool] = lambda column: False,
    papers: dict[str, dict] | None = None,
    ranked: bool = True,
    errors: dict[str, dict] | None = None,
) -> str:
    """A Markdown table of {row: {column: number, text or None}}, the best of each column in bold.

    form: the format of numbers, such as ".2f". Values that are equal in this format are all bold; a single
    number is not. highest: whether the highest value of a column is the best. papers: rows below, which are
    never bold. ranked: whether the rows can be compared; if not, nothing is bold. errors: {row: {column:
    standard error}}, shown behind the number.
    """
    cells = {row: {c: _cell(values.get(c), form) for c in columns} for row, values in rows.items()}
    for column in columns:
        numbers = {row: v[column] for row, v in rows.items() if isinstance(v.get(column), float | int)}
        numbers = {row: number for row, number in numbers.items() if math.isfinite(number)}
        if ranked and len(numbers) > 1:
            best = (max if highest(column) else min)(numbers.values())
            for row in numbers:
                if cells[row][column] == format(best, form):
                    cells[row][column] = f"**{cells[row][column]}**"
    for row, values in (errors or {}).items():
        for column, error in values.items():
            cells[row][column] += f" ± {format(error, form)}"
    for row, values in (papers or {}).items():
        cells[f"published: {row}"] = {c: _cell(values.get(c), form) for c in columns}
    return table([{"model": row, **{heading(c): v[c] for c in columns}} for row, v in cells.items()])


def _cell(value, form: str) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)


def perplexity(results: dict[str, dict[str, dict]], papers: bool, tokenizers: str | None = None) -> str:
    """{model: {text: result of `perplexity.perplexity` or `gpt2_protocol.score`}} -> the tables.

    First all measures, then the perplexities side by side, with the protocol that they follow. tokenizers:
    those of the models if they differ. Then perplexities per token cannot be compared, and bits per byte
    are shown side by side.
    """
    texts = list(next(iter(results.values())))
    per_word = "words" in results[next(iter(results))][texts[0]]
    per_token = tokenizers is not None and not per_word
    rows = [
        {
            "model": model,
            "text": text,
            "loss": f"{r['loss']:.4f}",
            "perplexity": f"{r['perplexity']:.2f}",
            "bits per byte": "" if r["bits_per_byte"] is None else f"{r['bits_per_byte']:.4f}",
            **({"accuracy": f"{r['accuracy']:.2%}" if "accuracy" in r else ""} if "words" in r else {}),
            **({"words": f"{r['words']:,}"} if "words" in r else {}),
            "tokens scored": f"{r['tokens']:,}",
            **({"bytes scored": f"{r['bytes']:,}"} if per_token else {}),
            "window": f"{r['window']:,}",
            "stride": "" if r["stride"] is None else f"{r['stride']:,}",
        }
        for model, texts in results.items()
        for text, r in texts.items()
    ]
    parts = [table(rows), f"protocol: {GPT2 if per_word else RAW}"]
    lost = [
        f"{model}, {text}: {r['unknown_tokens'] / r['tokens']:.1%} ({r['unknown_tokens']:,} tokens)"
        for model, texts in results.items()
        for text, r in texts.items()
        if r.get("unknown_tokens")
    ]
    if lost:
        parts.append(
            f"scored tokens that stand for text which the tokenizer does not know: {'; '.join(lost)}. "
            "Bits per byte count the bytes of that text, but not what it says: they are too low"
        )

    def side_by_side(measure):
        return {m: {text: r[measure] for text, r in found.items()} for m, found in results.items()}

    if per_token:
        parts.append("bits per byte\n\n" + comparison(side_by_side("bits_per_byte"), texts, ".4f"))
        parts.append(
            f"the models are compared in bits per byte, because their tokenizers differ ({tokenizers}): "
            "loss and perplexity are per token, and their tokens are not the same pieces of text"
        )
    if papers or (len(results) > 1 and not per_token):
        values = side_by_side("perplexity")
        both = published.TABLE_3 | published.TABLE_5
        theirs = published.rows(both, published.TABLE_3_COLUMNS, texts) if papers else None
        shown = comparison(values, texts, ".2f", papers=theirs, ranked=not per_token)
        parts.append(f"perplexity{' per token of each model' if per_token else ''}\n\n{shown}")
        if papers and not theirs:
            parts.append(f"the papers' table 3 has none of {', '.join(texts)}")
        elif papers and {"wikitext2", "wikitext103", "lambada", "lm1b"} & {*texts}:
            parts.append(OF_TABLE_3)
    return "\n\n".join(parts)


def extrapolation(results: dict[str, dict], papers: bool, tokenizers: str | None = None) -> str:
    """{model: result of `extrapolation.extrapolate`} -> average loss, and loss on the last positions.

    tokenizers: those of the models if they differ. Models are ranked only if they were scored on the same
    tokens, so only with one tokenizer and one training length.
    """
    trained = sorted({r["train_length"] for r in results.values()})
    ranked = tokenizers is None and len(trained) == 1
    factors = sorted(
        {k for r in results.values() for k in (*(m["factor"] for m in r["lengths"]), *r["refused"])}
    )

    def pick(key):
        return {
            model: {m["factor"]: m[key] for m in r["lengths"]} | dict.fromkeys(r["refused"], "refused")
            for model, r in results.items()
        }

    def heading(factor):
        if factor == "time":
            return "training time"
        lengths = {factor * result["train_length"] for result in results.values()}
        return f"{factor} x" + (f" = {lengths.pop():,}" if len(lengths) == 1 else "")

    columns, theirs = factors, None
    if papers:
        columns = [*factors, "time"]
        theirs = published.rows(published.EXPE, published.EXPE_COLUMNS, columns)
    titles = {
        "loss": "loss on all positions",
        "last": "loss on the last positions, as many as training had",
        "last_at_train_length": "loss on the same tokens in windows of the training length",
    }
    parts = []
    for key, title in titles.items():
        keys = {"columns": columns, "papers": theirs} if key == "loss" else {"columns": factors}
        keys |= {"form": ".3f", "heading": heading, "ranked": ranked}
        parts.append(f"{title}\n\n" + comparison(pick(key), **keys))
    reasons = [
        f"refused: {model}: {reason}" for model, r in results.items() for reason in r["refused"].values()
    ]
    scored = {f"{r['tokens']:,} tokens of {counted(r['documents'], 'document')}" for r in results.values()}
    if tokenizers is not None:
        reasons.append(
            f"no model is marked as the best, because their tokenizers differ ({tokenizers}): losses are "
            "per token, and windows hold different text; compare the lengths of one model"
        )
    elif not ranked:
        lengths = " and ".join(f"{length:,}" for length in trained)
        reasons.append(
            f"no model is marked as the best, because they were trained on windows of {lengths} tokens, so "
            "they are scored on different tokens; compare the lengths of one model"
        )
    parts.append("\n".join([f"each length is scored on the same {' or '.join(sorted(scored))}", *reasons]))
    return "\n\n".join(parts)


def recall(results: dict[str, dict], papers: bool) -> str:
    """{model: result of `recall.recall`} -> losses by the length of the repeat that a token ends.

    With several models, also what each length contributes to the difference from the first model.
    """
    (name, first), *others = results.items()
    repeats = first["repeats"]
    headings = {"all": "all"} | {r["length"]: str(r["length"]) for r in repeats}
    headings |= {0: "new", 1: "repeat: 1", repeats[-1]["length"]: f"{repeats[-1]['length']} or more"}
    rows = {
        model: {"all": found["loss"]} | {r["length"]: r["loss"] for r in found["repeats"]}
        for model, found in results.items()
    }
    losses = comparison(rows, list(headings), ".4f", headings.get)
    parts = [f"loss by the length of the repeat that a token ends\n\n{losses}"]
    if others:
        shares = {r["length"]: r["tokens"] / first["tokens"] for r in repeats} | {"all": 1.0}
        differences = [
            {"model": model}
            | {
                text: f"{shares[key] * (rows[model][key] - rows[name][key]) if shares[key] else 0:+.4f}"
                for key, text in headings.items()
            }
            for model, _ in others
        ]
        parts.append(f"difference to {name}, and how much of it is where\n\n{table(differences)}")
    told = ", ".join(f"{r['tokens'] / first['tokens']:.1%} {headings[r['length']]}" for r in repeats)
    parts.append(
        f"of {first['tokens']:,} tokens: {told}; windows of {first['window']:,} tokens that move by "
        f"{first['stride']:,}"
    )
    return "\n\n".join(parts)


def mqar(results: dict[str, dict], papers: bool) -> str:
    """{model: result of `mqar.mqar`} -> accuracy and loss by the number of pairs in a row."""
    by_pairs = next(iter(results.values()))["by_pairs"]
    columns = ["all", *(part["pairs"] for part in by_pairs)]

    def heading(column):
        return column if column == "all" else counted(column, "pair")

    parts = []
    for key, form, highest in (
        ("accuracy", ".2%", lambda column: True),
        ("loss", ".4f", lambda column: False),
    ):
        rows = {
            model: {"all": found[key]} | {part["pairs"]: part[key] for part in found["by_pairs"]}
            for model, found in results.items()
        }
        parts.append(f"{key} of answers\n\n{comparison(rows, columns, form, heading, highest)}")
    told = ", ".join(f"{part['answers']:,} with {counted(part['pairs'], 'pair')}" for part in by_pairs)
    return "\n\n".join([*parts, f"answers: {told}; an answer is right if no other token is likelier"])


def zero_shot(results: dict[str, dict[str, dict]], papers: bool) -> str:
    """{model: result of `zero_shot.evaluate`} -> the table: each score ± the standard error of the
    harness, where it gives one.
    """
    columns, lowest = [], set()
    for tasks in results.values():
        for task, metrics in tasks.items():
            better = metrics.get("about", {}).get("higher_is_better", {})
            for metric, value in metrics.items():
                if not isinstance(value, float | int) or "stderr" in metric:
                    continue
                if (task, metric) not in columns:
                    columns.append((task, metric))
                if not better.get(metric.partition(",")[0], True):
                    lowest.add((task, metric))
    rows = {
        model: {(task, metric): value for task, found in tasks.items() for metric, value in found.items()}
        for model, tasks in results.items()
    }
    errors = {
        model: {c: error for c in columns if math.isfinite(error := values.get(_stderr(c), math.nan))}
        for model, values in rows.items()
    }
    theirs = None
    if papers:
        wanted = [task for task, metric in columns if metric == "acc"]
        theirs = published.rows(published.TABLE_6, published.TABLE_6_COLUMNS, wanted)
        theirs |= published.rows(published.EXPE_5, published.EXPE_5_COLUMNS, wanted)
        theirs = {m: {(task, "acc"): v for task, v in found.items()} for m, found in theirs.items()}
    shown = comparison(
        rows, columns, ".3f", " ".join, lambda column: column not in lowest, theirs, errors=errors
    )
    told = "\n\n± one standard error, as lm-evaluation-harness gives it"
    return shown + (told if any(errors.values()) else "")


def _stderr(column: tuple[str, str]) -> tuple[str, str]:
    """(task, metric) -> the key of its standard error: acc_stderr of acc, acc_stderr,first of acc,first"""
    task, metric = column
    name, comma, filtered = metric.partition(",")
    return task, f"{name}_stderr{comma}{filtered}"
