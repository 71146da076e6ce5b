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
    nothing = "other learning rates were tried at 1 place where none of them is better than the rule's"
    (line,), rows = told(rule, tried(8e-3, 0, [3.1]), tried(2e-3, 0, [3.5, 3.6]))
    assert line == f"{nothing} by more than seeds explain"
    assert [row.split("|")[4].strip() for row in rows] == ["2e-3", "4e-3 (the rule's)", "8e-3"]
    assert [row.split("|")[7].strip() for row in rows] == ["+0.3500 (2 seeds)", "", "+0.1000 (1 seed)"]
    assert "**3.2000 ± 0.2828**" in rows[1]  # 3.1 is lower, of the seed at which the rule has 3.0
    (line,), _ = told(rule, tried(8e-3, 0, [3.1, 3.2]))
    assert line.startswith(nothing)  # by 0.05, where one deviation is 0.28
    (line,), _ = told(tried(4e-3, 1, [3.0, 3.01]), tried(8e-3, 0, [2.9, 2.9]))
    assert line == (
        f"dense at {FIRST.size}: 8e-3 is better than the rule's learning rate, 4e-3, by 0.1050 (2 seeds), "
        "more than seeds explain"
    )
    (line,), _ = told(tried(4e-3, 1, [3.0]), tried(8e-3, 0, [2.9]))
    assert line.endswith("by 0.1000 (1 seed)")  # one seed tells nothing of the noise
    lines, rows = told(rule, tried(4.1e-3, 0, [2.0, 2.0]))
    assert lines == []
    assert "-1.2000 (2 seeds)" in rows[1]  # nearly the rule's


def test_a_failure_is_worse_than_any_loss():
    rule = tried(4e-3, 1, [3.0, 3.4])
    (line,), rows = told(rule, tried(8e-3, 0, [1.0, None]))
    assert "none of them is better" in line
    assert "1.0000 (1 failed)" in rows[1]
    assert rows[1].split("|")[7].strip() == ""
    assert told(tried(4e-3, 1, [None]), tried(8e-3, 0, [3.0]))[0] == []
    assert told(tried(8e-3, 0, [3.0]))[0] == []
