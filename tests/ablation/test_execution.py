"""How the runs of an ablation are started, stopped and told about."""

import json
import os
import signal
import subprocess

from ablation import deadline, execution
from ablation.deadline import Deadline
from ablation.plan import Plan
from ablation.product import Planned
from tests.ablation.planned_runs import planned
from training.config import DEFAULTS


class Counting:
    """A process that ends at the third look, or at the next one after a signal."""

    def __init__(self, active, slot):
        self.looks, self.active, self.slot, self.signals = 3, active, slot, []
        self.returncode = None
        active.append(self)

    def poll(self):
        self.looks -= 1
        if self.looks <= 0 and self.returncode is None:
            self.returncode = 143 if self.signals else 0
            self.active.remove(self)
        return self.returncode

    def send_signal(self, number):
        self.signals.append(number)
        self.looks = 1


def test_several_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "SECONDS", 0)
    active, most, slots = [], 0, set()

    def start(run, slot):
        nonlocal most
        assert slot not in [process.slot for process in active]
        process = Counting(active, slot)
        most = max(most, len(active))
        slots.add(slot)
        return process

    plan = Plan(tmp_path)
    execution.execute(plan, planned(7), start, 3, False)
    assert (most, slots, len(plan.done)) == (3, {0, 1, 2}, 7)


def test_after_a_signal_nothing_is_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(execution, "SECONDS", 0)
    active, started, stop = [], [], []

    def start(run, slot):
        started.append(Counting(active, slot))
        if len(started) == 2:
            stop.append(signal.SIGINT)
        return started[-1]

    plan = Plan(tmp_path)
    execution.execute(plan, planned(5), start, 2, stop)
    assert [process.signals for process in started] == [[signal.SIGTERM]] * 2
    assert "Ctrl-C again" in capsys.readouterr().err
    assert (plan.done, plan.failed) == (set(), {})


def test_what_a_process_gets(tmp_path, monkeypatch):
    got = []
    monkeypatch.setattr(subprocess, "Popen", lambda arguments, env, **options: got.append(env))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    (run,) = planned(1)
    defaults = run.config
    execution.train(run, 1, tmp_path, defaults, ["4", "7"], 2)
    execution.train(run, 1, tmp_path, defaults, [], 2)
    execution.train(run, 0, tmp_path, defaults, [], 1)
    for slot in range(4):  # more runs than GPUs
        execution.train(run, slot, tmp_path, defaults, ["4", "7"], 4)
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in got] == [
        "7",
        *[os.environ.get("CUDA_VISIBLE_DEVICES")] * 2,
        *["4", "7", "4", "7"],
    ]
    assert [env.get("OMP_NUM_THREADS") for env in got] == [None, "4", None, *["2"] * 4]


def test_why_an_attempt_failed(tmp_path):
    output = tmp_path / "output.log"
    output.write_text(
        "$ train.py\ntrain.py: the first\n$ train.py\n10%\r20%\rtrain.py: 2 mistakes:\n  a\n  b\nmore\n\n"
    )
    assert execution.reason(output, 1) == "2 mistakes: a b"
    output.write_text("$ train.py\ntrain.py: the first\n$ train.py\nTraceback\n10%\rKeyError: 'x'\n")
    assert execution.reason(output, 1) == "KeyError: 'x'"
    assert execution.reason(output, -9) == "killed by SIGKILL"
    assert execution.reason(tmp_path / "none", 3) == "status 3"


def test_a_run_at_all_defaults_still_names_its_data(tmp_path):
    """A command of a folder and --resume=True alone is refused where the folder holds no checkpoint."""
    run = Planned("a", "a", dict(DEFAULTS))
    given = execution.command(run, tmp_path, DEFAULTS)[2:]
    assert f"--dataset={DEFAULTS['dataset']}" in given


def test_a_run_that_goes_on_gets_what_may_have_changed(tmp_path):
    """It would take other keys from its own config.json."""
    run = Planned("a", "a", {**DEFAULTS, "log_interval": 3})
    (tmp_path / "a").mkdir()
    before = {**DEFAULTS, "keep_checkpoints": 7, "log_interval": 1}
    (tmp_path / "a" / "config.json").write_text(json.dumps(before))
    given = execution.command(run, tmp_path, DEFAULTS)[2:]
    assert {"--log_interval=3", f"--keep_checkpoints={DEFAULTS['keep_checkpoints']}"} <= set(given)
    assert len(given) == 5  # and the data, the folder, resume


def test_runs_that_depend_on_the_ends_of_others(tmp_path, monkeypatch):
    """They are asked for at the beginning and after each end; what is to come counts from the beginning."""
    monkeypatch.setattr(execution, "SECONDS", 0)
    first, second, third = planned(3)
    plan, started, totals = Plan(tmp_path), [], []
    stages = {0: ([first], 16.0), 1: ([second, third], 0.0)}
    asked = iter(range(9))

    def more():
        number = next(asked)
        assert len(plan.done) == number
        return stages.get(number, ([], 0.0))

    def start(run, slot):
        started.append(run.name)
        return Counting([], slot)

    class Bar(execution.tqdm):
        def update(self, n=1):
            totals.append(self.total)
            return super().update(n)

    monkeypatch.setattr(execution, "tqdm", Bar)
    execution.execute(plan, [], start, 1, False, more)
    assert started == ["run0", "run1", "run2"]
    assert set(totals) == {24.0}
    assert plan.done == set(started)


def test_the_least_work_is_first(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "SECONDS", 0)
    first, long, middle, short = planned(4)
    for run, steps in ((long, 9), (middle, 5), (short, 2)):
        run.config = {**run.config, "max_iters": steps}
    plan, started = Plan(tmp_path), []
    stages = iter([([first], 0.0), ([long, middle], 0.0), ([short], 0.0)])

    def start(run, slot):
        started.append(run)
        return Counting([], slot)

    execution.execute(plan, [], start, 1, False, lambda: next(stages, ([], 0.0)))
    assert started == [first, middle, short, long]


class Clock:
    """Hours of work are hours of this clock; each look at a process takes half an hour."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(deadline.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(execution, "SECONDS", 1800)
        monkeypatch.setattr(execution.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds


def with_deadline(monkeypatch, tmp_path, hours, slower, start_up=0, before=()):
    """(names of runs as they started, what ended, what was left) of runs of 1, 2, 3 and 4 hours.

    before: hours that an earlier command trained of the first ones.
    """
    clock, plan, started = Clock(monkeypatch), Plan(tmp_path), []
    runs = planned(4)
    for number, run in enumerate(runs, 1):
        run.config = {**run.config, "max_iters": number}
        monkeypatch.setattr(run, "work", lambda tokens, run=run: tokens / run.tokens_at(1), raising=False)

    def log(run, step):
        (tmp_path / run.name).mkdir(exist_ok=True)
        (tmp_path / run.name / "log.jsonl").write_text(f'{{"step": {step}}}\n')

    for run, step in zip(runs, before, strict=False):
        log(run, step)

    class Working:
        returncode = None

        def __init__(self, run):
            self.run, self.since = run, clock.now
            self.before = execution.steps_so_far(tmp_path / run.name)

        def poll(self):
            done = ((clock.now - self.since) / 3600 - start_up) / slower + self.before
            if self.returncode is None and done >= self.run.config["max_iters"]:
                log(self.run, self.run.config["max_iters"])
                self.returncode = 0
            return self.returncode

        def send_signal(self, number):
            self.returncode = 143

    def start(run, slot):
        started.append(run.name)
        return Working(run)

    stages, end = iter([(runs, 0.0)]), Deadline(60 * hours + deadline.MARGIN / 60)
    execution.execute(plan, [], start, 1, False, lambda: next(stages, ([], 0.0)), end)
    return started, plan.done, end.left


def test_no_run_starts_that_would_not_end_before_the_deadline(monkeypatch, tmp_path):
    found = with_deadline(monkeypatch, tmp_path, 7.25, slower=1)
    assert found == (["run0", "run1", "run2"], {"run0", "run1", "run2"}, {"run3"})


def test_runs_that_share_the_machine_take_longer_than_expected(monkeypatch, tmp_path):
    """The first took twice its time, so that the third, three hours alone, would need six."""
    found = with_deadline(monkeypatch, tmp_path, 11.25, slower=2)
    assert found == (["run0", "run1"], {"run0", "run1"}, {"run2", "run3"})


def test_time_to_start_up_is_not_taken_for_slow_steps(monkeypatch, tmp_path):
    """Three hours for each: 4, 5, 6 and 7, and half an hour between them."""
    *_, left = with_deadline(monkeypatch, tmp_path, 24.25, slower=1, start_up=3)
    assert left == set()


def test_a_run_that_goes_on_says_nothing_of_how_slow_others_are(monkeypatch, tmp_path):
    """The rest of the first one is a tenth of an hour, and takes three more."""
    *_, left = with_deadline(monkeypatch, tmp_path, 23.75, slower=1, start_up=3, before=[0.9])
    assert left == set()


def test_at_the_deadline_those_that_train_are_stopped(monkeypatch, tmp_path):
    found = with_deadline(monkeypatch, tmp_path, 1.25, slower=3)
    assert found == (["run0"], set(), {"run0", "run1", "run2", "run3"})
