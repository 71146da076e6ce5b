"""Learning rates, and the dyadic schedule as the paper's arithmetic has it."""

import math
from fractions import Fraction

import pytest
import torch

from training.config import TrainConfig
from training.optimizer import adamw
from training.schedule import Dyadic, learning_rate, wake_step

SCHEDULES = ("cosine", "linear", "wsd")


def rates(schedule, steps, decay=20):
    return [learning_rate(s, schedule, 110, 10, decay, 1.0, 0.1) for s in steps]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warmup(schedule):
    assert rates(schedule, range(10)) == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert rates(schedule, [10, 110, 200], decay=99) == pytest.approx([1.0, 0.1, 0.1])


def test_half_a_cosine():
    assert rates("cosine", [60, 35, 85]) == pytest.approx(
        [0.55, *(0.55 + x * 0.45 * 2**-0.5 for x in (1, -1))]
    )
    found = rates("cosine", range(10, 111))
    assert found == sorted(found, reverse=True)


def test_a_straight_line():
    """From the peak after the warmup to the floor in the very last step."""
    found = rates("linear", range(10, 110))
    assert found == pytest.approx([1 - 0.9 * n / 99 for n in range(100)])


def test_warmup_stable_decay():
    """The last 20 steps go down, the very last is at the floor; one step of decay is one at the floor."""
    assert rates("wsd", range(10, 90)) == [1.0] * 80
    assert rates("wsd", range(90, 110)) == pytest.approx([1 - 0.9 * n / 20 for n in range(1, 21)])
    assert rates("wsd", [108, 109], decay=1) == pytest.approx([1.0, 0.1])
    # a decay longer than what the warmup leaves begins after the warmup
    assert rates("wsd", range(10, 110), decay=1000) == pytest.approx(rates("linear", range(10, 110)))


def test_inverse_square_root():
    """The peak after the warmup, half of it after four times as many steps, whatever max_iters is."""

    def rate(step, floor=0.0, iterations=110):
        return learning_rate(step, "rsqrt", iterations, 10, 20, 2.0, floor)

    assert [rate(step) for step in range(10)] == pytest.approx([2 * (step + 1) / 11 for step in range(10)])
    assert [rate(step) for step in (10, 40, 1000)] == pytest.approx([2.0, 1.0, 0.2])
    assert [rate(step, floor=0.5) for step in (10, 40, 159, 161, 999)] == pytest.approx(
        [2.0, 1.0, 2 * (10 / 159) ** 0.5, 0.5, 0.5]
    )
    assert rate(50) == rate(50, iterations=60)
    (wrong,) = TrainConfig(lr_schedule="rsqrt", warmup_iters=0).check()
    assert "0 for warmup_iters=0" in wrong


def test_without_warmup_and_with_a_single_step():
    for schedule in SCHEDULES:
        assert learning_rate(0, schedule, 1, 0, 1, 1.0, 0.0) == 1.0


def test_wake_table_of_the_paper():
    table = {1: 300_000, 2: 450_000, 3: 525_000, 5: 581_250, 7: 595_313}
    assert {depth: wake_step(depth, 600_000) for depth in table} == table


def test_wakes_at_the_first_step_that_the_definition_allows():
    for iterations in (1, 2, 3, 20, 37, 600_000):
        for depth in range(1, 25):
            exact = iterations * (1 - Fraction(1, 2**depth))
            assert wake_step(depth, iterations) == math.ceil(exact)
            assert iterations - wake_step(depth, iterations) == iterations // 2**depth


VARIANTS = [
    {"attention": "cattn_m", "ffn": "cffn_product"},
    {"attention": "cattn_u", "ffn": "cffn_gated"},
    {"attention": "softmax", "ffn": "cffn_added", "cf_init": "nanogpt"},
]


@pytest.mark.parametrize("keys", VARIANTS)
def test_depths_sleep_and_wake(build, keys):
    """Asleep: bit-identical in spite of weight decay, no optimizer state. Awake: t // 2^i updates each."""
    steps = 16
    model = build(block_size=8, cf_depth=3, scale=1.0, **keys)
    optimizer = adamw(model, 1e-2, 0.0, (0.9, 0.95))
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.1  # of everything: what sleeps must not even decay
    dyadic = Dyadic(model, steps)
    depths = {id(p): depth for depth, parameters in dyadic.parameters.items() for p in parameters}
    named = dict(model.named_parameters())
    assert {n for n, p in named.items() if id(p) in depths} == {
        n for n in named if ".W." in n or ".b." in n
    }
    updates = dict.fromkeys(named, 0)
    for step in range(steps):
        tokens = torch.randint(100, (2, 8), generator=torch.Generator().manual_seed(step))
        model(tokens, tokens).backward()
        dyadic.drop_gradients(step)
        before = {name: p.detach().clone() for name, p in named.items()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for name, parameter in named.items():
            depth = depths.get(id(parameter), 0)
            awake = step >= wake_step(depth, steps) if depth else True
            assert torch.equal(parameter, before[name]) != awake, (step, name)
            assert bool(optimizer.state[parameter]) == (updates[name] + awake > 0)
            assert parameter.requires_grad
            updates[name] += awake
    for name, parameter in named.items():
        depth = depths.get(id(parameter), 0)
        expected = steps // 2**depth
        assert updates[name] == expected, name
        if expected:
            assert int(optimizer.state[parameter]["step"]) == expected


def test_the_table_that_is_printed(build):
    model = build(attention="cattn_m", ffn="cffn_product", cf_ladders=2)
    lines = Dyadic(model, 600_000).table(600_000).splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["1:", "2:", "3:", "4:"]
    # per layer two ensembles of depth 3 or more in attention and first factor, three in all at depths 1..3
    assert lines[0].split()[2] == f"{2 * 3 * 2 * 25:,}"
    assert lines[3].split()[2] == f"{2 * 2 * 25:,}"
    assert "wake at step   300,000 and get   300,000 updates" in lines[0]
    assert "never wake" in Dyadic(model, 7).table(7)
    longer = Dyadic(model, 7).table(10).splitlines()  # a finished run that trains on: all depths wake
    assert [line.split("wake at step")[1].split()[0] for line in longer[1:]] == ["4", "6", "7", "7"]
    assert "get         3 updates" in longer[4]
    assert "no ladders" in Dyadic(build(), 7).table(7)
