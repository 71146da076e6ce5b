"""What the page says about learning rates that were tried."""

import dataclasses

from scaling import rate_trials
from tests.scaling.synthetic import points

FIRST = points()[0]


def tried(rate, rule, losses):
    """Points at one rate, of the seeds 1, 2, ..."""
    keys = {"learning_rate": rate, "rule": rule}
    return [dataclasses.replace(FIRST, seed=n, loss=loss, **keys) for n, loss in enumerate(losses, 1)]


def told(*trials):
    names = {FIRST.family: "dense"}
    found = [point for trial in trials for point in trial]
    return rate_trials.remarks(found, names), rate_trials.listed(found, names).splitlines()[2:]


def test_rates_are_compared_at_the_seeds_they_share():
    rule = tried(4e-3, 1, [3.0, 3.4])
    (line,), rows = told(rule, tried(8e-3, 0, [3.1]), tried(2e-3, 0, [3.5, 3.6]))
    assert line == f"dense at {FIRST.size}: the rule's learning rate, 4e-3, is the best of 3 (1 seed)"
    assert [row.split("|")[4].strip() for row in rows] == ["2e-3", "4e-3 (the rule's)", "8e-3"]
    assert "**3.1000**" in rows[2]
    (line,), _ = told(rule, tried(8e-3, 0, [3.1, 3.2]))
    assert line.endswith(
        "8e-3 is better than the rule's learning rate, 4e-3, by 0.0500, which seeds explain (2 seeds)"
    )
    close = tried(4e-3, 1, [3.0, 3.01])
    (line,), _ = told(close, tried(8e-3, 0, [2.9, 2.9]))
    assert "by 0.1050, more than seeds explain (2 seeds)" in line
    (line,), _ = told(tried(4e-3, 1, [3.0]), tried(8e-3, 0, [2.9]))
    assert line.endswith("by 0.1000 (1 seed)")  # one seed tells nothing of the noise
    (line,), _ = told(rule, tried(4.1e-3, 0, [2.0, 2.0]))
    assert "4.1e-3 is nearly the rule's learning rate, 4e-3, and the same seeds end 1.2000 lower" in line
    assert told(rule, tried(4.1e-3, 0, [None, 2.0]))[0] == []


def test_a_failure_is_worse_than_any_loss():
    rule = tried(4e-3, 1, [3.0, 3.4])
    (line,), rows = told(rule, tried(8e-3, 0, [1.0, None]))
    assert "is the best of 2 (2 seeds)" in line
    assert "1.0000 (1 failed)" in rows[1]
    assert told(tried(4e-3, 1, [None]), tried(8e-3, 0, [3.0]))[0] == []
    assert told(tried(8e-3, 0, [3.0]))[0] == []
