"""The eight GLUE tasks (Wang et al. 2019) of CoFrGeNet's tables 2 and 8: columns, labels, metrics."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A classification task. A class is the index of its label in `labels`.

    columns: the TSV columns with the one or two texts; label: the column with the label.
    labels: as in the TSV files, in the hub's order of classes.
    validation: set -> (TSV file, split of the hub); the first set decides which evaluation is the best.
    metrics: GLUE's official ones besides the accuracy, which the papers report for all tasks.
    epochs: not in the papers; 10 for tasks with fewer than 10,000 training examples, else 3.
    headerless: the column names of files without a header line.
    """

    name: str  # also the configuration's name on the hub
    title: str  # the name in tables, and of the folder with the TSV files
    columns: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    hub_columns: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    epochs: int = 3
    validation: tuple[tuple[str, str, str], ...] = (("dev", "dev.tsv", "validation"),)
    headerless: tuple[str, ...] | None = None


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
MNLI_SETS = (
    ("matched", "dev_matched.tsv", "validation_matched"),
    ("mismatched", "dev_mismatched.tsv", "validation_mismatched"),
)
COLA = ("source", "label", "mark", "sentence")  # source and original mark of the judgement are not used

TASKS = {
    task.name: task
    for task in (
        Task(
            "mnli", "MNLI", PAIR, "gold_label", ("entailment", "neutral", "contradiction"),
            ("premise", "hypothesis"), validation=MNLI_SETS,
        ),
        Task(
            "qqp", "QQP", ("question1", "question2"), "is_duplicate", ("0", "1"),
            ("question1", "question2"), metrics=("f1", "accuracy"),
        ),
        Task("qnli", "QNLI", ("question", "sentence"), "label", ENTAILMENT, ("question", "sentence")),
        Task("sst2", "SST-2", ("sentence",), "label", ("0", "1"), ("sentence",)),
        Task(
            "cola", "CoLA", ("sentence",), "label", ("0", "1"), ("sentence",), metrics=("matthews",),
            epochs=10, headerless=COLA,
        ),
        Task(
            "mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), PAIR,
            metrics=("f1", "accuracy"), epochs=10,
        ),
        Task("rte", "RTE", PAIR, "label", ENTAILMENT, PAIR, epochs=10),
        Task("wnli", "WNLI", PAIR, "label", ("0", "1"), PAIR, epochs=10),
    )
}  # fmt: skip

# CoFrGeNet, table 8: accuracy in percent, mean and standard deviation, in the order of TASKS
PUBLISHED = {
    "GPT2-xl 1.5B, OpenWebText": (
        (86.89, 0.15), (88.93, 0.67), (91.35, 0.34), (93.56, 0.24),
        (81.78, 0.38), (79.83, 0.26), (60.27, 0.22), (58.28, 0.28),
    ),
    "CoFrGeNet-F 985M, OpenWebText": (
        (87.26, 0.18), (89.95, 0.12), (91.89, 0.34), (94.16, 0.29),
        (82.59, 0.23), (80.21, 0.19), (61.35, 0.32), (58.30, 0.16),
    ),
    "CoFrGeNet-A 1.21B, OpenWebText": (
        (86.94, 0.12), (89.31, 0.42), (91.74, 0.31), (93.83, 0.72),
        (81.77, 0.25), (79.89, 0.14), (60.91, 0.92), (58.28, 0.17),
    ),
    "CoFrGeNet 798M, OpenWebText": (
        (87.11, 0.09), (89.36, 0.23), (91.79, 0.25), (93.91, 0.15),
        (81.97, 0.14), (79.93, 0.17), (61.25, 0.46), (58.29, 0.19),
    ),
    "Synthesizer-D 1.2B, OpenWebText": (
        (84.93, 0.34), (86.82, 0.34), (90.13, 0.51), (91.34, 0.54),
        (80.15, 0.72), (77.95, 0.25), (59.83, 0.35), (58.28, 0.92),
    ),
    "Sparse Attn 1.21B, OpenWebText": (
        (85.27, 0.63), (86.38, 0.33), (90.93, 0.18), (92.72, 0.21),
        (80.76, 0.28), (77.42, 0.41), (59.36, 0.29), (58.27, 0.25),
    ),
    "GPT2-xl 1.5B, GneissWeb": (
        (78.28, 0.82), (86.83, 0.17), (82.93, 0.37), (91.82, 0.22),
        (74.18, 0.82), (77.72, 0.93), (60.19, 0.01), (58.33, 0.07),
    ),
    "CoFrGeNet-F 985M, GneissWeb": (
        (79.62, 0.63), (87.26, 0.25), (82.73, 0.53), (92.36, 0.45),
        (74.83, 0.56), (78.01, 0.34), (61.35, 0.08), (58.33, 0.04),
    ),
    "CoFrGeNet-A 1.21B, GneissWeb": (
        (78.42, 0.34), (86.17, 0.46), (82.51, 0.36), (91.86, 0.36),
        (74.15, 0.43), (77.37, 0.83), (60.85, 0.06), (58.33, 0.06),
    ),
    "CoFrGeNet 798M, GneissWeb": (
        (79.05, 0.37), (86.98, 0.22), (82.12, 0.28), (92.13, 0.73),
        (74.38, 0.74), (77.95, 0.73), (61.11, 0.04), (58.33, 0.02),
    ),
    "Synthesizer-D 1.2B, GneissWeb": (
        (77.56, 0.12), (86.35, 0.61), (80.38, 0.83), (91.25, 0.71),
        (73.27, 0.73), (76.73, 0.27), (59.26, 0.22), (58.24, 0.97),
    ),
    "Sparse Attn 1.21B, GneissWeb": (
        (77.67, 0.38), (86.41, 0.82), (80.77, 0.16), (91.16, 0.16),
        (72.83, 0.26), (76.62, 0.81), (59.39, 0.38), (58.28, 0.28),
    ),
}  # fmt: skip
