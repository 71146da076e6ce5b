"""The list of an ablation's runs."""

import pytest

from ablation.plan import Plan, PlanError
from tests.ablation.planned_runs import planned
from training.config import with_defaults


def test_a_run_that_changed_name_for_name(tmp_path):
    plan = Plan(tmp_path)
    plan.extend(planned(2), ["seed"])
    plan.save()
    again = Plan(tmp_path)
    for run in plan.runs.values():
        run.config = with_defaults(run.config)
    assert (again.runs, again.study) == (plan.runs, ["seed"])
    other = planned(1)
    other[0].config = {**again.runs["run0"].config, "seed": 2}
    with pytest.raises(PlanError, match="run0: seed was 1, now 2"):
        again.extend(other, [])
