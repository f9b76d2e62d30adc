"""Bars: the ladder, values with their intervals, the waterfall, levels."""

from pipeline.report.charts.canvas import ACCENT, BAD, BLANK, INCH_PER_BAR, INK, PLAIN, QUIET, TIED, canvas, finished
from pipeline.report.formatting import milliseconds, times
from pipeline.stats.intervals import Estimate, Ratio


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
            axes.text(end + 0.015 * widest, place, times(ratio), va="center", color=INK)
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
    """Bars of (name, value with its interval, the value as text, whether it is the best); `labels`: title, x axis."""
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


def waterfall(steps: list[tuple[str, float, float]], unit: str) -> str:
    """From the baseline to the winner: (name, seconds before, seconds after) of every rung on the way, in order."""
    with canvas(0.9 + INCH_PER_BAR * len(steps)) as (figure, axes):
        widest = max((max(before, after) for _, before, after in steps), default=1.0) * 1e3
        for place, (_, before, after) in enumerate(steps):
            low, high = sorted((1e3 * before, 1e3 * after))
            whole = before == 0
            colour = PLAIN if whole else ACCENT if after < before else BAD
            axes.barh(place, high - low, left=low, color=colour, height=0.62)
            change = milliseconds(after) if whole else f"{1e3 * (after - before):+.3g}"
            axes.text(high + 0.012 * widest, place, change.replace("-", "−"), va="center")
        axes.set_yticks(range(len(steps)), [name for name, _, _ in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(0, 1.12 * widest)
        axes.set_xlabel(unit)
        axes.grid(axis="x")
        return finished(figure, "From the baseline to the winner: what each rung took away")


def levels(bars: list[tuple[str, float, float]], title: str) -> str:
    """Of every level (name, seconds on the roofline, seconds above it), stacked."""
    with canvas(1.1 + INCH_PER_BAR * len(bars)) as (figure, axes):
        places, floors = range(len(bars)), [1e3 * floor for _, floor, _ in bars]
        axes.barh(places, floors, color=PLAIN, height=0.62, label="on the roofline, or with no work on record")
        axes.barh(
            places, [1e3 * above for *_, above in bars], left=floors, color=ACCENT, height=0.62, label="could be saved"
        )
        axes.set_yticks(places, [name for name, _, _ in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlabel("milliseconds per call, by the profile")
        axes.grid(axis="x")
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
        return finished(figure, title)
