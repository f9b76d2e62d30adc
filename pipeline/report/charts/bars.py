"""Bars: the ladder, values with their intervals, the waterfall, levels, and bars of parts laid end to end."""

from collections.abc import Collection, Mapping, Sequence

from pipeline.report.charts.bar_rows import Bar, Part, cut_at, rows
from pipeline.report.charts.canvas import ACCENT, BAD, PLAIN, TIED
from pipeline.report.formatting import milliseconds, times
from pipeline.stats.intervals import Estimate, Ratio


def ladder(bars: list[tuple[str, Ratio | None, str]], marks: list[tuple[str, float]], baseline: str) -> str:
    """The ratio of every stage with its interval.

    Args:
        bars: name, ratio (None where it isn't ranked), and "winner", "tie", "not resolved", "" or the status.
        marks: names and ratios to draw as lines down the chart.
        baseline: what the ratios are relative to.
    """
    drawn = [_rung(name, ratio, note) for name, ratio, note in bars]
    bounded = ", with 95 % intervals" if any(ratio and ratio.bounded and ratio.blocks for _, ratio, _ in bars) else ""
    return rows(
        drawn,
        f"The ladder: times as fast as {baseline}",
        unit=f"times as fast as {baseline}{bounded}",
        marks=marks,
        cut=cut_at([bar.end for bar in drawn]),
    )


def _rung(name: str, ratio: Ratio | None, note: str) -> Bar:
    if ratio is None:
        return Bar(name, note=note)
    colour = {"winner": ACCENT, "tie": TIED}.get(note, PLAIN)
    interval = (ratio.low, ratio.high) if ratio.bounded and ratio.blocks else None
    part = Part(0.0, ratio.value, colour, hatched=note == "not resolved")
    return Bar(name, [part], times(ratio), interval, strong=note == "winner")


def bars(values: list[tuple[str, Estimate, str, bool]], labels: tuple[str, str]) -> str:
    """Bars of (name, value with its interval, the value as text, whether it is the best); `labels`: title, x axis."""
    drawn = [
        Bar(name, [Part(0.0, found.value, ACCENT if best else PLAIN)], said, (found.low, found.high), strong=best)
        for name, found, said, best in values
    ]
    return rows(drawn, labels[0], unit=labels[1])


def waterfall(steps: list[tuple[str, float, float]], unit: str, unresolved: Collection[str] = ()) -> str:
    """From the baseline to the winner: (name, seconds before, seconds after) of every rung on the way, in order.

    A step of which the run can't tell the two ends apart is `unresolved`, by its name, and hatched.
    A baseline that takes far longer than all that follow is cut, so that the other steps fill the axis.
    """
    drawn = []
    for name, before, after in steps:
        low, high = sorted((1e3 * before, 1e3 * after))
        whole = before == 0
        colour = PLAIN if whole else ACCENT if after < before else BAD
        change = milliseconds(after) if whole else f"{1e3 * (after - before):+.3g}".replace("-", "−")
        drawn.append(Bar(name, [Part(low, high, colour, hatched=name in unresolved)], change, strong=whole))
    title = "From the baseline to the winner: what each rung took away"
    return rows(drawn, title, unit=unit, cut=cut_at(sorted({1e3 * after for _, _, after in steps})))


def levels(bars: list[tuple[str, float, float]], title: str) -> str:
    """Of every level (name, seconds on the roofline, seconds above it), stacked."""
    legend = {"on the roofline, or with no work on record": PLAIN, "above it: could be saved": ACCENT}
    drawn = [
        Bar(
            name,
            [Part(0.0, 1e3 * floor, PLAIN), Part(1e3 * floor, 1e3 * (floor + above), ACCENT)],
            milliseconds(floor + above),
        )
        for name, floor, above in bars
    ]
    return rows(drawn, title, unit="milliseconds per call, by the profile", legend=legend)


def stacked(
    bars: Sequence[tuple[str, Mapping[str, float]]],
    palette: Mapping[str, str],
    labels: tuple[str, str],
    beside: Sequence[str] | None = None,
) -> str:
    """Bars of parts laid end to end; `palette` has the parts in order with their colours, `labels` title and x axis.

    One that is far longer than all others is cut; its text, those of `beside` or its length, tells it whole.
    """
    used = {part: colour for part, colour in palette.items() if any(amounts.get(part) for _, amounts in bars)}
    drawn = [
        Bar(name, _end_to_end(amounts, used), beside[place] if beside else f"{sum(amounts.values()):.3g}")
        for place, (name, amounts) in enumerate(bars)
    ]
    legend = used if len(palette) > 1 else {}
    return rows(drawn, labels[0], unit=labels[1], legend=legend, cut=cut_at([bar.end for bar in drawn]))


def _end_to_end(amounts: Mapping[str, float], palette: Mapping[str, str]) -> list[Part]:
    parts, at = [], 0.0
    for name, colour in palette.items():
        if amount := amounts.get(name, 0.0):
            parts.append(Part(at, at + amount, colour))
            at += amount
    return parts
