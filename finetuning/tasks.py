"""The eight GLUE tasks (Wang et al. 2019) of CoFrGeNet's tables 2 and 8: columns, labels, metrics."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A classification task. A class is the place of its label in `labels`.

    columns: of the TSV files that hold the one or two texts; label: the column of the label.
    labels: as the TSV files write them, in the hub's order of classes.
    validation: set -> (TSV file, split of the hub); the first set decides which evaluation is the best.
    metrics: the official ones of GLUE, next to the accuracy, which the papers report for all tasks.
    epochs: the papers state none; 10 for tasks with fewer than 10,000 training examples, 3 for the rest.
    headerless: the columns of files that have no first line of names.
    """

    name: str  # here, and the configuration's name on the hub
    title: str  # in tables, and the folder of the TSV files
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

# CoFrGeNet (arXiv), table 8: accuracy in percent, mean and standard deviation, in the order of TASKS
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
}  # fmt: skip
