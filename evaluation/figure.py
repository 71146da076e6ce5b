"""The pictures of evaluate.py: length extrapolation and recall."""

import numpy as np

from reports import picture

OWN_TOKENS = "loss (nats per own token:\ntokenizers differ)"


def panels(look: picture.Look) -> tuple[int, int]:
    """(rows, columns) of panels of the picture of extrapolation."""
    return (1, 2) if look.size is None or look.size[0] >= picture.NARROW else (2, 1)


@picture.drawing()
def extrapolation(
    results: dict[str, dict], look: picture.Look = picture.PLAIN, tokenizers: str | None = None
):
    """A figure of {model: result of `extrapolation.extrapolate`}: the average loss against the length of
    the window, and the loss by position in the longest window. tokenizers: those of the models if they
    differ, so that only the lengths of one model can be compared.

    Grey lines: training lengths. Crosses at the top: lengths that a model cannot see.
    """
    figure, grid = picture.new(look, *panels(look), (7.0, 3.0))
    average, position = grid.flat
    handles, crossed = [], 0
    cross = {"marker": "x", "ms": 5, "mew": 1.5, "ls": ""}
    for number, result in enumerate(results.values()):
        lengths, train, style = result["lengths"], result["train_length"], picture.line_style(number)
        (handle,) = average.plot([r["length"] for r in lengths], [r["loss"] for r in lengths], **style)
        handles.append(handle)
        if refused := [int(factor) * train for factor in result["refused"]]:
            height, place = 0.97 - 0.06 * crossed, average.get_xaxis_transform()
            average.plot(
                refused,
                [height] * len(refused),
                color=style["color"],
                transform=place,
                clip_on=False,
                **cross,
            )
            crossed += 1
        longest = lengths[-1]
        # averaged over a training length, because single positions of few windows are noise
        parts = np.array_split(np.array(longest["by_position"]), longest["factor"])
        places = (np.arange(len(parts)) + 0.5) * train
        position.plot(places, [part.mean() for part in parts], **style)
    for axes in (average, position):
        for end in {result["train_length"] for result in results.values()}:
            axes.axvline(end, color="0.6", lw=1, zorder=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,g}")
        axes.set_ylabel("loss (nats per token)" if tokenizers is None else OWN_TOKENS)
    average.set_xlabel("tokens in the window")
    position.set_xlabel("position in the longest window\n(averages over a training length)")
    low, high = average.get_ylim()
    average.set_ylim(low, high + 0.08 * crossed * (high - low))  # room for the crosses
    shown = look.names(list(results))
    handles.append(average.plot([], [], color="0.6", lw=1)[0])
    shown.append("training length")
    if crossed:
        handles.append(average.plot([], [], color="0.4", **cross)[0])
        shown.append("cannot see this length")
    picture.legend(figure, average, handles, shown, most=0)
    return figure


@picture.drawing()
def recall(results: dict[str, dict], look: picture.Look = picture.PLAIN):
    """A figure of {model: result of `recall.recall`}: the loss by the length of the repeat that a token
    ends. Below each length stands its share of the tokens.
    """
    figure, ((axes,),) = picture.new(look, size=(5.0, 3.2))
    first = next(iter(results.values()))
    handles = []
    for number, result in enumerate(results.values()):
        points = [(r["length"], r["loss"]) for r in result["repeats"] if r["loss"] is not None]
        handles.append(axes.plot(*zip(*points, strict=True), **picture.line_style(number))[0])
    lengths = [r["length"] for r in first["repeats"]]
    texts = ["new", *map(str, lengths[1:-1]), f"{lengths[-1]}+"]
    shares = [
        f"{text}\n{_share(r['tokens'] / first['tokens'])}"
        for text, r in zip(texts, first["repeats"], strict=True)
    ]
    axes.set_xticks(lengths, shares)
    axes.set_xlabel("length of the repeat that a token ends,\nand share of the tokens")
    axes.set_ylabel("loss (nats per token)")
    picture.legend(figure, axes, handles, look.names(list(results)), most=3)
    return figure


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"
