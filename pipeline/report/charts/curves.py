"""Lines over batch or size, and an amount through one call."""

import math

from pipeline.report.charts.canvas import ACCENT, CLASSES, HALF_INCHES, INK, PLAIN, QUIET, SMALL, canvas, finished


def lines(
    series: dict[str, list[tuple[float, float]]], marked: dict[str, tuple[float, float]], labels: tuple[str, str, str]
) -> str:
    """Lines over batch or size, both axes by powers of two; `marked` are the knees, `labels` title, x and y axis."""
    with canvas(3.6) as (figure, axes):
        palette = list(CLASSES.values())
        for index, (name, points) in enumerate(series.items()):
            colour = palette[index % (len(palette) - 1)]
            axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1.5, label=name)
            if name in marked:
                axes.plot(*marked[name], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = sorted({x for points in series.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_yticks(log_ticks([y for points in series.values() for _, y in points]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel(labels[1])
        axes.set_ylabel(labels[2])
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        figure.legend(loc="outside right upper", frameon=False, fontsize=SMALL)
        return finished(figure, labels[0])


def log_ticks(values: list[float]) -> list[float]:
    """Round figures around positive values: powers of two; over less than two octaves, four steps to each."""
    low, high = min(values), max(values)
    steps = (1.0,) if high >= 4 * low else (1.0, 1.25, 1.5, 1.75)
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ticks = [2.0**power * step for power in powers for step in steps]
    before = max((tick for tick in ticks if tick <= low), default=ticks[0])
    after = min((tick for tick in ticks if tick >= high and tick > before), default=2 * before)
    return [*(tick for tick in ticks if before <= tick < after), after]


def timeline(seconds: list[float], amounts: list[float], labels: tuple[str, str, str], peak: str) -> str:
    """The most that was held up to each moment of a call; `labels`: title and axes, `peak`: the text at the peak.

    Half as wide as the page, where it stands beside others.
    """
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
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel(labels[1])
        axes.set_ylabel(labels[2])
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        return finished(figure, labels[0])
