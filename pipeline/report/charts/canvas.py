"""The canvas of all charts: inline SVG that takes its colours from the page.

matplotlib draws in placeholder colours, which no chart would choose; `finished` replaces each by the CSS variable that
it stands for, so that a chart follows the page into dark mode and onto paper.
"""

import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholders: each stands for a variable of the page's style sheet.
INK, QUIET, GRID, PAPER = "#010101", "#020202", "#030303", "#080808"
ACCENT, TIED, PLAIN, BAD = "#040404", "#050505", "#060606", "#070707"
CLASSES: dict[str, str] = {
    "convolution": "#0a0a01", "matmul": "#0a0a02", "pointwise": "#0a0a03", "normalisation": "#0a0a04",
    "layout change": "#0a0a05", "copy": "#0a0a06", "pool": "#0a0a07", "other": "#0a0a08",
}  # fmt: skip
VARIABLES = {
    INK: "var(--ink)", QUIET: "var(--quiet)", GRID: "var(--line)", PAPER: "var(--paper)", ACCENT: "var(--accent)",
    TIED: "var(--tied)", PLAIN: "var(--bar)", BAD: "var(--bad)",
    **{colour: f"var(--k{n})" for n, colour in enumerate(CLASSES.values())},
}  # fmt: skip
WIDTH_INCHES = 46 * 16 / 96  # 46rem, as wide as the page shows a chart: letters are as large as the page's own
HALF_INCHES = 34 * 16 / 96  # 34rem, of which the page shows two side by side
SMALL = 9  # points: 12 px
LETTER_POINTS = 5.6  # wide in small letters, generously
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "ladder", "text.parse_math": False, "font.size": 10, "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": QUIET, "xtick.color": QUIET, "ytick.color": INK, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID,
    "grid.linewidth": 0.6, "xtick.major.size": 0, "ytick.major.size": 0, "font.family": "DejaVu Sans",
}  # fmt: skip


@contextmanager
def canvas(height: float, width: float = WIDTH_INCHES) -> Iterator[tuple["Figure", "Axes"]]:
    """A figure in the page's style, and its axes; Agg's canvas needs no display and no pyplot state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def finished(figure: "Figure", title: str) -> str:
    """The figure as an element for an HTML page: no addresses, no metadata, its title in front, ids of its own."""
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
