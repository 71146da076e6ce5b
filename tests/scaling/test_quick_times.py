"""Hours on this machine, as dry runs say them."""

from ablation.plan import Plan
from ablation.product import Planned
from models.architecture import model_config
from scaling import quick_times
from tests.ablation.planned_runs import planned
from training.config import DEFAULTS, TrainConfig

SMALL = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "vocab_size": 300, "device": "cpu"}


def test_a_large_batch_is_measured_in_part(monkeypatch):
    """The optimizer's share stays that of the whole step."""
    seen = []
    monkeypatch.setattr(quick_times, "of_model", lambda *given: seen.append(given) or [0.5])
    config = TrainConfig(**SMALL, batch_size=64, gradient_accumulation_steps=2, optimizer="muon")
    monkeypatch.setattr(quick_times, "WANTED", 1.0)
    assert quick_times.of_token(config, model_config(config)) == 0.5
    (few, _, _) = seen[0]
    assert (few.batch_size, few.gradient_accumulation_steps, few.compile) == (1, 128, False)
    monkeypatch.setattr(quick_times, "MOST", 1.0)
    assert quick_times.of_token(config, model_config(config)) is None
    assert "not measured" in quick_times.of_run(config, model_config(config), 1)
    assert len(seen) == 1


def test_a_run(monkeypatch):
    monkeypatch.setattr(quick_times, "of_model", lambda *given: [0.5])
    config = TrainConfig(**SMALL)
    said = quick_times.of_run(config, model_config(config), 14_400)
    assert said.startswith("2.0 h on this machine: 2 tokens/s, measured in a few eager steps")
    monkeypatch.setattr(quick_times.torch.cuda, "is_available", lambda: True)
    config.device = "auto"
    assert quick_times.of_run(config, model_config(config), 14_400) is None


def test_a_model_for_gpus_alone(monkeypatch):
    def launched(*given):
        raise RuntimeError("0 active drivers ([]). There should only be one.")  # Triton's

    monkeypatch.setattr(quick_times, "of_model", launched)
    config = TrainConfig(**SMALL)
    assert "does not run on one" in quick_times.of_run(config, model_config(config), 1)


def test_runs_of_a_plan(tmp_path, dataset, monkeypatch):
    """Each model once; finished runs and the steps of begun ones are left out."""
    seen = []
    monkeypatch.setattr(quick_times, "of_model", lambda *given: seen.append(given) or [0.5])
    plan, runs = Plan(tmp_path), []
    for number, run in enumerate(planned(4)):
        keys = {**DEFAULTS, **SMALL, "batch_size": 1, "gradient_accumulation_steps": 1, "max_iters": 900}
        keys |= {"dataset": str(dataset), "seed": number, "cf_depth": 3, "n_embd": 8 if number < 3 else 16}
        runs.append(Planned(run.name, run.arm, keys))
    plan.extend(runs, [])
    plan.done.add("run0")
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "log.jsonl").write_text('{"step": 450}\n')
    said = quick_times.of_runs(plan, runs, parallel=2)
    assert len(seen) == 2
    # 450 + 900 + 900 steps of 8 tokens, two runs at a time
    assert said.startswith("about 1.2 h on this machine: measured in")


def test_where_nothing_was_measured_no_time_is_named(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(quick_times, "of_token", lambda *given: None)
    plan = Plan(tmp_path)
    runs = [
        Planned(run.name, run.arm, {**DEFAULTS, **SMALL, "dataset": str(dataset)}) for run in planned(2)
    ]
    plan.extend(runs, [])
    said = quick_times.of_runs(plan, runs, parallel=1)
    assert said == "on this machine: 2 runs not measured: too large, for GPUs, of pairs, or a SAFFU"


def test_a_model_is_really_measured():
    config = TrainConfig(**SMALL, batch_size=2, gradient_accumulation_steps=2)
    assert 0 < quick_times.of_token(config, model_config(config)) < 1
