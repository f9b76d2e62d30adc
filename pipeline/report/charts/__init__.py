"""Charts as inline SVG and HTML that take their colours from the page.

Drawn in placeholder colours, which no chart would choose; each stands for a CSS variable, so that a chart follows the
page into dark mode and onto paper.
"""

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
