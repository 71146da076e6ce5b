"""The papers' own figures, for rows below ours: CoFrGeNet's tables 3 to 7 (GLUE: finetuning/tasks.py) and
ExPE's tables 1 to 5 (Datseris et al.).

Their models, data and amounts of training differ from a reader's. So they are rows to compare with, not a
baseline.
"""

TABLE_3_COLUMNS = ("ptb", "wikitext2", "lambada", "ag_news", "lm1b", "wikitext103")
# perplexity; the window is not given; trained on OpenWebText (OWT) or GneissWeb (GW)
TABLE_3 = {
    "GPT2-xl (1.5B), OWT": (30.12, 18.30, 8.66, 37.13, 41.20, 17.50),
    "CoFrGeNet-F (985M), OWT": (29.89, 17.12, 8.12, 35.72, 40.14, 16.14),
    "CoFrGeNet-A (1.21B), OWT": (30.02, 18.22, 8.54, 37.02, 41.03, 17.26),
    "CoFrGeNet (798M), OWT": (30.03, 17.96, 8.55, 36.47, 40.86, 17.17),
    "Synthesizer-D (1.2B), OWT": (31.47, 19.35, 9.92, 39.84, 41.94, 18.91),
    "Sparse Attn (1.21B), OWT": (31.23, 18.78, 9.13, 38.82, 42.05, 18.82),
    "GPT2-xl (1.5B), GW": (29.07, 19.12, 31.78, 45.62, 52.36, 18.93),
    "CoFrGeNet-F (985M), GW": (29.72, 18.13, 30.52, 41.63, 46.83, 18.11),
    "CoFrGeNet-A (1.21B), GW": (28.89, 18.77, 30.98, 43.91, 48.37, 18.67),
    "CoFrGeNet (798M), GW": (29.08, 18.29, 30.71, 42.55, 48.01, 18.42),
    "Synthesizer-D (1.2B), GW": (30.83, 19.25, 31.92, 46.81, 52.99, 19.03),
    "Sparse Attn (1.21B), GW": (29.36, 18.95, 31.23, 46.38, 52.83, 19.45),
}

# perplexity as in table 3, whose models have the schedule
TABLE_5 = {
    "CoFrGeNet-F (985M), OWT, without the schedule": (33.72, 26.71, 12.56, 42.18, 47.28, 22.65),
    "CoFrGeNet-A (1.21B), OWT, without the schedule": (38.24, 21.82, 10.92, 45.52, 46.21, 24.25),
    "CoFrGeNet (798M), OWT, without the schedule": (36.77, 23.87, 15.23, 42.72, 49.44, 23.33),
    "CoFrGeNet-F (985M), GW, without the schedule": (35.88, 25.55, 37.33, 45.46, 49.53, 20.44),
    "CoFrGeNet-A (1.21B), GW, without the schedule": (33.71, 23.72, 36.28, 45.29, 52.51, 21.67),
    "CoFrGeNet (798M), GW, without the schedule": (34.22, 22.98, 36.23, 44.39, 51.91, 21.67),
}

# hours of training on 16 H100, and microseconds of inference per sample on an A100 with standard deviation;
# CoFrGeNet_B computes its divisions one after the other
TABLE_4 = {
    "GPT2-xl, OWT": (190, 643.93, 1.73),
    "CoFrGeNet-F, OWT": (186, 627.48, 1.85),
    "CoFrGeNet-A, OWT": (186, 638.26, 1.76),
    "CoFrGeNet, OWT": (178, 628.73, 1.66),
    "CoFrGeNet_B, OWT": (203, 5898.72, 3.91),
    "GPT2-xl, GW": (413, 638.26, 2.73),
    "CoFrGeNet-F, GW": (397, 627.34, 1.65),
    "CoFrGeNet-A, GW": (396, 625.86, 1.78),
    "CoFrGeNet, GW": (387, 619.78, 1.49),
    "CoFrGeNet_B, GW": (424, 5877.87, 4.52),
}
# billions of tokens per day on 128 H100, and days of training
TABLE_7 = {
    "Llama (3.2B)": (235, 8.5),
    "CoFrGeNet-F (2.1B)": (303, 6.6),
    "CoFrGeNet-A (2.5B)": (250, 8),
    "CoFrGeNet (1.8B)": (315, 6.4),
}

TABLE_6_COLUMNS = (
    "openbookqa", "piqa", "arc_easy", "winogrande", "hellaswag", "lambada_openai", "boolq", "sciq",
)  # fmt: skip
# accuracy; the paper does not say whether acc or acc_norm
TABLE_6 = {
    "Llama (3.2B)": (0.282, 0.76, 0.77, 0.654, 0.503, 0.581, 0.691, 0.941),
    "CoFrGeNet-F (2.1B)": (0.294, 0.764, 0.778, 0.649, 0.491, 0.583, 0.668, 0.944),
    "CoFrGeNet-A (2.5B)": (0.304, 0.752, 0.757, 0.646, 0.463, 0.575, 0.633, 0.914),
    "CoFrGeNet (1.8B)": (0.283, 0.751, 0.751, 0.64, 0.464, 0.571, 0.633, 0.907),
}

EXPE_COLUMNS = (1, 2, 4, 8, 16, "time")  # times the 512 tokens of training; None: not given
# loss in nats per token, then the time of training (table 2: of an epoch) relative to the first model of
# its table and size; each row names its table. ExPE 35M has 3.88 at 4x in table 3, but 4.26 in table 2.
EXPE = {
    "Llama Small, RoPE (table 1)": (2.89, 3.80, 4.95, None, None, 1.00),
    "ExPE Small (table 1)": (2.87, 2.83, 3.25, None, None, 0.93),
    "ExQPE Small (table 1)": (2.86, 2.83, 3.35, None, None, 0.93),
    "Llama Medium, RoPE (table 1)": (2.63, 3.45, 4.55, None, None, 1.00),
    "ExPE Medium (table 1)": (2.63, 2.59, 2.71, None, None, 0.78),
    "ExQPE Medium (table 1)": (2.63, 2.59, 2.68, None, None, 0.78),
    "ExPE 35M (table 2)": (3.93, 3.87, 4.26, None, None, 1.0),
    "ExPE 35M, p is stable (table 2)": (4.26, 4.21, 4.24, None, None, 1.0),
    "ExPE 35M, l = 1 (table 2)": (4.48, 4.83, 6.01, None, None, 1.0),
    "ExPE 35M, learned initialized (table 2)": (3.88, 3.82, 4.89, None, None, 1.6),
    "ExPE 35M, learned (table 2)": (7.33, 7.34, 7.61, None, None, 1.6),
    "ExPE 35M, once (table 2)": (4.43, 4.82, 6.18, None, None, 1.0),
    "sinusoidal 35M (table 3)": (4.0, 4.75, 5.64, None, None, None),
    "RoPE 35M (table 3)": (3.88, 4.37, 5.05, None, None, None),
    "ExPE 35M (table 3)": (3.93, 3.87, 3.88, None, None, None),
    "ExPE Medium (table 4)": (2.63, 2.59, 2.71, 5.19, 7.56, None),
    "ExPE Medium scaled by 0.5 (table 4)": (2.76, 2.71, 2.68, 2.98, 5.65, None),
    "ExQPE Medium (table 4)": (2.63, 2.59, 2.68, 5.01, 7.39, None),
    "ExQPE Medium scaled by 0.5 (table 4)": (2.74, 2.69, 2.65, 2.76, 4.98, None),
}

EXPE_5_COLUMNS = ("hellaswag", "mmlu", "arc_challenge", "arc_easy")
# table 5; it does not say whether acc or acc_norm, and names only "ARC" and "ARC easy"
EXPE_5 = {
    "Llama Small, RoPE (ExPE, table 5)": (0.29, 0.26, 0.24, 0.30),
    "ExPE Small (table 5)": (0.28, 0.26, 0.24, 0.29),
    "ExQPE Small (table 5)": (0.27, 0.26, 0.24, 0.29),
    "Llama Medium, RoPE (ExPE, table 5)": (0.31, 0.26, 0.26, 0.30),
    "ExPE Medium (table 5)": (0.31, 0.26, 0.25, 0.30),
    "ExPE Medium scaled by 0.5 (table 5)": (0.31, 0.26, 0.25, 0.30),
    "ExQPE Medium (table 5)": (0.32, 0.26, 0.25, 0.31),
    "ExQPE Medium scaled by 0.5 (table 5)": (0.32, 0.26, 0.25, 0.31),
}


def rows(table: dict[str, tuple], columns: tuple, wanted: list) -> dict[str, dict]:
    """{model: {column: value}} for the wanted columns; models without any of them are left out."""
    found = {}
    for model, values in table.items():
        cells = {c: v for c, v in zip(columns, values, strict=True) if c in wanted and v is not None}
        if cells:
            found[model] = cells
    return found


def times(mode: str) -> list[dict[str, str]]:
    """Rows for a table of bench.py: of training (tables 4 and 7) or of inference (table 4)."""
    if mode == "infer":
        return [{"published": m, "us": f"{us:.2f} ± {d:.2f}"} for m, (_, us, d) in TABLE_4.items()]
    hours = [{"published": m, "hours": f"{h:,}", "tokens a day": ""} for m, (h, *_) in TABLE_4.items()]
    return hours + [
        {"published": m, "hours": f"{24 * days:,.0f}", "tokens a day": f"{billions}B"}
        for m, (billions, days) in TABLE_7.items()
    ]
