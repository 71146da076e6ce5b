"""Length extrapolation against a loop over windows and tokens."""

import numpy as np
import pytest
import torch

from evaluation import EvaluationError
from evaluation.extrapolation import documents_for, extrapolate


@pytest.fixture
def documents(stream):
    """Three that are longer than 4 x 17 tokens, and two that are not."""
    return [stream(n, seed=n) for n in (150, 67, 68, 10, 75)]


def naive(model, documents, length, longest):
    """[windows, length] nats, window by window, token by token"""
    rows = []
    for document in documents:
        n = len(document) - 1
        for start in range(0, n // longest * longest, length):
            window = torch.tensor(document[start : start + length + 1])
            logits = [model(window[None, : i + 1])[0, -1].double() for i in range(length)]
            rows.append([-lg.log_softmax(-1)[t].item() for lg, t in zip(logits, window[1:], strict=True)])
    return np.array(rows)


@torch.no_grad()
@pytest.mark.parametrize("position", ["rope", "expe"])
def test_equal_to_a_loop(loaded, documents, position):
    tiny = loaded(position=position)
    found = extrapolate(tiny, documents, (1, 2, 4), batch_size=3)
    assert found["documents"] == 3
    assert found["tokens"] == 68 * 4  # 2 windows, 1 and 1 of 68 tokens
    assert [r["factor"] for r in found["lengths"]] == [1, 2, 4]
    at_one = naive(tiny.model, documents, 17, 68)
    for result in found["lengths"]:
        expected = naive(tiny.model, documents, result["length"], 68)
        assert result["windows"] == len(expected)
        assert result["loss"] == pytest.approx(expected.mean(), abs=1e-6)
        assert result["last"] == pytest.approx(expected[:, -17:].mean(), abs=1e-6)
        same = at_one.reshape(-1, result["factor"], 17)[:, -1]
        assert result["last_at_train_length"] == pytest.approx(same.mean(), abs=1e-6)
        assert result["positions_averaged"] == 1
        assert result["by_position"] == pytest.approx(expected.mean(0), abs=1e-5)


def test_the_batch_changes_nothing(loaded, documents):
    tiny = loaded(position="sinusoidal")
    one, many = (extrapolate(tiny, documents, (1, 4), batch_size=n)["lengths"] for n in (1, 50))
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in many], abs=1e-6)


def test_positions_are_averaged_in_groups(loaded, stream):
    tiny = loaded(position="rope", block_size=40)
    result = extrapolate(tiny, [stream(100)], (1, 2))["lengths"][1]
    assert result["positions_averaged"] == 2
    assert len(result["by_position"]) == 40
    assert np.mean(result["by_position"]) == pytest.approx(result["loss"], abs=1e-6)


@pytest.mark.parametrize(
    "keys",
    [{"position": "learned"}, {"attention": "cattn_m", "position": "none"}, {"attention": "cattn_u"}],
)
def test_models_that_see_no_further_are_refused(loaded, documents, keys):
    """At the training length they are measured, on the same tokens as the others."""
    found = extrapolate(loaded(**keys), documents, (1, 2, 4))
    assert [r["factor"] for r in found["lengths"]] == [1]
    assert found["tokens"] == 68 * 4
    part = next(f"{key}={value}" for key, value in keys.items() if value != "none")
    assert found["refused"].keys() == {2, 4}
    assert "34 tokens do not fit into block_size=17" in found["refused"][2]
    assert part in found["refused"][2]


def test_only_documents_that_are_long_enough(stream):
    short, exact, long = stream(9), stream(10), stream(25)
    kept = documents_for([short, exact, long], 10)
    assert [len(document) for document in kept] == [11, 21]
    np.testing.assert_array_equal(kept[1], long[:21])
    with pytest.raises(EvaluationError, match=r"26 tokens.*3 documents .* 25"):
        documents_for([short, exact, long], 26)


@pytest.mark.parametrize(("factors", "named"), [((2, 4), "1"), ((1, 3, 4), "3"), ((0, 1), "0")])
def test_lengths_that_are_refused(loaded, documents, factors, named):
    told = rf"^lengths .*\(not so with {named}\)"
    with pytest.raises(EvaluationError, match=told):
        extrapolate(loaded(position="rope"), documents, factors)


def test_the_scale_is_that_of_the_columns(loaded, documents):
    """A scale of 1/2 at theta is theta / 2: what the config key stands for, at each length."""
    scaled = loaded(position="expe", expe_inference_scale=0.5, expe_theta=1 / 64)
    halved = loaded(position="expe", expe_theta=1 / 128)
    whole = loaded(position="expe", expe_theta=1 / 64)
    one, two, three = (
        [r["loss"] for r in extrapolate(m, documents, (1, 4))["lengths"]] for m in (scaled, halved, whole)
    )
    assert one == pytest.approx(two, abs=1e-6)
    assert one != pytest.approx(three, abs=1e-4)
