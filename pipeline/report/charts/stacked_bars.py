"""Bars of parts laid end to end."""

from typing import TYPE_CHECKING

from pipeline.report.charts.canvas import BLANK, INCH_PER_BAR, INK, canvas, finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CUT_BEYOND, CUT_LENGTH = 4.0, 1.5  # a bar 4 times as long as the next is cut at 1.5 times the next one's length
ROOM_BESIDE = 1.3  # of the longest bar, for the text beside it


def stacked(
    rows: list[tuple[str, dict[str, float]]],
    palette: dict[str, str],
    labels: tuple[str, str],
    beside: list[str] | None = None,
) -> str:
    """Bars of parts laid end to end; `palette` has the parts in order with their colours, `labels` title and x axis.

    With text `beside` every bar, one that is far longer than all others is cut, and its text gives its length.
    """
    with canvas(1.1 + INCH_PER_BAR * len(rows)) as (figure, axes):
        left = [0.0] * len(rows)
        for part, colour in palette.items():
            values = [amounts.get(part, 0.0) for _, amounts in rows]
            if any(values):
                axes.barh(range(len(rows)), values, left=left, color=colour, height=0.62, label=part)
            left = [before + value for before, value in zip(left, values, strict=True)]
        if beside:
            _write_beside(axes, left, beside)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel(labels[1])
        axes.grid(axis="x")
        if len(palette) > 1:
            figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
        return finished(figure, labels[0])


def _write_beside(axes: "Axes", lengths: list[float], texts: list[str]) -> None:
    """Text at the end of every bar; that of a bar that is cut stands on it."""
    *_, second, longest = sorted([0.0, *lengths])
    cut = CUT_LENGTH * second if second and longest > CUT_BEYOND * second else longest
    axes.set_xlim(0, cut * (1.0 if cut < longest else ROOM_BESIDE))
    for place, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        if length > cut:
            label = axes.text(0.985 * cut, place, f"{text}, cut here ▸", va="center", ha="right", bbox=BLANK)
        else:
            label = axes.text(length + 0.01 * cut, place, text, va="center", ha="left")
        label.set(color=INK, fontsize=8)
