"""What the pictures of evaluate.py show, read from their figures."""

import pytest

from evaluation import figure
from reports.picture import Look


def of_lengths(factors, refused=(), train=16):
    lengths = [
        {"factor": k, "length": k * train, "loss": 3.0 + k, "by_position": [1.0 * n for n in range(4 * k)]}
        for k in factors
    ]
    return {"train_length": train, "lengths": lengths, "refused": dict.fromkeys(refused, "too long")}


def texts(drawn):
    (found,) = drawn.legends or [axes.get_legend() for axes in drawn.axes]
    return [text.get_text() for text in found.texts]


@pytest.mark.parametrize(("size", "stacked"), [(None, False), ((3.3, 5.0), True)])
def test_extrapolation_marks_lengths_that_a_model_cannot_see(size, stacked):
    # keys of JSON are texts
    results = {
        "rope": of_lengths((1, 2, 4)),
        "learned": of_lengths((1,), (2, "4")),
        "m": of_lengths((1,), (2,)),
    }
    drawn = figure.extrapolation(results, Look(size))
    average, position = drawn.axes
    assert texts(drawn) == ["rope", "learned", "m", "training length", "cannot see this length"]
    crosses = [line for line in average.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in crosses] == [[32, 64], [32]]
    curves = [line for line in average.lines if line.get_linestyle() == "-" and len(line.get_xdata())]
    assert [line.get_color() for line in crosses] == [curve.get_color() for curve in curves[1:3]]
    heights = [line.get_ydata()[0] for line in crosses]
    assert 1 > heights[0] > heights[1] > 0.8  # of the axes: they hide neither each other nor a loss
    assert average.get_ylim()[1] > 7.0 + 0.1 * (7.0 - 4.0)
    assert curves[0].get_ydata().tolist() == [4.0, 5.0, 7.0]
    assert position.lines[0].get_xdata().tolist() == [8.0, 24.0, 40.0, 56.0]
    assert position.lines[0].get_ydata().tolist() == [1.5, 5.5, 9.5, 13.5]
    boxes = [axes.get_subplotspec() for axes in drawn.axes]
    assert (boxes[1].rowspan.start == 1) == stacked
    assert average.get_ylabel() == "loss (nats per token)"
    differ = figure.extrapolation(results, Look(size), "bytes, bpe")
    assert [axes.get_ylabel() for axes in differ.axes] == [figure.OWN_TOKENS] * 2
    alone = figure.extrapolation({"rope": of_lengths((1, 2))}, Look(labels=["RoPE"]))
    assert texts(alone) == ["RoPE", "training length"]


def test_recall_by_the_length_of_repeats():
    counts = (70, 20, 7, 3, 0)
    results = {
        name: {
            "tokens": 100,
            "repeats": [
                {"length": n, "tokens": count, "loss": better + 5.0 - n if count else None}
                for n, count in enumerate(counts)
            ],
        }
        for name, better in (("dense", 0.0), ("$a$", 0.5))
    }
    drawn = figure.recall(results, Look((3.3, 2.6), "Recall"))
    (axes,) = drawn.axes
    assert texts(drawn) == ["dense", r"\$a\$"]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[5, 4, 3, 2], [5.5, 4.5, 3.5, 2.5]]
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert ticks == ["new\n70%", "1\n20%", "2\n7.0%", "3\n3.0%", "4+\n0%"]
    assert drawn.get_suptitle() == "Recall"
