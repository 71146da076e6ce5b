"""The stages of a study: sweeps that end, runs that wait for them, and what a folder remembers."""

import json
import math
import re

import pytest

from ablation.plan import Plan, PlanError
from scaling import listing
from scaling.command import parsed
from scaling.study import Study
from scaling.sweep import carried_on, lowest
from tests.scaling.conftest import DENSE, LADDERS


def simulated(made, monkeypatch, best, failing=()):
    """Runs end as soon as they may start, with a loss that is lowest at the rate `best` -> their names.

    best: a rate, or {size: rate}.
    """
    best_at = best if isinstance(best, dict) else {size.label: best for size in made.sizes}

    def loss(run):
        if run.name not in made.plan.done:
            return math.inf if run.name in made.plan.failed else None
        return abs(math.log(run.rate / best_at[run.size]))

    monkeypatch.setattr(made, "loss", loss)
    started = []
    while True:
        ready, later = made.more()
        if not ready:
            return started, later
        for run in ready:
            started.append(run)
            if run.rate in failing:
                made.plan.failed[run.name] = "loss nan"
            else:
                made.plan.done.add(run.name)


def rates_of(runs, family, size):
    return sorted({run.rate for run in runs if (run.family, run.size) == (family.name, size)})


def test_a_sweep_goes_on_until_its_best_is_no_edge(study, monkeypatch):
    keys = ("--sizes=20K,40K,80K", "--seeds=1,2", "--rates=1e-3,2e-3", "--rate_exponent=1")
    made = study(*keys, models=(DENSE,))
    (dense,) = made.families
    assert len(made.known()) == 4
    assert len(made.to_come()) == 6 + 2  # two check the rate
    started, later = simulated(made, monkeypatch, 7e-3)
    assert later == 0
    found = made.state["families"][dense.name]["rate"]
    assert found == lowest([4e-3, 8e-3, 16e-3], [abs(math.log(r / 7e-3)) for r in (4e-3, 8e-3, 16e-3)])
    assert 6e-3 < found < 8e-3
    assert rates_of(started, dense, "20K") == [1e-3, 2e-3, 4e-3, found, 8e-3, 16e-3]
    assert len(started) == 5 * 2 + 6 + 2
    rule = made.rates.of(dense, made.sizes[1])
    tried = rates_of(started, dense, "40K")
    assert tried == [pytest.approx(f, rel=0.01) for f in (rule / 2, rule, rule * 2)]
    assert rates_of(started, dense, "80K") == [made.rates.of(dense, made.sizes[2])]
    assert len({run.name for run in started}) == len(started)
    assert made.remarks == []
    marks = [mark for mark in made.state["runs"].values() if mark["rule"]]
    assert len(marks) == 6


def test_a_sweep_without_an_end_is_told_by_every_command(study, monkeypatch):
    keys = ("--sizes=20K", "--seeds=1", "--rates=1e-3,2e-3")
    made = study(*keys, models=(DENSE,))
    simulated(made, monkeypatch, 1e9)
    told = [f"{made.families[0].name}: the best of 9 learning rates at 20K is at the edge of the sweep"]
    assert made.remarks == told
    assert study(*keys, models=(DENSE,)).remarks == told
    assert not set(told) & set(study("--sizes=20K", "--rates=1e-3,4e-3", models=(DENSE,)).remarks)


def test_a_second_sweep_gives_the_power_of_the_width(study, monkeypatch):
    made = study("--sizes=20K,80K,160K", "--seeds=1,2", "--rates=1e-3,2e-3,4e-3")
    ladders = made.families[1]
    assert len(made.to_come()) == 2 * (6 + 3 * 2)
    # the best rate stays the same as the width grows
    started, later = simulated(made, monkeypatch, 2e-3)
    assert later == 0
    for family in made.families:
        first, middle, last = (made.rates.width(family, size) for size in made.sizes)
        swept = rates_of(started, family, "80K")
        assert float(f"{2e-3 * first / middle:.3g}") in swept
        assert abs(made.rates.exponent(family)) < 0.5
        rates = [made.rates.of(family, size) for size in made.sizes]
        assert rates[0] == made.state["families"][family.name]["rate"] == 2e-3
        assert rates[1] in swept
        assert rates[2] == pytest.approx(rates[0] * (first / last) ** made.rates.exponent(family), rel=0.01)
        assert rates_of(started, family, "0.16M") == [rates[2]]
    # known from then on, for a size of its own too, unless another power is asked for
    exponent = made.rates.exponent(ladders)
    again = study("--sizes=320K", "--seeds=1", "--rates=1e-3,2e-3,4e-3")
    assert again.rates.exponent(again.families[1]) == exponent
    assert study("--sizes=20K,40K", "--seeds=1", "--rate_exponent=0.5").rates.exponent(ladders) == 0.5
    assert study("--sizes=20K,40K", "--seeds=1", "--rates=3e-3").rates.exponent(ladders) == 1


@pytest.mark.parametrize(("best", "kept"), [(32, -1.0), (1 / 64, 2.0)])
def test_a_power_out_of_bounds_ends_at_the_second_sweep(study, monkeypatch, best, kept):
    """The best learning rate is `best` times as high at the second size: chance, at widths so close."""
    keys = ("--sizes=20K,80K,160K,320K", "--seeds=1", "--rates=1e-3,2e-3,4e-3", "--check_size=80K")
    made = study(*keys, models=(DENSE,))
    (dense,) = made.families
    first, second, *wider = (made.rates.width(dense, size) for size in made.sizes)
    simulated(made, monkeypatch, dict.fromkeys(("20K", "160K", "320K"), 2e-3) | {"80K": 2e-3 * best})
    assert made.rates.exponent(dense) == pytest.approx(-math.log(best) / math.log(second / first), rel=0.1)
    swept = made.rates.at(dense, second)
    assert swept == pytest.approx(2e-3 * best, rel=0.2)
    for width in wider:
        assert made.rates.at(dense, width) == pytest.approx(swept * (second / width) ** kept, rel=0.01)
    (told,) = listing.rate_lines(made, {dense.name: "dense"})
    assert f"as far as {second}, and outside these widths to the power {kept:g}" in told
    # narrower than both, and with the second sweep at the narrower model
    for swap in False, True:
        if swap:
            known = made.state["families"][dense.name]
            known |= {"rate": swept, "width": second, "second": first}
        assert made.rates.at(dense, first) == pytest.approx(2e-3, rel=0.01)
        assert made.rates.at(dense, second) == pytest.approx(swept, rel=0.01)
        narrow, wide = first // 2, 2 * second
        assert made.rates.at(dense, narrow) == pytest.approx(2e-3 * (first / narrow) ** kept, rel=0.02)
        assert made.rates.at(dense, wide) == pytest.approx(swept * (second / wide) ** kept, rel=0.02)


def test_a_second_sweep_is_where_the_model_is_wider(study, monkeypatch):
    made = study("--sizes=20K,80K,160K", "--seeds=1")
    dense, ladders = made.families
    assert made.rates.second(dense) is made.rates.second(ladders) is made.sizes[1]
    more = study("--sizes=20K,40K,80K,160K,320K", "--seeds=1")
    assert more.rates.second(dense).label == "0.16M"  # the second largest
    as_wide = made.shapes[dense.name, "20K"]
    shapes = {**made.shapes, (dense.name, "80K"): as_wide}
    monkeypatch.setattr(Study, "_shapes", lambda self, vocabulary: shapes)
    made = study("--sizes=20K,80K,160K", "--seeds=1")
    assert (made.rates.second(dense), made.rates.second(ladders)) == (made.sizes[2], made.sizes[1])
    with pytest.raises(PlanError, match=r"check_size=80K: gpt2.* wide"):
        study("--sizes=20K,80K,160K", "--seeds=1", "--check_size=80K")
    study("--sizes=20K,80K,160K", "--seeds=1", "--check_size=80K", "--rate_exponent=1")
    shapes[dense.name, "0.16M"] = as_wide  # no other width: nothing to find out
    made = study("--sizes=20K,80K,160K", "--seeds=1")
    assert (made.rates.second(dense), made.rates.exponent(dense)) == (None, 1.0)


def test_more_of_a_study_keeps_its_learning_rates(study, monkeypatch):
    made = study("--sizes=20K,40K,80K", "--seeds=1", "--rates=1e-3,2e-3,4e-3", models=(DENSE,))
    (dense,) = made.families
    simulated(made, monkeypatch, 2e-3)
    before = dict(made.state["families"][dense.name])
    for keys in ("--sizes=160K", "--seeds=1"), ("--sizes=20K,40K", "--seeds=1,2"), ("--sizes=40K,80K",):
        more = study(*keys, models=(DENSE,))
        assert more.state["families"][dense.name] == before
        assert {run.rate for run in more.known()} == {more.rates.of(dense, size) for size in more.sizes}
        assert more.remarks == []
    # one rate is one for later sizes, too, and a power that was given stays
    given = ("--rates=2e-3", "--rate_exponent=0.5")
    other = study("--sizes=20K,80K", "--seeds=1", *given, models=(DENSE,))
    assert "--rates were 1e-3, 2e-3, 4e-3" in other.remarks[0]
    assert other.rates.of(dense, other.sizes[1]) != made.rates.of(dense, made.sizes[2])
    simulated(other, monkeypatch, 2e-3)
    # runs at other sizes of the folder do not stand for the new rule
    ruled = {other.plan.runs[name].config["n_embd"] for name, m in other.state["runs"].items() if m["rule"]}
    assert ruled == {other.shapes[dense.name, size.label].model.n_embd for size in other.sizes}
    again = study("--sizes=160K", "--seeds=1", models=(DENSE,))
    assert (again.rates.exponent(dense), again.to_come(), again.remarks) == (0.5, [], [])


def test_a_sweep_that_is_not_over_begins_at_the_smallest_size_of_the_command(study, monkeypatch):
    made = study("--sizes=20K,40K", "--seeds=1", models=(DENSE,))
    (dense,) = made.families
    made.note(made.known())
    more = study("--sizes=80K,160K", "--seeds=1", models=(DENSE,))
    assert more.state["families"][dense.name]["width"] == more.shapes[dense.name, "80K"].model.n_embd
    started, _ = simulated(more, monkeypatch, 6e-4)
    assert {run.size for run in started} == {"80K", "0.16M"}
    more.state["families"][dense.name]["exponent"] = None
    more.save()
    alone = study("--sizes=320K", "--seeds=1", models=(DENSE,))
    assert alone.rates.exponent(dense) == 1.0
    assert "its second sweep is not over" in alone.remarks[0]


def test_a_sweep_is_decided_by_the_mean_over_its_seeds(study, monkeypatch):
    made = study("--sizes=20K", "--seeds=1,2,3", "--rates=1e-3,2e-3,4e-3", models=(DENSE,))
    (family,) = made.families
    losses = {1e-3: [4.0, 4.0, 4.0], 2e-3: [3.1, 3.1, 3.1], 4e-3: [3.0, 3.2, 3.2]}
    found = {
        run.name: losses[rate][run.config["seed"] - 1]
        for rate in losses
        for run in made.runs_at(family, made.sizes[0], rate)
    }
    monkeypatch.setattr(made, "loss", lambda run: found[run.name])
    made.known()
    means = [4.0, 3.1, 9.4 / 3]
    assert made.state["families"][family.name]["rate"] == lowest([*losses], means)


def test_only_the_rates_that_a_sweep_adds_are_rounded():
    losses = {1.2345e-3: 4.0, 2e-3: 3.0}
    found = carried_on([*losses], lambda rate: [rate], losses.get)
    assert found.rates == [1.2345e-3, 2e-3, 4e-3]
    assert found.rate is None


@pytest.mark.parametrize("rates", [[1e-3, 2e-3, 4e-3], [1e-3, 2e-3, 16e-3]])
def test_the_lowest_point_between_swept_rates(rates):
    """Of a parabola over log rate it is found exactly, and a failure is the side to move away from."""
    assert lowest(rates, [3 + math.log(rate / 2.5e-3) ** 2 for rate in rates]) == 2.5e-3
    assert lowest(rates, [3.0, 3.0, 3.0]) == 2e-3
    assert lowest(rates, [3.5, 3.0, math.inf]) == pytest.approx(2**0.5 * 1e-3, rel=0.01)
    assert lowest(rates, [math.inf, 3.0, math.inf]) == pytest.approx(2e-3, rel=2)


def test_rates_at_which_training_fails(study, monkeypatch):
    made = study("--sizes=20K", "--seeds=1", "--rates=8e-3", models=(DENSE,))
    assert made.rates.of(made.families[0], made.sizes[0]) == 8e-3  # one rate: no sweep
    made = study("--sizes=20K", "--seeds=1", "--rates=8e-3,16e-3", models=(DENSE,))
    started, _ = simulated(made, monkeypatch, 1.0, failing=(16e-3, 8e-3, 4e-3))
    # then at half way to the neighbour of the best that did not fail
    assert sorted(run.rate for run in started) == [1e-3, 1.41e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    assert made.state["families"][made.families[0].name]["rate"] == 1.41e-3


def test_what_failed_is_tried_again_and_not_known_meanwhile(study):
    made = study("--sizes=20K", "--seeds=1", "--rates=8e-3,16e-3", models=(DENSE,))
    failed, other = made.more()[0]
    made.plan.failed[failed.name] = "killed"
    assert made.loss(failed) == math.inf
    again = study("--sizes=20K", "--seeds=1", "--rates=8e-3,16e-3", models=(DENSE,))
    again.plan.failed[failed.name] = "killed"
    assert {run.name for run in again.more()[0]} == {failed.name, other.name}
    assert again.loss(failed) is None


def test_a_family_that_never_trains(study, monkeypatch):
    made = study("--sizes=20K,40K", "--seeds=1")
    dense, _ = made.families
    failing = {2.0**n * dense.config.learning_rate for n in range(-12, 12)}
    monkeypatch.setattr(made, "loss", lambda run: None)
    started = []
    for _ in range(40):
        ready, _ = made.more()
        started += ready
        for run in ready:
            if run.family == dense.name:
                made.plan.failed[run.name] = "loss nan"
        losses = {run.name: math.inf for run in started if run.family == dense.name}
        monkeypatch.setattr(made, "loss", lambda run, losses=losses: losses.get(run.name))
        if not ready:
            break
    tried = [run for run in started if run.family == dense.name]
    assert len(tried) == 9
    assert all(any(run.rate == pytest.approx(rate, rel=0.01) for rate in failing) for run in tried)
    assert f"{dense.name}: training failed" in made.remarks[0]
    assert {run.family for run in made.to_come()} == {made.families[1].name}


def test_what_a_folder_remembers(study, monkeypatch, command, tmp_path):
    made = study("--sizes=20K,80K", "--seeds=1", "--check_rate=False")
    started, _ = simulated(made, monkeypatch, 6e-4)
    assert len(started) == 2 * (3 + 1)
    # another size, without another sweep
    again = study("--sizes=160K", "--seeds=1,2", "--check_rate=False", models=(DENSE,))
    dense = again.families[0]
    rate = again.state["families"][dense.name]
    assert {run.rate for run in again.known()} == {again.rates.of(dense, again.sizes[0])}
    width = again.shapes[dense.name, "0.16M"].model.n_embd
    assert again.rates.of(dense, again.sizes[0]) == pytest.approx(
        rate["rate"] * rate["width"] / width, rel=0.01
    )
    # another exponent: the runs of the old rule do not stand for their size any more
    flat = study("--sizes=20K,80K", "--seeds=1", "--check_rate=False", "--rate_exponent=0")
    simulated(flat, monkeypatch, 6e-4)
    at_80k = [(name, mark["rule"]) for name, mark in flat.state["runs"].items() if mark["size"] == "80K"]
    assert sum(rule for _, rule in at_80k) == 2
    assert len(at_80k) == 4


def test_folders_that_are_refused(study, monkeypatch, command, tmp_path):
    made = study("--sizes=20K", "--seeds=1", "--rates=1e-3", models=(DENSE,))
    simulated(made, monkeypatch, 1e-3)
    made.save()
    with pytest.raises(PlanError, match=r"another model \(.*bias"):
        study("--sizes=20K", "--seeds=1", "--rates=1e-3", "--bias=True", models=(DENSE,))
    with pytest.raises(PlanError, match=r"min_lr / learning_rate was 0\.1, now 0\.05"):
        study("--sizes=40K", "--seeds=1", "--rates=1e-3", f"--min_lr={made.families[0].config.min_lr / 2}")
    with pytest.raises(PlanError, match=r"weight_decay was 0\.1, now 0\.3"):
        study("--sizes=40K", "--seeds=1", "--rates=1e-3", "--weight_decay=0.3", models=(DENSE,))
    other = "2 tokens per parameter.*tokens_per_parameter=4"
    with pytest.raises(PlanError, match=other):
        study("--sizes=40K", "--seeds=1", "--tokens_per_parameter=4", models=(DENSE,))
    name = min(made.state["runs"])
    damage = {
        "it has no 'commands'": {},
        "its format is 'cofrgenet scaling 0'": made.state | {"format": "cofrgenet scaling 0"},
        "seconds.gpt2.20K is '[]'": made.state | {"seconds": {"gpt2": {"20K": []}}},
        f"families.{DENSE} is '[]'": made.state | {"families": {DENSE: []}},
        f"runs.{name} has no 'ratio'": made.state
        | {"runs": {name: {"family": "", "size": "", "rule": True}}},
        f"runs.{name}.rule is '1'": made.state | {"runs": {name: made.state["runs"][name] | {"rule": 1}}},
        "commands is '3'": made.state | {"commands": [3]},
        "its run 'b' is not in ablation.json": made.state | {"runs": {"b": made.state["runs"][name]}},
    }
    for told, content in damage.items():
        (tmp_path / "scaling" / "scaling.json").write_text(json.dumps(content))
        with pytest.raises(PlanError, match=re.escape(f"scale.py ({told})")):
            study("--sizes=20K", models=(DENSE,))
    (tmp_path / "scaling" / "scaling.json").unlink()
    with pytest.raises(PlanError, match="no scaling study"):
        study("--sizes=20K", models=(DENSE,))


def test_sizes_that_cannot_be_had(command, tmp_path):
    config, families, _ = parsed(command("--sizes=100,20K", models=(DENSE, LADDERS)))
    with pytest.raises(PlanError, match=r"sizes .*\s+.* at 100: "):
        Study(config, families, Plan(tmp_path / "new"), 256)
    config, families, _ = parsed(command("--sizes=20K,20.1K", models=(DENSE,)))
    with pytest.raises(PlanError, match=r"at 20.1K: it is the same model as at 20K"):
        Study(config, families, Plan(tmp_path / "new"), 256)
