"""Points: what costs what, and the roofline."""

from typing import TYPE_CHECKING

from pipeline.report.charts.canvas import ACCENT, INK, LETTER_POINTS, PAPER, PLAIN, QUIET, TIED, canvas, finished
from pipeline.report.formatting import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def front(points: list[tuple[str, float, float, str]], labels: tuple[str, str, str], log: bool) -> str:
    """Points of (name, x, y, place) with their names beside them; `labels` are the title, the x and the y axis."""
    with canvas(3.4) as (figure, axes):
        for _, x, y, place in points:
            colour = {"winner": ACCENT, "tie": TIED}.get(place, PLAIN)
            axes.plot([x], [y], "o", color=colour, markersize=7)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}" if min(y for _, _, y, _ in points) >= 1 else "{x:.0e}")
            axes.minorticks_off()
        else:
            axes.set_ylim(0, 1.15 * max((y for _, _, y, _ in points), default=1.0))
        axes.set_xlim(0, 1.15 * max((x for _, x, _, _ in points), default=1.0))
        axes.set_xlabel(labels[1])
        axes.set_ylabel(labels[2])
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        _name_points(figure, axes, [(name, x, y) for name, x, y, _ in points])
        return finished(figure, labels[0])


def _name_points(figure: "Figure", axes: "Axes", points: list[tuple[str, float, float]]) -> None:
    """A name beside every point, moved up or down until it covers no other name."""
    figure.draw_without_rendering()  # only then do data have places
    places = {name: axes.transData.transform((x, y)) * 72 / figure.dpi for name, x, y in points}
    # Left, right and height of what is there already, in points of 1/72 inch.
    taken = [(across - 5, across + 5, height - 3) for across, height in places.values()]
    for name, x, y in sorted(points, key=lambda point: -point[2]):
        left, height = places[name] + (7, 0)
        right = left + LETTER_POINTS * len(name)
        for away in (4, -10, 16, -21, 27, -32, 38, -43):
            if all(abs(height + away - h) > 10 or right < a or left > b for a, b, h in taken):
                break
        taken.append((left, right, height + away))
        axes.annotate(name, (x, y), xytext=(7, away - 1), textcoords="offset points", color=INK, fontsize=8)


def roofline(
    layers: list[tuple[str, float, float]],
    levels: list[tuple[str, float, float]],
    rooflines: list[tuple[str, float, float]],
    title: str,
) -> str:
    """Points of (name, FLOP per byte, FLOP/s) under rooflines of (name, FLOP/s, bytes/s); both axes logarithmic.

    The first roofline is solid, the others are dashed. The levels are larger than the layers, and numbered.
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
        axes.plot([x for _, x, _ in layers], [y / 1e12 for _, _, y in layers], "o", color=PLAIN, markersize=4)
        for number, (_, x, y) in enumerate(levels, 1):
            axes.plot([x], [y / 1e12], "o", color=ACCENT, markersize=10, alpha=0.85)
            axes.annotate(str(number), (x, y / 1e12), color=PAPER, ha="center", va="center", fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel("FLOP per byte that must be moved")
        axes.set_ylabel("TFLOP/s")
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
        names = [axes.plot([], [], " ", label=f"{place} {name}")[0] for place, (name, *_) in enumerate(levels, 1)]
        figure.legend(handles=names, loc="outside right upper", handlelength=0, frameon=False, fontsize=8)
        return finished(figure, title)
