"""What the pictures of comparisons show, read from their figures: curves, sweeps and ladders."""

import itertools
import json
import math
import statistics

import pytest

from compare import main
from comparison import figure, ladder_figure, report, sweep
from comparison.labels import labels, shortened, text, without_keys
from comparison.runs import Arm, arms, different_tokenizers, read_run, read_runs
from model import flops_per_token
from models.architecture import model_config
from reports.picture import Look


def read(*folders):
    return arms(read_runs([str(folder) for folder in folders]))


def legend(drawn):
    """(title, labels) of a figure's legend."""
    (found,) = [*drawn.legends, *filter(None, (axes.get_legend() for axes in drawn.axes))]
    return found.get_title().get_text(), [text.get_text() for text in found.texts]


@pytest.mark.parametrize("against", ["steps", "tokens", "flops", "hours"])
def test_the_curve_and_its_band(write, against):
    (arm,) = read(write("f_1", [5.0, 2.0, 1.0], seed=1), write("f_2", [5.0, 3.0, math.nan], seed=2))
    tokens = 10 * 4 * 2 * 32
    flops = 3 * flops_per_token(model_config(arm.config))
    place = {"steps": 10, "tokens": tokens, "flops": tokens * flops, "hours": 60}[against]
    # where a seed's loss is not finite there is no mean
    assert figure.curve(arm, against) == [
        (0.0, 5.0, 0.0),
        (pytest.approx(place), 2.5, pytest.approx(statistics.stdev([2.0, 3.0]))),
    ]


def test_a_line_for_each_arm_and_a_band_for_seeds(write):
    found = read(
        *(write(f"f_{s}", [5.0, 2.0 + s], seed=s) for s in (1, 2)), write("g", [5.0, 3.0], dropout=0.1)
    )
    drawn = figure.draw(found, "tokens")
    (axes,) = drawn.axes
    assert legend(drawn) == (
        "mean ± standard deviation of the seeds",
        ["dropout=0 (2 seeds)", "dropout=0.1 (1 seed)"],
    )
    assert axes.lines[0].get_ydata().tolist() == [5.0, 3.5]
    assert axes.lines[0].get_xdata().tolist() == [0.0, 2.56]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(3.5 - statistics.stdev([3.0, 4.0]))
    assert axes.get_xlabel() == "thousand tokens"
    assert axes.get_ylabel() == "validation loss (nats per token)"
    assert axes.lines[0].get_color() != axes.lines[1].get_color()
    assert legend(figure.draw(found[:1], "steps")) == ("mean ± standard deviation of 2 seeds", ["f"])
    assert legend(figure.draw(found[1:], "hours"))[0] == ""
    chosen = figure.draw(found, "hours", Look((3.3, 2.4), "Title", ["dense", "ours"]))
    assert legend(chosen)[1] == ["dense (2 seeds)", "ours (1 seed)"]
    assert chosen.axes[0].get_xlabel() == "seconds of training, without evaluations"


def test_an_arm_whose_runs_failed_keeps_its_label_and_colour(write):
    done = read(write("a", [5.0, 3.0]), write("b", [5.0, 3.0], dropout=0.1))
    failed = Arm("c", [], failed=1, planned={**done[0].config, "dropout": 0.2})
    order = [done[0], failed, done[1]]
    drawn = figure.draw(order, "steps", Look(labels=["one", "two", "three"]))
    assert legend(drawn)[1] == ["one", "three"]
    colours = [line.get_color() for line in drawn.axes[0].lines]
    assert colours == [figure.picture.COLOURS[0], figure.picture.COLOURS[2]]
    assert legend(figure.draw(order, "steps"))[1] == ["dropout=0", "dropout=0.1"]


def test_a_curve_without_a_visible_point_is_not_in_the_legend(write):
    losses = [8.0, 3.0, 2.9, 2.8, 2.7, 2.6]
    drawn = figure.draw(
        read(write("a", losses), write("b", [8.0], dropout=0.1), write("c", losses, dropout=0.2)), "steps"
    )
    assert legend(drawn)[1] == ["dropout=0", "dropout=0.2"]
    assert drawn.axes[0].get_ylim()[1] < 4


@pytest.mark.parametrize(("keys", "top"), [({}, 3.0), ({"init_from": "out/a"}, 8.0)])
def test_a_run_from_weights_shows_where_it_began(write, keys, top):
    (arm,) = read(write("a", [8.0, 3.0, 2.8, 2.7, 2.6], **keys))
    assert top <= figure.draw([arm], "tokens").axes[0].get_ylim()[1] < top + 0.5


def test_bits_per_byte_where_tokenizers_differ(write, tmp_path):
    """By the data sets if they are there, otherwise by the size of the vocabulary."""

    def prepared(name, tokenizer):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text(json.dumps({"tokenizer": {"hash": tokenizer}}))
        return str(tmp_path / name)

    data = [prepared("a", "bytes"), prepared("b", "bpe"), prepared("c", "bpe")]
    runs = [write(f"{n}", [5.0, 3.0], bits=0.1 * (n + 1), dataset=folder) for n, folder in enumerate(data)]
    runs.append(write("other", [5.0, 3.0], vocab_size=100))
    one, two, three, other = read(*runs)
    assert different_tokenizers([one, two])
    assert not different_tokenizers([two, three])
    assert different_tokenizers([three, other])
    (axes,) = figure.draw([one, two], "steps").axes
    assert axes.get_ylabel() == "validation loss\n(bits per byte; tokenizers differ)"
    assert axes.lines[1].get_ydata().tolist() == pytest.approx([1.0, 0.6])
    assert "nats" in figure.draw([two, three], "steps").axes[0].get_ylabel()


def test_labels_are_what_differs(write):
    small = write("long_name_a", [5.0])
    other = write("long_name_b", [5.0], ffn="swiglu", learning_rate=1e-3, min_lr=1e-4)
    found = read(small, other)
    assert labels(found) == ["ffn=mlp, learning_rate=6e-4", "ffn=swiglu, learning_rate=1e-3"]
    assert labels(found, ["ffn"]) == ["ffn=mlp", "ffn=swiglu"]
    assert labels(found, ["dropout"]) == labels(found)  # does not tell them apart
    ladders = {"ffn": "cffn_gated", "position": "none", "n_head": 1}
    deep = read(other, *(write(f"f{d}", [5.0], cf_depth=d, **ladders) for d in (1, 2)))
    assert labels(deep, ["cf_depth"]) == ["long_name_b", "f1", "f2"]  # the first has no depth
    more = write("long_name_c", [5.0], n_layer=3, n_head=1, dropout=0.1)
    assert labels(read(small, more)) == ["a", "c"]
    assert labels(read(small)) == ["long_name_a"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["demo_dense", "demo_cofrgenet"], ["dense", "cofrgenet"]),
        (["gpt2+size-tiny", "cofrgenet_f+size-tiny"], ["gpt2", "cofrgenet_f"]),
        (["a_cf_depth=1_seed=1", "a_cf_depth=3_seed=1"], ["cf_depth=1", "cf_depth=3"]),
        (
            ["m_a_learning_rate=1e-3_min_lr=1e-4", "m_b_learning_rate=2e-3_min_lr=2e-4"],
            ["a, learning_rate=1e-3", "b, learning_rate=2e-3"],
        ),
        (["a", "a_ablate-x"], ["a", "a_ablate-x"]),
        (["base", "base+more"], ["base", "base+more"]),
        (["same", "same"], ["same", "same"]),
        (["one_name"], ["one_name"]),
    ],
)
def test_short_names(names, short):
    assert shortened(names) == short


def test_names_without_keys_and_values_as_one_writes_them():
    name = "demo_dense_learning_rate=1e-3_min_lr=1e-4_cf_depth=3_seed=1"
    assert without_keys(name, {"learning_rate", "min_lr", "seed"}) == "demo_dense_cf_depth=3"
    values = [0.004, 0.02, 0.0015, 0.1, 1.0, 0.0, 12, True, None, "mlp", 1e-10, 25000.0]
    assert [text(value) for value in values] == [
        *("4e-3", "2e-2", "1.5e-3", "0.1", "1", "0", "12", "True", "None", "mlp", "1e-10", "2.5e4"),
    ]


@pytest.fixture
def rates(write):
    """rates({rate: [loss of each seed]}, name, **keys) -> run folders as ablate.py names them."""

    def make(losses, name="dense", **keys):
        return [
            write(
                f"{name}_learning_rate={rate:g}_min_lr={rate / 10:g}_seed={seed}",
                [5.0, loss],
                **{"learning_rate": rate, "min_lr": rate / 10, "seed": seed, "max_iters": 10, **keys},
            )
            for rate, ends in losses.items()
            for seed, loss in enumerate(ends, 1)
        ]

    return make


DENSE = {1e-3: [3.5, 3.7], 2e-3: [3.0, 3.2], 4e-3: [3.3, 3.5]}
OTHER = {2e-3: [3.4, 3.4], 4e-3: [3.1, 3.1], 8e-3: [2.9, 3.1]}


def test_a_sweep_of_the_learning_rate(rates):
    found = read(*rates(DENSE), *rates(OTHER, "full", ffn="swiglu"))
    (one,) = sweep.sweeps(found)
    assert one.key == "learning_rate"
    assert [line.name for line in one.lines] == ["ffn=mlp", "ffn=swiglu"]
    assert [list(line.arms) for line in one.lines] == [list(DENSE), list(OTHER)]
    assert [line.best for line in one.lines] == [2e-3, 8e-3]
    assert sweep.remarks(one) == [
        "ffn=mlp: the best learning_rate of 3 is 2e-3",
        "ffn=swiglu: the best learning_rate of 3 is 8e-3, the largest tried: try 1.6e-2",
    ]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in sweep.markdown(one).splitlines()]
    assert rows[0] == ["learning_rate", "ffn=mlp, nats per token", "ffn=swiglu, nats per token"]
    assert rows[2:4] == [
        ["1e-3", "3.6000 ± 0.1414", ""],
        ["2e-3", "**3.1000 ± 0.1414**", "3.4000 ± 0.0000"],
    ]
    assert rows[5] == ["8e-3", "", "**3.0000 ± 0.1414**"]
    # the same from keys under study, in which min_lr is not a sweep of its own
    assert [again.key for again in sweep.sweeps(found, ["ffn", "min_lr", "learning_rate"])] == [one.key]


def test_the_picture_of_a_sweep(rates):
    (one,) = sweep.sweeps(read(*rates(DENSE), *rates(OTHER, "full", ffn="swiglu")))
    drawn = sweep.draw(one)
    (axes,) = drawn.axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "learning_rate"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1e-3", "2e-3", "4e-3", "8e-3"]
    assert legend(drawn) == ("mean of 2 seeds; points: seeds", ["ffn=mlp", "ffn=swiglu", "best"])
    means, seeds, best = axes.lines[:3]
    assert means.get_xdata().tolist() == list(DENSE)
    assert means.get_ydata().tolist() == pytest.approx([3.6, 3.1, 3.4])
    assert sorted(seeds.get_ydata()) == sorted(loss for ends in DENSE.values() for loss in ends)
    assert (best.get_xdata()[0], best.get_ydata()[0]) == pytest.approx((2e-3, 3.1))
    assert best.get_marker() == "*"
    assert legend(sweep.draw(one, Look(labels=["dense", "ours"])))[1] == ["dense", "ours", "best"]


def test_a_rate_at_which_training_failed_was_tried(rates):
    """It is no best one, and its neighbour is not at the edge."""
    done = read(*rates({1e-3: [3.5], 2e-3: [3.0]}))
    failed = Arm("dense", [], failed=1, planned={**done[0].config, "learning_rate": 4e-3, "min_lr": 4e-4})
    partly = Arm(
        "dense", done[1].runs, failed=1, planned={**done[0].config, "learning_rate": 2e-3, "min_lr": 2e-4}
    )
    (one,) = sweep.sweeps([*done, failed])
    assert sweep.remarks(one) == ["dense: the best learning_rate of 3 is 2e-3"]
    assert "| 4e-3          |                          failed |" in sweep.markdown(one)
    drawn = sweep.draw(one)
    assert legend(drawn)[1][-1] == "failed or not finished"
    crosses = [line for line in drawn.axes[0].lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_xdata()[0] for line in crosses] == [4e-3]
    (one,) = sweep.sweeps([done[0], partly, failed])
    assert one.lines[0].best == 1e-3
    assert "3.0000 (1 of 2 failed)" in sweep.markdown(one)


def test_a_rate_at_which_training_diverged_is_a_cross(write):
    losses = {"mlp": {1e-3: 3.0, 2e-3: 2.9, 4e-3: 350.0}, "swiglu": {1e-3: 3.1, 2e-3: 2.9, 4e-3: 5.2}}
    folders = [
        write(f"{ffn}{rate}", [5.0, 3.5, last], ffn=ffn, learning_rate=rate)
        for ffn, ends in losses.items()
        for rate, last in ends.items()
    ]
    (one,) = sweep.sweeps(read(*folders))
    drawn = sweep.draw(one)
    (axes,) = drawn.axes
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in crosses] == [[4e-3], [4e-3]]
    assert crosses[0].get_ydata()[0] > crosses[1].get_ydata()[0]
    assert axes.get_ylim()[1] < 3.5
    assert legend(drawn)[1][-1] == "failed, diverged or not finished"
    # the best of both at one place: the later star is smaller, on top
    stars = [line for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [line.get_xdata()[0] for line in stars] == [2e-3, 2e-3]
    assert stars[0].get_markersize() > stars[1].get_markersize()
    assert stars[0].get_zorder() <= stars[1].get_zorder()


def test_ticks_of_a_narrow_sweep_do_not_touch(write):
    rates = (1e-3, 1.1e-3, 1.2e-3, 3e-3, 4e-3, 5e-3, 6e-3)
    (one,) = sweep.sweeps(read(*(write(str(rate), [5.0, 3.0], learning_rate=rate) for rate in rates)))
    drawn = sweep.draw(one, Look((3.3, 2.4)))
    drawn.draw_without_rendering()
    boxes = [tick.get_window_extent() for tick in drawn.axes[0].get_xticklabels()]
    assert len(boxes) > 2
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_a_run_that_is_behind_is_no_best_one(write):
    folders = [
        write("a", [5.0, 4.0, 3.5], learning_rate=1e-3),
        write("b", [5.0, 3.0], learning_rate=2e-3),
    ]
    (one,) = sweep.sweeps(read(*folders))
    assert one.lines[0].best == 1e-3
    assert "3.0000 (step 10)" in sweep.markdown(one)


def test_what_is_a_sweep(write):
    base = write("a", [5.0, 3.0])
    assert sweep.sweeps(read(base, write("b", [5.0, 3.0], learning_rate=1e-3, n_layer=1))) == []
    assert sweep.sweeps(read(base, write("c", [5.0, 3.0], seed=2))) == []
    deep = read(base, write("d", [5.0, 2.0], n_layer=3), write("e", [5.0, 2.5], n_layer=4))
    assert sweep.sweeps(deep) == []  # nobody asked
    (one,) = sweep.sweeps(deep, ["n_layer"])
    assert sweep.remarks(one) == ["a: the best n_layer of 3 is 3"]
    assert sweep.draw(one).axes[0].get_xscale() == "linear"
    assert sweep.sweeps(read(base, write("f", [5.0, 3.0], eval_tokens=640)), ["eval_tokens"]) == []
    assert sweep.sweeps(read(base, write("g", [5.0, 3.0], dyadic=True, ffn="cffn_gated")), ["dyadic"]) == []


def test_a_sweep_across_tokenizers_is_in_bits_per_byte(write):
    folders = [
        write(f"{size}{rate}", [5.0, 3.0], bits=size / 1000, vocab_size=size, learning_rate=rate)
        for size in (200, 300)
        for rate in (1e-3, 2e-3)
    ]
    (one,) = sweep.sweeps(read(*folders))
    assert "vocab_size=200, bits per byte" in sweep.markdown(one)
    assert "**0.9000**" in sweep.markdown(one)
    assert "bits per byte" in sweep.draw(one).axes[0].get_ylabel()
    assert sweep.draw(one).axes[0].lines[0].get_ydata().tolist() == pytest.approx([0.6, 0.6])


def test_a_sweep_of_the_length(write):
    """Every one of them has come to its end."""
    runs = read(write("a", [5.0, 4.0], max_iters=10), write("b", [5.0, 4.0, 3.0], max_iters=20))
    (one,) = sweep.sweeps(runs, ["max_iters"])
    assert "(step" not in sweep.markdown(one)
    assert sweep.draw(one).axes[0].lines[0].get_ydata().tolist() == [4.0, 3.0]


def test_a_rate_that_was_trained_twice(rates, write):
    """Once more under another name: that with more seeds stands for both."""
    again = write("again", [5.0, 1.0], learning_rate=2e-3, min_lr=2e-4, max_iters=10, seed=3)
    (one,) = sweep.sweeps([*read(again), *read(*rates(DENSE))])
    assert [len(arm.runs) for arm in one.lines[0].arms.values()] == [2, 2, 2]


def test_min_lr_varied_on_its_own_too(write):
    """Then it says which model it is."""
    folders = [
        write(f"{rate}{low}", [5.0, 3.0 + low], learning_rate=rate, min_lr=low)
        for rate in (1e-3, 2e-3)
        for low in (1e-4, 2e-4)
    ]
    (one,) = sweep.sweeps(read(*folders))
    assert [line.name for line in one.lines] == ["min_lr=1e-4", "min_lr=2e-4"]


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ([1e-3, 2e-3], 4e-3),
        ([2e-3, 1e-3], 5e-4),
        ([1e-3, 3e-3, 1e-2], 0.0333),
        ([0.0, 0.1, 0.2], 0.3),
        ([0.1, 0.2, 0.3], 0.4),
        ([0.2, 0.1, 0.0], None),
        ([0.9, 0.99], None),  # a share
        ([0.25, 0.5, 1.0], 2.0),
    ],
)
def test_what_to_try_next(values, beyond):
    assert sweep._beyond(values) == (beyond and pytest.approx(beyond))


LADDERS = ("blocks.0.attention.ladders", "blocks.0.ffn.first", "blocks.1.attention.ladders")
LADDERS += ("blocks.1.ffn.second",)
OF_LADDERS = {"attention": "cattn_m", "ffn": "cffn_product", "position": "none", "cf_depth": 2}


@pytest.fixture
def with_ladders(write):
    """with_ladders(name, **config) -> the folder of a run whose log has records of ladders."""

    def make(name, **config):
        folder = write(name, [5.0, 4.0, 3.0], **{**OF_LADDERS, **config})
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for record in lines:
            if "val_loss" in record:
                step = record["step"]
                record["ladders"] = {
                    layer: {
                        "clamped": 0.01 * n,
                        "min_denominator": 10.0 ** -(n + step / 10),
                        "z_99": 1.0 + n,
                        "grad_norm": 0.5 if step else None,
                    }
                    for n, layer in enumerate(LADDERS)
                }
        (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
        return folder

    return make


def test_the_picture_of_ladders(with_ladders):
    run = read_run(with_ladders("a", dyadic=True, max_iters=20))
    drawn = ladder_figure.draw([run], "steps")
    smallest, z, clamped, gradients, bar = drawn.axes
    assert smallest.get_ylabel() == "smallest |denominator|"
    own = [line for line in smallest.lines if len(line.get_xdata()) == 3]
    assert [line.get_ydata().tolist() for line in own] == [
        pytest.approx([10.0 ** -(n + step) for step in range(3)]) for n in range(4)
    ]
    assert (smallest.get_yscale(), z.get_yscale()) == ("log", "linear")
    assert [text.get_text() for text in smallest.texts] == ["cf_eps"]
    assert clamped.get_ylim() == (0, pytest.approx(1.05 * 0.03))
    assert [line.get_xdata().tolist() for line in gradients.lines[:4]] == [[10, 20]] * 4
    assert legend(drawn)[1] == ["attention", "ffn, first", "ffn, second", "a depth wakes"]
    assert own[0].get_color() == own[1].get_color() != own[2].get_color()  # by block
    assert own[0].get_linestyle() == own[2].get_linestyle() != own[1].get_linestyle()  # by part
    assert [line.get_xdata()[0] for line in z.lines if len(line.get_xdata()) == 2] == [10, 15]
    assert bar.get_ylabel() == "block"
    both = ladder_figure.draw([run, run], "tokens", Look(labels=["one", "two"]))
    assert [axes.get_title() for axes in both.axes[:3]] == ["one", "two", ""]


def test_one_record_of_ladders_is_a_point(with_ladders):
    run = read_run(with_ladders("a"))
    for step in (10, 20):
        run.evaluations[step]["ladders"] = {}
    for axes in ladder_figure.draw([run], "steps").axes[:3]:
        assert [line.get_marker() for line in axes.lines if len(line.get_xdata()) == 1] == ["o"] * 4


def test_ladders_need_room_for_their_panels(with_ladders):
    run = read_run(with_ladders("a"))
    (told,) = report.wrong_ladders([run], "tokens", Look((3.3, 2.4)))
    assert "plot_size=3.3x2.4 is too small for 2 x 2" in told
    assert "take 4x5 or more" in report.wrong_ladders([run] * 3, "tokens", Look((3.3, 2.4)))[0]


def test_ladders_from_the_command_line(with_ladders, write, tmp_path, capsys):
    folder, plot = with_ladders("a"), tmp_path / "p.svg"
    main([str(folder), "--picture=ladders", f"--plot={plot}", "--plot_title=Poles"])
    assert f"picture: {plot}" in capsys.readouterr().out
    assert "99th percentile of |z|" in plot.read_text()
    assert "Poles" in plot.read_text()

    def refused(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments), "--picture=ladders", f"--plot={tmp_path / 'q.png'}"])
        assert not (tmp_path / "q.png").exists()
        return str(stop.value.code)

    dense = write("dense", [5.0, 3.0])
    assert "dense has no ladders" in refused(folder, dense)
    assert "is drawn against steps, " in refused(folder, "--against=learning_rate")
    many = [with_ladders(f"m{seed}", seed=seed) for seed in range(5)]
    assert "shows 4 runs at most, not 5" in refused(*many)
    assert "it has 2 for 1 line: a" in refused(folder, "--plot_labels=x,y")


def test_a_sweep_from_the_command_line(rates, write, tmp_path, capsys):
    folders, plot, page = rates(DENSE), tmp_path / "p.pdf", tmp_path / "t.md"
    command = [*map(str, folders), "--against=learning_rate", f"--plot={plot}"]
    main([*command, f"--markdown={page}", "--plot_size=3.3x2.4", "--plot_labels=dense"])
    out = capsys.readouterr().out
    for shown in (out, page.read_text()):
        assert "| 2e-3          |             **3.1000 ± 0.1414** |" in shown
        assert "- dense: the best learning_rate of 3 is 2e-3\n" in shown
    assert page.read_text().endswith("![validation loss against learning_rate](p.pdf)\n")
    assert plot.read_bytes().startswith(b"%PDF")

    def refused(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments), f"--plot={tmp_path / 'q.png'}"])
        assert not (tmp_path / "q.png").exists()
        return str(stop.value.code) + capsys.readouterr().err

    assert "differ in dropout alone" in refused(*folders, "--against=dropout")
    assert "against must be one of steps, " in refused(*folders, "--against=token")
    assert "it has 2 for 1 line: dense" in refused(*folders, "--against=learning_rate", "--plot_labels=a,b")
    assert "it has 1 for 3 lines" in refused(*folders, "--plot_labels=a")
