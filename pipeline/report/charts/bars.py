"""Bar charts in HTML, with the page's font and colours, as wide as the window, so that a phone shows them whole.

A screen reader announces a chart as one image; its table has the same figures.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.charts import ACCENT, BAD, PLAIN, TIED, VARIABLES
from pipeline.report.formatting import clean, milliseconds, templates, times
from pipeline.stats.intervals import Estimate, Ratio

CUT_BEYOND, CUT_LENGTH = 4.0, 1.5  # a bar 4 times as long as the next is cut at 1.5 times the next one's length


@dataclass(frozen=True)
class Part:
    """A stretch of a bar, in the unit of the axis."""

    start: float
    end: float
    colour: str  # a placeholder of `charts`
    hatched: bool = False  # not resolved: it mustn't look like a result


@dataclass(frozen=True)
class Bar:
    """A name, its stretches, and the text beside them."""

    name: str  # at the left
    parts: Sequence[Part] = ()  # stretches, laid on the axis
    text: str = ""  # at the right: the bar's own figure
    interval: tuple[float, float] | None = None  # drawn across the bar's end
    note: str = ""  # in place of a bar
    strong: bool = False  # the name and the text stand out

    @property
    def end(self) -> float:
        """The end of its last stretch, or of its interval."""
        return max([part.end for part in self.parts] + ([self.interval[1]] if self.interval else []), default=0.0)


def rows(
    bars: Sequence[Bar], title: str, *, unit: str = "", legend: Mapping[str, str] | None = None,
    marks: Sequence[tuple[str, float]] = (), cut: float | None = None,
) -> str:  # fmt: skip
    """Draw bars from 0, lines down the chart at the `marks`; the axis ends at `cut` where some bars go on."""
    whole = cut or max([bar.end for bar in bars] + [value for _, value in marks], default=0.0) or 1.0
    said = [clean(unit)] if unit else []
    said += [f"the line marks {clean(name)}" for name, _ in marks]
    said += ["▸ a bar is cut here"] if any(bar.end > 1.0001 * whole for bar in bars) else []
    template = templates(of_pages=True).get_template("bars.html.j2")
    shown = {"bars": bars, "title": title, "legend": legend, "marks": marks, "whole": whole, "said": said}
    return template.render(shown, variables=VARIABLES)


def cut_at(lengths: Sequence[float]) -> float | None:
    """Return where to cut the axis so that one bar far longer than all others leaves them room; None for nowhere."""
    *_, second, longest = sorted([0.0, 0.0, *lengths])
    return CUT_LENGTH * second if second and longest > CUT_BEYOND * second else None


def ladder(bars: list[tuple[str, Ratio | None, str]], baseline: str) -> str:
    """Draw the ratio of every stage with its interval, or its status where it has none; a line at the baseline."""
    drawn = []
    for name, ratio, note in bars:
        if ratio is None:
            drawn.append(Bar(name, note=note))
            continue
        colour = {"winner": ACCENT, "tie": TIED}.get(note, PLAIN)
        interval = (ratio.low, ratio.high) if ratio.bounded and ratio.blocks else None
        part = Part(0.0, ratio.value, colour, hatched=note == "not resolved")
        drawn.append(Bar(name, [part], times(ratio), interval, strong=note == "winner"))
    bounded = ", with 95 % intervals" if any(ratio and ratio.bounded and ratio.blocks for _, ratio, _ in bars) else ""
    fast = f"times as fast as {baseline}"
    cut = cut_at([bar.end for bar in drawn])
    return rows(drawn, f"The ladder: {fast}", unit=f"{fast}{bounded}", marks=[(baseline, 1.0)], cut=cut)


def bars(values: list[tuple[str, Estimate, str, bool]], labels: tuple[str, str]) -> str:
    """Draw (name, value with its interval, the value as text, whether it is the best); `labels`: title, x axis."""
    drawn = [
        Bar(name, [Part(0.0, found.value, ACCENT if best else PLAIN)], said, (found.low, found.high), strong=best)
        for name, found, said, best in values
    ]
    return rows(drawn, labels[0], unit=labels[1])


def waterfall(steps: list[tuple[str, float, float]], unit: str, unresolved: Collection[str] = ()) -> str:
    """Draw (name, seconds before, seconds after) of every step; steps whose names are `unresolved` are hatched."""
    drawn = []
    for name, before, after in steps:
        low, high = sorted((1e3 * before, 1e3 * after))
        whole = before == 0
        colour = PLAIN if whole else ACCENT if after < before else BAD
        change = milliseconds(after) if whole else f"{1e3 * (after - before):+.3g}".replace("-", "−")
        drawn.append(Bar(name, [Part(low, high, colour, hatched=name in unresolved)], change, strong=whole))
    title = f"From {steps[0][0]} to the winner: what each step took away"
    return rows(drawn, title, unit=unit, cut=cut_at(sorted({1e3 * after for _, _, after in steps})))


def stacked(
    bars: Sequence[tuple[str, Mapping[str, float]]], palette: Mapping[str, str], labels: tuple[str, str],
    beside: Sequence[str] | None = None, axis: float | None = None,
) -> str:  # fmt: skip
    """Draw bars of parts laid end to end; `palette` orders and colours the parts, `labels` are title and axis."""
    used = {part: colour for part, colour in palette.items() if any(amounts.get(part) for _, amounts in bars)}
    drawn = []
    for place, (name, amounts) in enumerate(bars):
        parts, at = [], 0.0
        for part, colour in used.items():
            if amount := amounts.get(part, 0.0):
                parts.append(Part(at, at + amount, colour))
                at += amount
        drawn.append(Bar(name, parts, beside[place] if beside else f"{sum(amounts.values()):.3g}"))
    legend = used if len(palette) > 1 else {}
    return rows(drawn, labels[0], unit=labels[1], legend=legend, cut=axis or cut_at([bar.end for bar in drawn]))
