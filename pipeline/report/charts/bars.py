"""Charts as inline SVG that takes its colours from the page, so that they follow it into the dark and onto paper."""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from pipeline.report import formatting as words
from pipeline.stats.intervals import Estimate, Ratio

# matplotlib wants colours; these stand for what the page's style sheet says.
INK, QUIET, GRID, PAPER = "#010101", "#020202", "#030303", "#080808"
ACCENT, TIED, PLAIN, BAD = "#040404", "#050505", "#060606", "#070707"
CLASSES = {
    "convolution": "#0a0a01", "matmul": "#0a0a02", "pointwise": "#0a0a03", "normalisation": "#0a0a04",
    "layout change": "#0a0a05", "copy": "#0a0a06", "pool": "#0a0a07", "other": "#0a0a08",
}  # fmt: skip
VARIABLES = {
    INK: "var(--ink)", QUIET: "var(--quiet)", GRID: "var(--line)", PAPER: "var(--paper)", ACCENT: "var(--accent)",
    TIED: "var(--tied)", PLAIN: "var(--bar)", BAD: "var(--bad)",
    **{colour: f"var(--k{n})" for n, colour in enumerate(CLASSES.values())},
}  # fmt: skip
INCH_PER_BAR = 0.34
LETTER_POINTS = 5.5  # wide at 8 points, generously
BLANK = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}  # behind a word that a line would cross
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "ladder", "text.parse_math": False, "font.size": 9, "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": QUIET, "xtick.color": QUIET, "ytick.color": INK, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID,
    "grid.linewidth": 0.6, "xtick.major.size": 0, "ytick.major.size": 0, "font.family": "DejaVu Sans",
}  # fmt: skip


@contextmanager
def canvas(height: float, width: float = 7.6) -> Iterator[tuple[Any, Any]]:
    """A figure in the page's style, and its axes; Agg's canvas needs no display and no pyplot state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def finished(figure: Any, title: str) -> str:
    """The figure as an element for an HTML page: no addresses, no metadata, its title in front."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version|id)="(http[^"]*|1\.1|[a-zA-Z]\w*_\d+)"', "", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    head, rest = text.split(">", 1)
    return f'{head} role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{rest}'


def ladder(bars: list[tuple[str, Ratio | None, str]], marks: list[tuple[str, float]], baseline: str) -> str:
    """The ratio of every stage with its interval.

    Args:
        bars: name, ratio (None where it isn't ranked), and "winner", "tie", "" or the status.
        marks: names and ratios to draw as lines across: the baselines.
        baseline: what the ratios are relative to.
    """
    with canvas(0.8 + INCH_PER_BAR * len(bars)) as (figure, axes):
        widest = max((ratio.high if ratio.bounded else ratio.value for _, ratio, _ in bars if ratio), default=1.0)
        for place, (_, ratio, note) in enumerate(bars):
            if ratio is None:
                colour = QUIET if note == "skipped" else BAD
                axes.text(0.01 * widest, place, note, va="center", color=colour, bbox=BLANK)
                continue
            colour = {"winner": ACCENT, "tie": TIED}.get(note, PLAIN)
            end = ratio.high if ratio.bounded else ratio.value
            axes.barh(place, ratio.value, color=colour, height=0.62)
            if ratio.bounded:
                spread = [[max(0, ratio.value - ratio.low)], [max(0, ratio.high - ratio.value)]]
                axes.errorbar(ratio.value, place, xerr=spread, color=INK, capsize=3, linewidth=1)
            axes.text(end + 0.015 * widest, place, words.times(ratio), va="center", color=INK)
        for name, value in marks:
            axes.axvline(value, color=QUIET, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0.6)
            axes.text(value, -0.75, name, color=QUIET, ha="center", va="bottom", fontsize=8)
        axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.8)
        axes.set_xlim(0, 1.12 * widest)
        axes.set_xlabel(f"times as fast as {baseline}, with 95 % intervals")
        axes.grid(axis="x")
        return finished(figure, f"The ladder: times as fast as {baseline}")


def bars(values: list[tuple[str, Estimate, str, bool]], labels: tuple[str, str]) -> str:
    """Bars of (name, value with its interval, the value in words, whether it is the best); `labels`: title, x axis."""
    with canvas(0.8 + INCH_PER_BAR * len(values)) as (figure, axes):
        widest = max(found.high for _, found, _, _ in values)
        for place, (_, found, said, best) in enumerate(values):
            axes.barh(place, found.value, color=ACCENT if best else PLAIN, height=0.62)
            spread = [[max(0, found.value - found.low)], [max(0, found.high - found.value)]]
            axes.errorbar(found.value, place, xerr=spread, color=INK, capsize=3, linewidth=1)
            axes.text(found.high + 0.015 * widest, place, said, va="center", color=INK)
        axes.set_yticks(range(len(values)), [name for name, _, _, _ in values])
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.set_xlim(0, 1.16 * widest)
        axes.set_xlabel(labels[1])
        axes.grid(axis="x")
        return finished(figure, labels[0])


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


def _name_points(figure: Any, axes: Any, points: list[tuple[str, float, float]]) -> None:
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


def waterfall(steps: list[tuple[str, float, float]], unit: str) -> str:
    """From the baseline to the winner: (name, seconds before, seconds after) of every rung on the way, in order."""
    with canvas(0.9 + INCH_PER_BAR * len(steps)) as (figure, axes):
        widest = max((max(before, after) for _, before, after in steps), default=1.0) * 1e3
        for place, (_, before, after) in enumerate(steps):
            low, high = sorted((1e3 * before, 1e3 * after))
            whole = before == 0
            colour = PLAIN if whole else ACCENT if after < before else BAD
            axes.barh(place, high - low, left=low, color=colour, height=0.62)
            change = words.milliseconds(after) if whole else f"{1e3 * (after - before):+.3g}"
            axes.text(high + 0.012 * widest, place, change.replace("-", "−"), va="center")
        axes.set_yticks(range(len(steps)), [name for name, _, _ in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(0, 1.12 * widest)
        axes.set_xlabel(unit)
        axes.grid(axis="x")
        return finished(figure, "From the baseline to the winner: what each rung took away")


def _log_ticks(values: list[float]) -> list[float]:
    """Round figures around positive values: powers of two; over less than two octaves, four steps to each."""
    low, high = min(values), max(values)
    steps = (1.0,) if high >= 4 * low else (1.0, 1.25, 1.5, 1.75)
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ticks = [2.0**power * step for power in powers for step in steps]
    before = max((tick for tick in ticks if tick <= low), default=ticks[0])
    after = min((tick for tick in ticks if tick >= high and tick > before), default=2 * before)
    return [*(tick for tick in ticks if before <= tick < after), after]


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
        axes.set_yticks(_log_ticks([y for points in series.values() for _, y in points]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_xlabel(labels[1])
        axes.set_ylabel(labels[2])
        axes.tick_params(axis="y", colors=QUIET)
        axes.grid()
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
        return finished(figure, labels[0])


def roofline(
    layers: list[tuple[str, float, float]],
    levels: list[tuple[str, float, float]],
    ceilings: list[tuple[str, float, float]],
    title: str,
) -> str:
    """Points of (name, FLOP per byte, FLOP/s) under ceilings of (name, FLOP/s, bytes/s); both axes logarithmic.

    The first ceiling is a line, the others are dashed. The levels are larger than the layers, and numbered.
    """
    with canvas(4.8) as (figure, axes):
        points = [*layers, *levels]
        low = min(x for _, x, _ in points) / 2
        high = 2 * max([x for _, x, _ in points] + [rate / width for _, rate, width in ceilings])
        for place, (name, rate, width) in enumerate(ceilings):
            corners = [low, rate / width, high]
            heights = [min(rate, x * width) / 1e12 for x in corners]
            dashes = "-" if place == 0 else (0, (4, 3))
            label = f"{name}: {words.significant(rate / 1e12)} TFLOP/s, {words.significant(width / 1e12)} TB/s"
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


def levels(bars: list[tuple[str, float, float]], title: str) -> str:
    """Of every level (name, seconds at the roof, seconds above it), stacked."""
    with canvas(1.1 + INCH_PER_BAR * len(bars)) as (figure, axes):
        places, floors = range(len(bars)), [1e3 * floor for _, floor, _ in bars]
        axes.barh(places, floors, color=PLAIN, height=0.62, label="at the roof, or with no work on record")
        axes.barh(
            places, [1e3 * above for *_, above in bars], left=floors, color=ACCENT, height=0.62, label="could be won"
        )
        axes.set_yticks(places, [name for name, _, _ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlabel("milliseconds per call, by the profile")
        axes.grid(axis="x")
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
        return finished(figure, title)
