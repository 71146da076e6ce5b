"""The code in the process of lm-evaluation-harness, which `zero_shot` starts.

It reads one line of JSON with the keywords of `answer` from standard input and writes the answer as JSON to
standard output. Everything that the harness prints, including its progress bars, goes to standard error.
"""

from host.packages import install

import difflib
import json
import os
import random
import sys
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from corpus import DataError
from evaluation import EvaluationError, report
from evaluation.foreign import ForeignModel
from evaluation.models import Loaded, open_model
from training.checkpoint import CheckpointError
from training.hardware import DeviceError

TESTED = "0.4.13"
PACKAGES = ("lm_eval", "datasets", "evaluate", "scikit-learn", "sacrebleu")  # may change a score
RESAMPLES = 1000  # for standard errors of metrics that are not means; the harness's 100,000 take minutes
SEED = 1234  # the harness's


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        found = answer(**question)
    except (CheckpointError, DataError, DeviceError, EvaluationError, OSError) as error:
        found = {"error": str(error)}
    except torch.OutOfMemoryError as error:
        found = {"error": f"out of memory ({str(error).splitlines()[0]}): take a smaller batch_size"}
    with answers:
        json.dump(found, answers)


def end_with_parent():
    """Ends this process when the parent dies: standard input, which the parent holds open, closes then."""
    while os.read(0, 1):  # not sys.stdin.read, which would hold a lock that Python needs to exit
        pass
    os._exit(1)


def answer(
    models: dict[str, str],
    which: str,
    tokenizer: str | None,
    end_token: str | None,
    trust_remote_code: bool,
    device: str,
    dtype: str,
    tasks: list[str],
    batch_size: int,
    limit: int | None,
    include_path: str | None,
) -> dict:
    """models: {name: path}, one at a time in memory -> {models: [{name, facts, dtype, results}], versions}.

    which, tokenizer, trust_remote_code, end_token: see `models.open_model`; device, dtype: see
    `models.load`; the others: see `evaluate`.
    """
    _manager(tasks, include_path)  # finds wrong task names before a model is loaded
    measured = []
    for name, path in models.items():
        keys = {"end_token": end_token, "trust_remote_code": trust_remote_code}
        loaded = open_model(path, which, tokenizer, **keys).load(device, dtype)
        loaded.name = name
        results = evaluate(loaded, tasks, batch_size, limit, include_path)
        measured.append({"name": name, **loaded.facts(), "dtype": loaded.dtype, "results": results})
    return {"models": measured, "versions": report.versions(PACKAGES)}


def evaluate(
    loaded: Loaded,
    tasks: list[str],
    batch_size: int = 8,
    limit: int | None = None,
    include_path: str | None = None,
) -> dict[str, dict]:
    """Scores of tasks, groups and tags of the harness: {task: {metric: value}}.

    A tag, or a group without a score of its own, is replaced by its tasks. Metrics have the harness's
    names, for example `acc_norm` and `acc_norm_stderr`, followed by `,filter` if the task filters generated
    text. `about` has {version, examples, num_fewshot, higher_is_better} of a task and {version, parts} of a
    group, where parts has the form of the returned value. limit: the number of examples per task, for a
    quick try. Raises EvaluationError as `load_tasks` does, and if a task requires something that the model
    cannot do.
    """
    chosen = load_tasks(tasks, include_path)
    from lm_eval.evaluator import evaluate as run

    leaves = {task.task_name: task for got in chosen for task in got["tasks"].values()}
    groups = {name: group for got in chosen for name, group in got["groups"].items()}
    model = _model(loaded, batch_size)
    for name, task in leaves.items():
        if task.OUTPUT_TYPE == "generate_until" and hasattr(model, "settings"):
            model.settings(task.get_config("generation_kwargs") or {}, name)
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    # otherwise resampling forks processes, each with a copy of the model
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    found = run(
        model,
        {"tasks": leaves, "groups": groups},
        limit=limit,
        bootstrap_iters=RESAMPLES,
        log_samples=False,
    )
    scores = {}
    for got in chosen:
        scores |= _scores(got["top"], found)
    return scores


def _model(loaded: Loaded, batch_size: int):
    """What the harness asks: our adapter, or for a model of transformers its own `hf` model."""
    if not isinstance(loaded.model, ForeignModel):
        from evaluation.harness_model import HarnessModel

        return HarnessModel(loaded, batch_size)
    if loaded.model.tokenizer is None:
        raise EvaluationError(
            f"{loaded.name}: the harness needs the model's own tokenizer, which --tokenizer cannot replace"
        )
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise EvaluationError(
            f"zero-shot tasks for {loaded.name}, a model of transformers, need {error.name or error}: run "
            f"`{install(f'lm_eval[hf]=={TESTED}')}`"
        ) from None
    return HFLM(
        loaded.model.theirs,
        tokenizer=loaded.model.tokenizer,
        max_length=loaded.block_size,
        batch_size=batch_size,
        mixed_precision_dtype=None if loaded.dtype == "float32" else loaded.dtype,
    )


def load_tasks(tasks: list[str], include_path: str | None = None) -> list[dict]:
    """The harness's objects with their data: for each name {tasks, groups, top: the objects that it names}.

    Raises EvaluationError if the harness is not installed, a task is unknown, its data cannot be loaded, or
    it runs code that the model writes.
    """
    manager = _manager(tasks, include_path)
    chosen = []
    for name in dict.fromkeys(tasks):
        try:
            got = manager.load([name])
        except Exception as error:  # of the network, the hub, the data set, the task's own code
            reason = (str(error).splitlines() or ["it said nothing"])[0]
            raise EvaluationError(
                f"task {name} could not be loaded ({type(error).__name__}: {reason}). The harness's own "
                "tasks take their data from the Hugging Face hub, or from its cache of earlier runs"
            ) from error
        for task in got["tasks"].values():
            for mark, why in (
                ("UNSAFE_CODE", "runs code that the model writes"),
                ("MULTIMODAL", "has images"),
            ):
                if getattr(task, mark, False):
                    raise EvaluationError(
                        f"task {task.task_name} {why}, which is not supported: leave it out"
                    )
        top = [got["groups"][name]] if name in got["groups"] else list(got["tasks"].values())
        chosen.append({**got, "top": top})
    return chosen


def _manager(tasks: list[str], include_path: str | None):
    """A TaskManager of the harness that knows all of the tasks."""
    try:
        import lm_eval
        import lm_eval.evaluator
        import lm_eval.tasks
    except ImportError as error:
        raise EvaluationError(
            f"zero-shot tasks need lm-evaluation-harness, and {error.name or error} is not installed: run "
            f"`{install(f'lm_eval=={TESTED}')}`"
        ) from None
    if include_path is not None and not Path(include_path).is_dir():
        raise EvaluationError(f"include_path={include_path} is not a folder")
    if include_path is not None:
        manager = _index(include_path, include_defaults=False)
        # read the harness's thousands of task files only if a task or a group's part needs them
        if set(tasks) <= set(manager.all_subtasks):
            return manager
    manager = _index(include_path, include_defaults=True)
    unknown = [name for name in tasks if name not in manager.all_tasks]
    if unknown:
        where = f"lm_eval {lm_eval.__version__}" + (f" or {include_path}" if include_path else "")
        raise EvaluationError(
            "; ".join(f"{name} is no task of {where}{_near(name, manager)}" for name in unknown)
        )
    return manager


def _near(name: str, manager) -> str:
    near = difflib.get_close_matches(name, manager.all_tasks, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(near)}?" if near else " (`lm-eval ls tasks` lists them)"


@lru_cache
def _index(include_path: str | None, include_defaults: bool):
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include_path, include_defaults=include_defaults)


def _scores(objects: list, found: dict) -> dict[str, dict]:
    """objects: Tasks and Groups of the harness, found: its measurements -> scores as in `evaluate`"""
    scores = {}
    for item in objects:
        if hasattr(item, "task_name"):
            name = item.task_name
            about = {
                "version": found["versions"][name],
                "examples": found["n-samples"][name]["effective"],
                "num_fewshot": found["n-shot"][name],
                "higher_is_better": found["higher_is_better"][name],
            }
        else:
            name, parts = item.name, _scores(list(item), found)
            if not item.has_aggregation:
                scores |= parts
                continue
            about = {"version": item.version, "parts": parts}
        metrics = {
            key.removesuffix(",none"): float(value)
            for key, value in found["results"][name].items()
            if "," in key and not isinstance(value, str)
        }
        scores[name] = {**metrics, "about": about}
    return scores
