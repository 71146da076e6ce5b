"""The papers' own figures, for rows beside ours: CoFrGeNet's tables 3 and 6 (arXiv version), and tables 1
to 4 of ExPE (Datseris et al.).

They are of other models, data and amounts of training than a reader's: a row to compare with, no baseline.
"""

TABLE_3_COLUMNS = ("ptb", "wikitext2", "lambada", "ag_news", "lm1b", "wikitext103")
# perplexity, window 1024; trained on OpenWebText (OWT) or GneissWeb (GW)
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

TABLE_6_COLUMNS = (
    "openbookqa", "piqa", "arc_easy", "winogrande", "hellaswag", "lambada_openai", "boolq", "sciq",
)  # fmt: skip
# accuracy; whether acc or acc_norm is not said
TABLE_6 = {
    "Llama (3.2B)": (0.282, 0.76, 0.77, 0.654, 0.503, 0.581, 0.691, 0.941),
    "CoFrGeNet-F (2.1B)": (0.294, 0.764, 0.778, 0.649, 0.491, 0.583, 0.668, 0.944),
    "CoFrGeNet-A (2.5B)": (0.304, 0.752, 0.757, 0.646, 0.463, 0.575, 0.633, 0.914),
    "CoFrGeNet (1.8B)": (0.283, 0.751, 0.751, 0.64, 0.464, 0.571, 0.633, 0.907),
}

EXPE_COLUMNS = (1, 2, 4, 8, 16)  # times the 512 tokens of training; None: not given
# loss in nats per token, each with the table it stands in. ExPE 35M has 3.88 at 4x in table 3, 4.26 in
# table 2.
EXPE = {
    "sinusoidal 35M (table 3)": (4.0, 4.75, 5.64, None, None),
    "RoPE 35M (table 3)": (3.88, 4.37, 5.05, None, None),
    "ExPE 35M (table 3)": (3.93, 3.87, 3.88, None, None),
    "ExPE 35M (table 2)": (3.93, 3.87, 4.26, None, None),
    "Llama Small, RoPE (table 1)": (2.89, 3.80, 4.95, None, None),
    "ExPE Small (table 1)": (2.87, 2.83, 3.25, None, None),
    "ExQPE Small (table 1)": (2.86, 2.83, 3.35, None, None),
    "Llama Medium, RoPE (table 1)": (2.63, 3.45, 4.55, None, None),
    "ExPE Medium (table 4)": (2.63, 2.59, 2.71, 5.19, 7.56),
    "ExPE Medium scaled by 0.5 (table 4)": (2.76, 2.71, 2.68, 2.98, 5.65),
    "ExQPE Medium (table 4)": (2.63, 2.59, 2.68, 5.01, 7.39),
    "ExQPE Medium scaled by 0.5 (table 4)": (2.74, 2.69, 2.65, 2.76, 4.98),
}


def rows(table: dict[str, tuple], columns: tuple, wanted: list) -> dict[str, dict]:
    """{model: {column: value}} of the wanted columns that the table has, without models that have none."""
    found = {}
    for model, values in table.items():
        cells = {c: v for c, v in zip(columns, values, strict=True) if c in wanted and v is not None}
        if cells:
            found[model] = cells
    return found
