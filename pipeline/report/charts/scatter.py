"""Points: what costs what, and the roofline."""

from pipeline.report.charts.canvas import ACCENT, PLAIN, QUIET, SMALL, TIED, canvas, finished
from pipeline.report.charts.labels import name_points
from pipeline.report.formatting import significant


def front(points: list[tuple[str, float, float, str]], labels: tuple[str, str, str], log: bool) -> str:
    """Points of (name, x, y, place) with their names beside them; `labels` are the title, the x and the y axis."""
    with canvas(3.4) as (figure, axes):
        for _, x, y, place in points:
            colour = {"winner": ACCENT, "tie": TIED}.get(place, PLAIN)
            axes.plot([x], [y], "o", color=colour, markersize=7)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.minorticks_off()
        else:
            axes.set_ylim(0, 1.15 * max((y for _, _, y, _ in points), default=1.0))
        axes.set_xlim(0, 1.15 * max((x for _, x, _, _ in points), default=1.0))
        axes.set_xlabel(labels[1])
        axes.set_ylabel(labels[2])
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        name_points(figure, axes, [(name, x, y) for name, x, y, _ in points])
        return finished(figure, labels[0])


def roofline(
    layers: list[tuple[str, float, float]],
    levels: list[tuple[str, float, float]],
    rooflines: list[tuple[str, float, float]],
    title: str,
) -> str:
    """Points of (name, FLOP per byte, FLOP/s) under rooflines of (name, FLOP/s, bytes/s); both axes logarithmic.

    The first roofline is solid, the others are dashed. The levels are larger than the layers, and named.
    """
    with canvas(4.8) as (figure, axes):
        points = [*layers, *levels]
        low = min(x for _, x, _ in points) / 2
        high = 2 * max([x for _, x, _ in points] + [rate / width for _, rate, width in rooflines])
        for place, (name, rate, width) in enumerate(rooflines):
            corners = [low, rate / width, high]
            heights = [min(rate, x * width) / 1e12 for x in corners]
            dashes = "-" if place == 0 else (0, (4, 3))
            label = f"{name}: {significant(rate / 1e12)} TFLOP/s, {significant(width / 1e12)} TB/s"
            axes.plot(corners, heights, color=QUIET, linewidth=1.4 - 0.5 * place, linestyle=dashes, label=label)
        axes.plot([x for _, x, _ in layers], [y / 1e12 for _, _, y in layers], "o", color=PLAIN, markersize=4.5)
        axes.plot([x for _, x, _ in levels], [y / 1e12 for _, _, y in levels], "o", color=ACCENT, markersize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel("FLOP per byte that must be moved")
        axes.set_ylabel("TFLOP/s")
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=SMALL)
        name_points(figure, axes, [(name, x, y / 1e12) for name, x, y in levels])
        return finished(figure, title)
