"""How pictures are written, which files they replace, and the keys with which a user shapes them."""

import re
from types import SimpleNamespace

import matplotlib
import pytest

from reports import picture


@picture.drawing()
def drawn(title=None, x=(0, 1)):
    figure, ((axes,),) = picture.new(picture.Look((3.3, 2.4), title))
    axes.plot(x, (1, 2))
    axes.set_xlabel("tokens of the text")
    return figure


def said(plot="a.png", size=None, title=None, labels=None):
    config = SimpleNamespace(plot=plot, plot_size=size, plot_title=title, plot_labels=labels)
    return picture.mistakes(config)


@pytest.mark.parametrize(("ending", "head"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_every_format_is_whole_and_the_same_when_made_again(tmp_path, ending, head):
    first, second = (tmp_path / name / f"a{ending}" for name in ("new", "other"))
    for path in (first, second):
        picture.write(drawn(), path)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(head)
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_fonts_are_embedded_and_text_stays_text(tmp_path):
    for ending in (".pdf", ".svg"):
        picture.write(drawn(), tmp_path / f"a{ending}")
    pdf, svg = ((tmp_path / f"a{ending}").read_bytes() for ending in (".pdf", ".svg"))
    assert b"/FontFile2" in pdf  # TrueType, not the bitmaps or type 3 that journals refuse
    assert b"/Type3" not in pdf
    assert b"tokens of the text</text>" in svg


def test_readers_of_each_format_take_it(tmp_path):
    from xml.etree import ElementTree

    from PIL import Image

    for ending in (".png", ".pdf", ".svg"):
        picture.write(drawn(), tmp_path / f"a{ending}")
    with Image.open(tmp_path / "a.png") as image:
        image.load()
        assert image.size == (660, 480)  # 3.3 x 2.4 inches at 200 dots an inch
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert b"%%EOF" in (tmp_path / "a.pdf").read_bytes()[-200:]


@pytest.mark.parametrize("ending", picture.ENDINGS)
def test_only_a_name_of_the_scripts_own_is_replaced(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    assert said(str(path)) == []
    picture.write(drawn("before"), path)
    before = path.read_bytes()
    for content in (before, b"", b"mine"):
        path.write_bytes(content)
        (told,) = said(str(path))
        assert told.startswith(f"plot={path} exists")
        with pytest.raises(OSError, match=r"a\.\w+ exists"):
            picture.write(drawn("after"), path)
        assert path.read_bytes() == content
    picture.write(drawn("before"), path, own=True)
    assert path.read_bytes() == before
    path.unlink()
    own = [path.parent / "." / path.name]
    (told,) = picture.refused(str(path), own)
    assert told.startswith(f"plot={path} is a picture")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("size", "count"), [((3.3, 2.4), 1), ((3.3, 2.4), 8), ((2.0, 2.0), 3)])
def test_texts_fit_and_a_picture_without_room_for_them_grows(tmp_path, capsys, size, count):
    with picture.drawing():
        figure, ((axes,),) = picture.new(picture.Look(size, "a title of many words " * 5))
        lines = [axes.plot([0, 1])[0] for _ in range(count)]
        axes.set_ylabel("validation loss\n(bits per byte; tokenizers differ)")
        axes.set_xlabel("seconds of training, without evaluations")
        picture.legend(figure, axes, lines, [f"ffn=cffn_gated, rate={n}e-3" for n in range(count)])
    picture.write(figure, tmp_path / "a.svg")
    figure.draw_without_rendering()
    texts = [figure._suptitle, axes.xaxis.label, axes.yaxis.label, *figure.legends]
    for box in [text.get_window_extent() for text in texts]:
        assert -1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1
        assert -1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1
    width, height = figure.get_size_inches()
    assert axes.get_position().height >= 0.39
    grown = (width, height) != size
    assert grown == (count > 1)
    assert (f"--plot_size={width:g}x{height:g}" in capsys.readouterr().err) == grown


def test_the_least_size_of_several_panels():
    assert picture.wrong_size(picture.PLAIN, 4, 3) == []
    assert picture.wrong_size(picture.Look((3.3, 3.0)), 2, 2) == []
    (told,) = picture.wrong_size(picture.Look((3.3, 2.4)), 2, 2)
    assert re.search(r"plot_size=3\.3x2\.4 .*2 x 2 .*3\.3x3 ", told)


def test_a_failure_leaves_the_earlier_picture(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    picture.write(drawn("before"), path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="the disk is full"):
        picture.write(drawn("after"), path, own=True)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]


def test_all_mistakes_are_named(tmp_path):
    (tmp_path / "a.svg").mkdir()
    for name in ("a.jpg", ".png"):
        (told,) = said(name)
        assert re.search(rf"^plot .*\.png, \.pdf or \.svg.*'{re.escape(name)}'$", told)
    assert "a.svg exists: move it away" in said(str(tmp_path / "a.svg"))[0]  # a folder
    for size in ("3.3", "3.3,2.4", "3.3x", "-3x2", "3x2x1", "axb"):
        (told,) = said(size=size)
        assert re.search(f"^plot_size .*WIDTHxHEIGHT.*{size!r}$", told)
    for size in ("330x240", "1x1"):
        (told,) = said(size=size)
        assert re.search(f"^plot_size .*2 to 40 .*{size}$", told)
    assert "empty label" in said(labels="a,,b")[0]
    assert "same label twice" in said(labels="a,a")[0]
    assert "plot_title: '$\\\\nothing$' is no formula" in said(title="$\\nothing$")[0]
    assert "plot_labels: '$x^$' is no formula" in said(labels="$x^$,b")[0]
    assert len(said("a.gif", "1", "$x^$", "a,")) == 4
    assert said(size="3.3x2", title="a price of 3 $, $|z|$", labels="a, b;c") == []
    (told,) = said(None, title="a")
    assert told.startswith("plot_title acts with a picture")


def test_what_a_user_chose():
    config = SimpleNamespace(plot="a.png", plot_size="3.3x2", plot_title="T", plot_labels="a, b;c")
    look = picture.look(config)
    assert look == picture.Look((3.3, 2.0), "T", ["a, b", "c"])
    assert look.names(["one", "two"]) == ["a, b", "c"]
    assert picture.PLAIN.names(["a$b", "_c"]) == [r"a\$b", "\u2009_c"]
    assert picture.wrong_labels(look.labels, ["one", "two"]) == []
    (told,) = picture.wrong_labels(look.labels, ["one"])
    assert re.search("^plot_labels .*it has 2 for 1 line: one$", told)
    figure = drawn("T")
    assert figure.get_size_inches().tolist() == [3.3, 2.4]
    assert figure.get_suptitle() == "T"
    assert matplotlib.rcParams["pdf.fonttype"] == 3  # the style ends with the drawing


@pytest.mark.parametrize(
    ("curve", "whole", "high"),
    [
        ([8.0, 3.0, 2.8, 2.7, 2.6], False, 3.0),  # an untrained model
        ([8.0, 3.0, 2.8, 2.7, 2.6], True, 8.0),  # the same fall from given weights
        ([8.0, 3.0, 2.8, 2.6], False, 8.0),  # three points are too few to show alone
        ([8.0, 2.6], False, 8.0),
        ([3.0, 2.73, 2.72, 2.71, 2.7], False, 3.0),  # a tenth is no reason to cut
        ([8.0, 6.0, 4.0, 3.0, 2.6], False, 8.0),  # it falls all the time
        ([float("nan"), 3.0, 2.8, 2.6], False, 3.0),
    ],
)
def test_vertical_limits(curve, whole, high):
    axes = drawn().axes[0]
    picture.focus(axes, [(range(len(curve)), curve, whole)])
    low, top = axes.get_ylim()
    assert high <= top < high + 0.5
    assert low < min(y for y in curve if y == y)


@pytest.mark.parametrize(
    ("bad", "whole", "top"),
    [
        ([8.0, 90.0, 350.0], False, 8.0),
        ([400.0, 380.0, 350.0], False, 8.0),  # above three times the median
        ([5.0, 7.0, 8.5], False, 8.0),  # above its start
        ([5.0, 7.0, 8.5], True, 8.5),  # given weights can become worse
    ],
)
def test_a_diverged_curve_does_not_squeeze_the_others(bad, whole, top):
    axes = drawn().axes[0]
    places = (0, 1, 2)
    picture.focus(
        axes, [(places, [8.0, 4.0, 3.0], False), (places, [8.0, 5.0, 4.0], False), (places, bad, whole)]
    )
    assert top < axes.get_ylim()[1] < top + 0.5
    picture.focus(axes, [(places, bad, whole)])  # alone, it is shown
    assert axes.get_ylim()[1] > max(bad)


def test_no_finite_loss_at_all():
    axes = drawn().axes[0]
    picture.focus(axes, [([0], [float("nan")], False)])
    assert axes.get_ylim()[0] < axes.get_ylim()[1]


@pytest.mark.parametrize(
    ("what", "end", "expected"),
    [
        ("tokens", 81_920, (1e3, "thousand tokens")),
        ("tokens", 6.1e6, (1e6, "million tokens")),
        ("tokens", 9e9, (1e9, "billion tokens")),
        ("seconds", 100, (1, "seconds of training, without evaluations")),
        ("seconds", 7000, (60, "minutes of training, without evaluations")),
        ("seconds", 7200, (3600, "hours of training, without evaluations")),
        ("flops", 3.4e15, (1e15, r"training model FLOPs ($\times 10^{15}$)")),
        ("steps", 10, (1, "steps")),
    ],
)
def test_units(what, end, expected):
    assert picture.unit(what, end) == expected


def test_lines_differ_beyond_their_colour():
    styles = [tuple(picture.line_style(number).values()) for number in range(28)]
    assert len(set(styles)) == 28
    assert len({(style[0], style[2]) for style in styles}) == 28  # short lines show no dashes
    assert len(set(picture.COLOURS)) == len(set(picture.MARKERS)) == 7


@pytest.mark.parametrize(("size", "count", "below"), [((6, 3.7), 3, False), ((3.3, 2.4), 6, True)])
def test_a_legend_that_would_fill_the_axes_stands_below(size, count, below):
    with picture.drawing():
        figure, ((axes,),) = picture.new(picture.Look(size))
        lines = [axes.plot([0, 1])[0] for _ in range(count)]
        picture.legend(figure, axes, lines, [f"model {n}" for n in range(count)], "seeds")
    assert (axes.get_legend() is None) == below
    (found,) = figure.legends or [axes.get_legend()]
    assert len(found.texts) == count
    assert found.get_title().get_text() == "seeds"
