"""Charts by matplotlib: lines over batch or size, an amount through one call, and points with names."""

import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING

from pipeline.report.charts import ACCENT, CLASSES, GRID, INK, PLAIN, QUIET, TIED, VARIABLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 64 * 16 / 96  # 64rem, four fifths of what the page shows a chart in
HALF_INCHES = 34 * 16 / 96  # 34rem, of which the page shows two side by side
SMALL = 9  # points: 12 px
LINE_INCHES = 0.19  # high, of a column of names
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "ladder", "text.parse_math": False, "font.size": 10, "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": QUIET, "xtick.color": QUIET, "ytick.color": INK, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID,
    "grid.linewidth": 0.6, "xtick.major.size": 0, "ytick.major.size": 0, "font.family": "DejaVu Sans",
}  # fmt: skip
Point = tuple[str, float, float]  # name, and where it is


@contextmanager
def canvas(height: float, width: float = WIDTH_INCHES) -> Iterator[tuple["Figure", "Axes"]]:
    """Open a figure in the page's style, and its axes; Agg's canvas needs no display and no pyplot state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def finished(figure: "Figure", title: str) -> str:
    """Return the figure as an element of a page: no addresses, no metadata, its title in front, ids of its own."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version|id)="(http[^"]*|1\.1|[a-zA-Z][\w.]*_\d+)"', "", text)
    own = f"c{zlib.crc32(title.encode()):08x}-"
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    head, rest = text.split(">", 1)
    return f'{head} role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{rest}'


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(axis="y", colors=QUIET)
    axes.grid()


def lines(
    series: dict[str, list[tuple[float, float]]], marked: dict[str, tuple[float, float]], labels: tuple[str, str, str],
    ticks: dict[float, str] | None = None,
) -> str:  # fmt: skip
    """Draw lines over batch, size or number of samples; `marked` points get a ring, `labels` are title, x and y.

    `ticks` are the texts below the x axis; without them each point has a dot, and its x.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    with canvas(max(3.6, LINE_INCHES * len(series))) as (figure, axes):
        palette = list(CLASSES.values())
        colours = {name: palette[index % (len(palette) - 1)] for index, name in enumerate(series)}
        for (name, points), colour in zip(series.items(), colours.values(), strict=True):
            axes.plot(*zip(*points, strict=True), "-" if ticks else "o-", color=colour, markersize=4, linewidth=1.5)
            if name in marked:
                axes.plot(*marked[name], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour)
        base = 10 if ticks else 2
        axes.set_xscale("log", base=base)
        axes.set_yscale("log", base=base)
        shown = ticks or {x: f"{x:g}" for points in series.values() for x, _ in points}
        axes.set_xticks([*shown], [*shown.values()])
        heights = [y for points in series.values() for _, y in points]
        narrow = max(heights) < 4 * min(heights)  # two octaves, in which powers of two are few
        axes.yaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(base=base, numticks=30))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        _label(axes, *labels[1:])
        name_points(axes, [(name, *points[-1]) for name, points in series.items()], colours)
        return finished(figure, labels[0])


def timeline(seconds: list[float], amounts: list[float], labels: tuple[str, str, str], peak: str) -> str:
    """Draw the most that was held up to each moment of a call; `labels`: title and axes, `peak`: text at the peak."""
    with canvas(2.4, HALF_INCHES) as (figure, axes):
        moments = [1e3 * moment for moment in seconds]
        axes.fill_between(moments, amounts, color=PLAIN, linewidth=0, step="pre")
        at = max(range(len(amounts)), key=amounts.__getitem__)
        axes.plot([moments[at]], [amounts[at]], "o", color=ACCENT, markersize=6)
        late = moments[at] > sum(axes.get_xlim()) / 2
        axes.annotate(
            peak, (moments[at], amounts[at]), xytext=(-8 if late else 8, 0), textcoords="offset points",
            ha="right" if late else "left", va="bottom", color=INK, fontsize=SMALL,
        )  # fmt: skip
        axes.set_ylim(0, 1.2 * max(amounts))
        axes.yaxis.set_major_formatter("{x:g}")
        _label(axes, *labels[1:])
        return finished(figure, labels[0])


def front(points: Sequence[tuple[str, float, float, str]], labels: tuple[str, str, str], log: bool) -> str:
    """Draw points of (name, x, y, place) with their names beside them; `labels` are the title, the x and the y axis."""
    from matplotlib.ticker import LogLocator

    with canvas(max(3.4, LINE_INCHES * len(points))) as (figure, axes):
        for _, x, y, place in points:
            axes.plot([x], [y], "o", color={"winner": ACCENT, "tie": TIED}.get(place, PLAIN), markersize=7)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.minorticks_off()
        else:
            axes.set_ylim(0, 1.15 * max((y for _, _, y, _ in points), default=0.0) or 1.0)
        axes.set_xlim(0, 1.15 * max((x for _, x, _, _ in points), default=1.0))
        _label(axes, *labels[1:])
        name_points(axes, [(name, x, y) for name, x, y, _ in points])
        return finished(figure, labels[0])


def name_points(axes: "Axes", points: list[Point], colours: Mapping[str, str] = {}) -> None:
    """Write the names in a column at the right, in the order of the dots' heights, each with a line to its dot."""
    lead = {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 2, "shrinkB": 4, "relpos": (0, 0.5)}
    for place, (name, x, y) in enumerate(sorted(points, key=lambda point: point[2])):
        beside = (1.02, (place + 0.5) / len(points))
        axes.annotate(
            name, (x, y), xytext=beside, textcoords="axes fraction", va="center", color=INK, fontsize=SMALL,
            arrowprops={**lead, "color": colours.get(name, GRID)},
        )  # fmt: skip
