"""The list of an ablation's runs."""

import pytest

from ablation.plan import Plan, PlanError
from tests.ablation.planned_runs import planned


def test_a_run_that_changed_name_for_name(tmp_path):
    plan = Plan(tmp_path)
    plan.extend(planned(2), ["seed"])
    plan.save()
    again = Plan(tmp_path)
    assert (again.runs, again.study) == (plan.runs, ["seed"])
    (other,) = planned(1)
    other.config["learning_rate"] = 1e-3
    with pytest.raises(PlanError, match=r"run0: learning_rate was 0\.0006, now 0\.001"):
        again.extend([other], [])


def test_more_seeds_of_an_arm_have_its_configuration(tmp_path):
    plan = Plan(tmp_path)
    plan.extend(planned(1), [])
    (other,), (third,) = planned(1), planned(1)
    other.name, other.config["seed"] = "run0 again", 2
    plan.extend([other], [])
    third.name, third.config["dropout"] = "run0 once more", 0.2
    with pytest.raises(PlanError, match=r"once more: dropout was 0\.0, now 0\.2"):
        plan.extend([third], [])


def log_of(folder, lines):
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_saffu_without_steps_is_finished_after_its_tuning(tmp_path):
    """All of its evaluations are at step 0."""
    plan = Plan(tmp_path / "study")
    (run,) = planned(1)
    run.config.update(saffu_only=True, max_iters=0, saffu_tuning=2)
    plan.extend([run], [])
    record = '{"step": 0, "tokens": 0, "val_loss": 2.0}'
    log_of(plan.folder / run.name, [])
    (plan.folder / run.name / "ckpt" / "step_00000000.pt").mkdir(parents=True)
    for count in (1, 2, 3):
        (plan.folder / run.name / "log.jsonl").write_text(f"{record}\n" * count)
        plan.find_finished()
        assert plan.done == ({run.name} if count == 3 else set())


@pytest.mark.parametrize(
    ("line", "said"),
    [(0, r"run0/log\.jsonl, line 1: damaged"), (1, r"run0/log\.jsonl.* lost .*step 1")],
)
def test_a_damaged_log_of_a_finished_run_stops_the_study(tmp_path, line, said):
    """What was read once stays: neither failed nor trained again."""
    plan = Plan(tmp_path / "study")
    plan.extend(planned(2), [])
    plan.done = {"run0", "run1"}
    plan.save()
    lines = ['{"step": 0, "tokens": 0, "val_loss": 2.0}', '{"step": 1, "tokens": 2, "val_loss": 1.0}']
    for name in plan.done:
        log_of(plan.folder / name, lines)
    plan.find_finished()
    assert plan.done == {"run0", "run1"}
    lines[line] = lines[line][:15]
    (plan.folder / "run0" / "log.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(PlanError, match=said):
        plan.find_finished()
    assert (plan.done, plan.failed) == ({"run0", "run1"}, {})
    (plan.folder / "run0" / "log.jsonl").rename(tmp_path / "moved")
    plan.find_finished()
    assert plan.done == {"run1"}
