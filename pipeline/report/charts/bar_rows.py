"""Bars in HTML: they take the page's type, its colours and the width that there is, so that a phone shows them whole.

A chart is one image to who can't see it; its table says the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from pipeline.report.charts.canvas import VARIABLES
from pipeline.report.formatting import clean

CUT_BEYOND, CUT_LENGTH = 4.0, 1.5  # a bar 4 times as long as the next is cut at 1.5 times the next one's length


@dataclass(frozen=True)
class Part:
    """A stretch of a bar, in the unit of the axis."""

    start: float
    end: float
    colour: str  # a placeholder of `canvas`
    hatched: bool = False  # not resolved: it mustn't look like a result


@dataclass(frozen=True)
class Bar:
    """A name, its stretches, and the text beside them.

    Attributes:
        name: at the left.
        parts: stretches, laid on the axis.
        text: at the right: the bar's own figure.
        interval: drawn across the bar's end.
        note: in place of a bar.
        strong: the name and the text stand out.
    """

    name: str
    parts: Sequence[Part] = ()
    text: str = ""
    interval: tuple[float, float] | None = None
    note: str = ""
    strong: bool = False

    @property
    def end(self) -> float:
        """Where its last stretch ends, or its interval."""
        return max([part.end for part in self.parts] + ([self.interval[1]] if self.interval else []), default=0.0)


def rows(
    bars: Sequence[Bar],
    title: str,
    *,
    unit: str = "",
    legend: Mapping[str, str] | None = None,
    marks: Sequence[tuple[str, float]] = (),
    cut: float | None = None,
) -> str:
    """The chart.

    Args:
        bars: from top to bottom; all begin at 0.
        title: read aloud in its place.
        unit: what the lengths are, below the bars.
        legend: of colours, by name.
        marks: values to draw as lines down the chart, with what they are.
        cut: the axis's end, where some bars go on beyond it.
    """
    whole = cut or max([bar.end for bar in bars] + [value for _, value in marks], default=0.0) or 1.0
    lines = Markup("").join(_row(bar, whole, [value for _, value in marks]) for bar in bars)
    key = Markup("").join(
        Markup('<span><i style="--c:{}"></i>{}</span>').format(_variable(colour), clean(name))
        for name, colour in (legend or {}).items()
    )
    said = [clean(unit)] if unit else []
    said += [f"the line marks {clean(name)}" for name, _ in marks]
    said += ["▸ a bar is cut here"] if any(bar.end > 1.0001 * whole for bar in bars) else []
    return str(
        Markup('<div class="bars" role="img" aria-label="{}">{}<div class="rows">{}</div>{}</div>').format(
            clean(title),
            Markup('<p class="key">{}</p>').format(key) if key else "",
            lines,
            Markup('<p class="axis">{}</p>').format("; ".join(said)) if said else "",
        )
    )


def cut_at(lengths: Sequence[float]) -> float | None:
    """Where to cut the axis so that one bar that is far longer than all others leaves them room; None for nowhere."""
    *_, second, longest = sorted([0.0, 0.0, *lengths])
    return CUT_LENGTH * second if second and longest > CUT_BEYOND * second else None


def _row(bar: Bar, whole: float, marks: Sequence[float]) -> Markup:
    inside = Markup("").join(_part(part, whole) for part in bar.parts if part.start < whole)
    if bar.end > 1.0001 * whole:
        inside += Markup('<b class="cut">▸</b>')
    if bar.interval and bar.interval[1] <= whole:
        inside += Markup('<i class="whisker" style="{}"></i>').format(_place(*bar.interval, whole))
    inside += Markup("").join(
        Markup('<i class="mark" style="left:{:.2f}%"></i>').format(100 * at / whole) for at in marks
    )
    if bar.note:
        inside = Markup('<span class="quiet">{}</span>').format(clean(bar.note))
    return Markup('<div class="row{}"><span>{}</span><span class="track">{}</span><span>{}</span></div>').format(
        " strong" if bar.strong else "", clean(bar.name), inside, clean(bar.text)
    )


def _part(part: Part, whole: float) -> Markup:
    kind = "part hatched" if part.hatched else "part"
    place = _place(part.start, min(part.end, whole), whole)
    return Markup('<i class="{}" style="{};--c:{}"></i>').format(kind, place, _variable(part.colour))


def _place(start: float, end: float, whole: float) -> str:
    return f"left:{100 * start / whole:.2f}%;width:{100 * (end - start) / whole:.2f}%"


def _variable(colour: str) -> Markup:
    return escape(VARIABLES[colour])
