"""Tables over tasks and models: mean and standard deviation over seeds, accuracies in percent."""

import statistics

from finetuning.tasks import PUBLISHED, TASKS
from reports.markdown_table import table

Group = tuple[str, str, float]  # model, task, learning rate


def groups(records: list[dict]) -> dict[Group, list[dict]]:
    """The records of all seeds, grouped by model, task and learning rate, in their order."""
    found: dict[Group, list[dict]] = {}
    for record in records:
        key = (record["model"], record["task"], record["settings"]["learning_rate"])
        found.setdefault(key, []).append(record)
    return found


def mean_and_deviation(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; the latter is None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def cell(values: list[float], scale: float = 100.0) -> str:
    """Formats values between 0 and 1 in percent: "93.56 ± 0.24"."""
    mean, deviation = mean_and_deviation([scale * value for value in values])
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def scores(records: list[dict], metric: str, name: str, which: str = "best") -> list[float]:
    return [record[which][name][metric] for record in records]


def accuracy(records: list[dict], which: str = "best") -> float:
    """The mean over seeds of the accuracy on the first validation set."""
    return statistics.fmean(scores(records, "accuracy", sets(records)[0], which))


def sets(records: list[dict]) -> list[str]:
    return list(records[0]["data"]["validation"])


def chosen(records: list[dict]) -> dict[tuple[str, str], Group]:
    """(model, task) -> the group (learning rate) with the highest mean accuracy, the first of equals."""
    best: dict[tuple[str, str], Group] = {}
    found = groups(records)
    for key, of_group in found.items():
        before = best.get(key[:2])
        if before is None or accuracy(of_group) > accuracy(found[before]):
            best[key[:2]] = key
    return best


def summary(records: list[dict]) -> str:
    """A table with one row per model and one column per task.

    Cells are accuracies of the best evaluation at the best learning rate, with the best mean of a column in
    bold. Below are the majority class and the paper's rows.
    """
    found, best = groups(records), chosen(records)
    models = list(dict.fromkeys(record["model"] for record in records))
    tasks = [task for task in TASKS if any(record["task"] == task for record in records)]
    rows = {model: {"model": model} for model in models}
    for task in tasks:
        title = TASKS[task].title + (" m / mm" if task == "mnli" else "")
        means = {m: accuracy(found[best[m, task]]) for m in models if (m, task) in best}
        for model in models:
            if model not in means:
                rows[model][title] = "-"
                continue
            of_group = found[best[model, task]]
            text = " / ".join(cell(scores(of_group, "accuracy", name)) for name in sets(of_group))
            highest = len(means) > 1 and means[model] == max(means.values())
            rows[model][title] = f"**{text}**" if highest else text
        majority = next(record for record in records if record["task"] == task)["data"]["majority"]
        rows.setdefault("majority class", {"model": "majority class"})[title] = " / ".join(
            f"{100 * share:.2f}" for share in majority.values()
        )
        for name, results in PUBLISHED.items():
            row = rows.setdefault(f"paper: {name}", {"model": f"paper: {name}"})
            mean, deviation = results[list(TASKS).index(task)]
            row[title] = f"{mean:.2f} ± {deviation:.2f}"
    return table(list(rows.values()))


def details(records: list[dict]) -> str:
    """One row per model, task, learning rate and validation set, with all metrics."""
    rows, best = [], set(chosen(records).values())
    for (model, task, rate), of_group in groups(records).items():
        for name in sets(of_group):
            metrics = [metric for metric in TASKS[task].metrics if metric != "accuracy"]
            epochs = [record["best"]["epoch"] for record in of_group]
            others = (f"{m} {cell(scores(of_group, m, name))}" for m in metrics)
            rows.append(
                {
                    "model": model,
                    "task": TASKS[task].title + ("" if name == "dev" else f" {name}"),
                    "learning rate": f"{rate:g}" + (" *" if (model, task, rate) in best else ""),
                    "seeds": str(len(of_group)),
                    "accuracy": cell(scores(of_group, "accuracy", name)),
                    "official metric": ", ".join(others) or "accuracy",
                    "after the last epoch": cell(scores(of_group, "accuracy", name, "final")),
                    "best epoch": f"{statistics.fmean(epochs):.1f} of {of_group[0]['settings']['epochs']}",
                    "majority class": f"{100 * of_group[0]['data']['majority'][name]:.2f}",
                    "skipped steps": str(sum(record["skipped_steps"] for record in of_group)),
                }
            )
    return table(rows)


NOTE = """\
Accuracy on the validation set in percent, mean ± standard deviation over seeds, after the epoch and at the
learning rate (*) that are best on that set. GLUE's test labels are not public: being chosen on the set that
they are measured on, the means are a little too high."""


def report(records: list[dict]) -> str:
    return f"{summary(records)}\n\n{NOTE}\n\n{details(records)}\n"
