import pytest

from training.schedule import learning_rate


def test_warmup_then_half_a_cosine():
    def rate(step):
        return learning_rate(step, max_iters=110, warmup_iters=10, learning_rate=1.0, min_lr=0.1)

    assert [rate(s) for s in range(10)] == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)
    assert rate(110) == pytest.approx(0.1)
    assert all(rate(s) > rate(s + 1) for s in range(10, 110))


def test_without_warmup_and_with_a_single_step():
    assert learning_rate(0, 1, 0, 1.0, 0.0) == 1.0
