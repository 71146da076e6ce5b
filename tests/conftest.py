"""What several tests share."""

import tests.one_blas_thread  # noqa: F401 (before numpy)
from host import openmp  # noqa: F401 (before torch)

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

import train
from ablation import execution
from corpus.binary import prepare
from corpus.splits import Pair
from model import GPT
from models.architecture import ModelConfig
from remote_code import trial
from training.log import Log

HERE = Path(__file__).parent
settings.register_profile("any machine", deadline=None)  # a busy one is not a failure
settings.load_profile("any machine")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of `make test &`: some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


# begun in this order, before all others: two processes share the files, and neither should wait at the end
LONGEST = (
    "kernels/test_triton", "training/test_sharding", "training/test_distributed", "training/test_resume",
    "faults/test_faults", "test_train", "decoding/test_decode", "test_model", "test_config", "test_ablate",
    "test_golden", "scaling/test_scale", "training/test_elastic", "training/test_sharded_ranks",
    "training/test_encoder_training", "training/test_training_on_pairs", "benchmarks/test_training_step",
    "evaluation/test_zero_shot", "training/test_explicit_start", "training/test_memory",
    "models/test_compilation", "training/test_going_on", "launch/test_measure_gpu",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Long files first; what calls a compiler takes seconds."""
    places = {HERE / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if "compile" in item.name or "one_graph" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors: threads cost more than they bring, and one thread repeats itself to the bit."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_pictures(request):
    """Each run draws loss.png at its end, a good part of its time; marked tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        if "pictures" not in request.keywords:
            patch.setattr(Log, "draw", lambda self, interval=0.0: None)
        yield


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch):
    """export.py loads what it writes in a process of its own: tests/remote_code/test_trial.py lets it."""
    monkeypatch.setattr(trial, "load", lambda *arguments, **keys: None)


@pytest.fixture(scope="session")
def modules_cache(tmp_path_factory):
    """Where transformers copies remote code: one folder a process, since a package has one place."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
        yield folder


@pytest.fixture
def tiny():
    """tiny(**keys) -> a ModelConfig of awkward sizes."""

    def build(**keys):
        sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 17, "vocab_size": 100}
        sizes |= {"cf_ladders": 3, "cf_depth": 3, "bigbird_block": 2, "bigbird_random": 1}
        sizes |= {"attention_window": 5}
        return ModelConfig(**{**sizes, **keys})

    return build


@pytest.fixture
def build(tiny):
    """build(**keys) -> a tiny GPT with weights large enough that every part matters."""

    def make(seed=0, scale=5.0, **keys):
        torch.manual_seed(seed)
        model = GPT(tiny(**keys)).init_weights()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2 and "embedding" not in name:
                    parameter.mul_(scale)
        return model

    return make


def documents():
    """400 short texts of a made-up language with some order in it, the same on every machine."""
    random = np.random.Generator(np.random.PCG64(7))
    words = ["".join("abcdefgh"[i] for i in random.integers(0, 8, 1 + n % 5)) for n in range(40)]
    follows = random.integers(0, 40, (40, 3))
    for _ in range(400):
        word, text = int(random.integers(0, 40)), []
        for _ in range(int(random.integers(5, 60))):
            text.append(words[word])
            word = int(follows[word, random.integers(0, 3)])
        yield " ".join(text)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A prepared data set of bytes, about 50,000 tokens."""
    out = tmp_path_factory.mktemp("data") / "bytes"
    prepare(documents, {"made": "up"}, "bytes", out, 0.1, workers=1)
    return out


def pairs():
    """A language and its translation: 26 words, each of which has its own."""
    random = np.random.Generator(np.random.PCG64(1))
    for number in range(400):
        words = random.integers(0, 26, 1 + number % 4)
        source, target = (" ".join(3 * chr(first + word) for word in words) for first in (97, 65))
        yield Pair(source, target, f"page {number % 40}")


@pytest.fixture(scope="session")
def paired(tmp_path_factory):
    """A prepared data set of these pairs, in bytes."""
    out = tmp_path_factory.mktemp("data") / "pairs"
    prepare(pairs, {"made": "up"}, "bytes", out, 0.2, workers=1, pairs=True)
    return out


@pytest.fixture
def arguments(dataset, tmp_path):
    """Command line of a tiny run on the CPU, without --out_dir."""
    keys = {
        "dataset": dataset, "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "cf_ladders": 3,
        "bigbird_block": 4,
        "batch_size": 4, "gradient_accumulation_steps": 2, "max_iters": 20, "warmup_iters": 1,
        "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1, "eval_interval": 10, "eval_tokens": 640,
        "checkpoint_interval": 5, "device": "cpu", "dtype": "float32", "compile": False,
    }  # fmt: skip
    return [f"--{key}={value}" for key, value in keys.items()]


@pytest.fixture
def run(arguments, tmp_path):
    """run("name", "--key=value", ...) trains in this process; returns the run folder and its log."""

    def trained(name, *overrides):
        folder = tmp_path / name
        train.main([*arguments, f"--out_dir={folder}", *overrides])
        return folder, [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]

    return trained


class Ended:
    """A process that came to its end."""

    def __init__(self, returncode):
        self.returncode = returncode

    def poll(self):
        return self.returncode


@pytest.fixture
def here(monkeypatch):
    """Runs of an ablation train in this process, one at a time; -> the names of those that were started."""
    started = []

    def start(run, slot, folder, defaults, gpus, parallel):
        started.append(run.name)
        (folder / run.name).mkdir(exist_ok=True)
        status = 0
        try:
            train.main(execution.command(run, folder, defaults)[2:])
        except SystemExit as stop:
            (folder / run.name / execution.OUTPUT).write_text(f"$ train.py\n{stop.code}\n")
            status = 1
        return Ended(status)

    monkeypatch.setattr(execution, "train", start)
    monkeypatch.setattr(execution, "SECONDS", 0)
    return started
