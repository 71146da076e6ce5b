"""A roofline: what each kernel achieves, below the limits of memory and arithmetic that were measured."""

from reports import picture

MARKERS = {"naive": "X", "torch": "o", "triton": "^", "SDPA": "s"}
COLOURS = (*picture.COLOURS, "0.6", "#7A4B1E")
ROOFS = ("matrix product, bfloat16", "matrix product, tf32", "matrix product, float32")


@picture.drawing()
def roofline(lines: list[dict]):
    """A figure of all kernels that are right; None without kernels or without the bandwidth of a copy."""
    right = [line for line in lines if "error" not in line]
    limits = {line["item"]: line for line in right if line["stage"] == "ceilings"}
    kernels = [line for line in right if line["stage"] == "kernels" and line["same_function"]]
    if not kernels or "copy" not in limits:
        return None
    figure, ((axes,),) = picture.new(picture.PLAIN, size=(7.0, 4.0))
    intensities = [line["flops"] / line["bytes"] for line in kernels]
    bandwidth = limits["copy"]["bytes_per_second"]
    roofs = {name: limits[name]["flops_per_second"] for name in ROOFS if name in limits}
    low, high = min(intensities) / 3, max(*intensities, *(roof / bandwidth for roof in roofs.values())) * 3
    top = max(roofs.values(), default=bandwidth * high)
    axes.plot([low, top / bandwidth], [low * bandwidth, top], color="black", lw=1)
    words = {"textcoords": "offset points", "fontsize": 7}
    middle = (low * top / bandwidth) ** 0.5
    place = (middle, middle * bandwidth)
    axes.annotate(f"copy, {bandwidth / 1e9:,.0f} GB/s", place, (-6, 2), ha="right", **words)
    for name, roof in roofs.items():
        axes.plot([roof / bandwidth, high], [roof, roof], color="black", lw=1)
        label = f"{name.removeprefix('matrix product, ')}, {roof / 1e12:,.3g} TFLOP/s"
        axes.annotate(label, (high, roof), (-2, 3), ha="right", **words)
    tasks = list(dict.fromkeys(line["task"] for line in kernels))
    for line, intensity in zip(kernels, intensities, strict=True):
        implementation, _, kind = line["item"].rpartition(", ")
        marker = next((MARKERS[word] for word in MARKERS if word in implementation), "D")
        colour = COLOURS[tasks.index(line["task"]) % len(COLOURS)]
        face = colour if kind == "compiled" else "none"
        rate = line["flops"] / line["seconds"]
        axes.plot(intensity, rate, marker, color=colour, markerfacecolor=face, ms=5)
    for number, task in enumerate(tasks):
        axes.plot([], [], "o", color=COLOURS[number % len(COLOURS)], label=task)
    for word, marker in {**MARKERS, "other": "D"}.items():
        axes.plot([], [], marker, color="grey", markerfacecolor="none", label=word)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("model FLOPs per byte of least traffic")
    axes.set_ylabel("model FLOP/s")
    figure.legend(loc="outside right upper", title="filled: compiled")
    return figure
