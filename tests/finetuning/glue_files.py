"""GLUE's files in their public layouts, small ones, for the tests of what reads them."""

from pathlib import Path

import numpy as np

PARSES = ["sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse"]
MNLI_TRAIN = [
    "index",
    "promptID",
    "pairID",
    "genre",
    *PARSES,
    "sentence1",
    "sentence2",
    "label1",
    "gold_label",
]
MNLI_DEV = [*MNLI_TRAIN[:-1], "label2", "label3", "label4", "label5", "gold_label"]
HEADERS = {
    "QQP": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "QNLI": ["index", "question", "sentence", "label"],
    "SST-2": ["sentence", "label"],
    "CoLA": None,
    "MRPC": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "RTE": ["index", "sentence1", "sentence2", "label"],
    "WNLI": ["index", "sentence1", "sentence2", "label"],
}
LABELS = {
    "MNLI": ["entailment", "neutral", "contradiction"],
    "QNLI": ["entailment", "not_entailment"],
    "RTE": ["entailment", "not_entailment"],
}


def sentence(random, label: int) -> str:
    """Letters of one half of the alphabet or the other: what a model can learn."""
    letters = "abcdefgh" if label else "qrstuvwx"
    return " ".join(
        "".join(random.choice(list(letters), 1 + random.integers(4))) for _ in range(2 + random.integers(6))
    )


def row(title: str, header: list[str] | None, number: int, label: int, texts: list[str]) -> list[str]:
    written = LABELS.get(title, ["0", "1"])[label]
    if title == "CoLA":
        return ["gj04", written, "" if label else "*", texts[0]]
    if title == "SST-2":
        return [texts[0], written]
    if title == "MRPC":
        return [written, str(700 + number), str(900 + number), *texts]
    fields = {"index": str(number), "id": str(number), "qid1": str(2 * number), "qid2": str(2 * number + 1)}
    names = {"QQP": ("question1", "question2"), "QNLI": ("question", "sentence")}
    fields |= dict(zip(names.get(title, ("sentence1", "sentence2")), texts, strict=True))
    last = header[-1]
    return [fields.get(name, written if name in (last, "label1") else "x") for name in header]


def write_tsv(path: Path, header: list[str] | None, rows: list[list[str]], end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [*([header] if header else []), *rows]
    path.write_text("".join("\t".join(line) + end for line in lines), encoding="utf-8", newline="")


def write_task(folder: Path, title: str, train: int = 24, dev: int = 12):
    """Folder/title/*.tsv -> {file: [(texts, class)]} of what they hold; the classes take turns."""
    random = np.random.Generator(np.random.PCG64(sum(map(ord, title))))
    files = {"train.tsv": (HEADERS.get(title, MNLI_TRAIN), train)}
    if title == "MNLI":
        files |= {f"dev_{name}.tsv": (MNLI_DEV, dev) for name in ("matched", "mismatched")}
    else:
        files["dev.tsv"] = (HEADERS[title], dev)
    held = {}
    for file, (header, count) in files.items():
        examples, rows = [], []
        for number in range(count):
            label = number % len(LABELS.get(title, "01"))
            texts = [sentence(random, label), sentence(random, label)]
            texts = texts[:1] if title in ("SST-2", "CoLA") else texts
            rows.append(row(title, header, number, label, texts))
            examples.append((tuple(texts), label))
        write_tsv(folder / title / file, header, rows)
        held[file] = examples
    return held
