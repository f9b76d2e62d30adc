"""The roofline: every layer and level against the measured ceilings, and the layers by what could be won."""

from dataclasses import replace

from markupsafe import Markup

from pipeline.analysis.bottleneck import of_layer, shares
from pipeline.analysis.layer_figures import Part, level_parts, parts, to_be_won, won_by_level
from pipeline.analysis.roofline import DATASHEET_SOURCE, Roofs, beside, datasheet, roofs
from pipeline.analysis.summary import Digest, Row
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import formatting as words
from pipeline.report.charts import bars as charts
from pipeline.report.figure import Figure
from pipeline.report.sections.ladder_section import Cell, Table

TOP_LAYERS = 12  # in a stage's own section
LAYER_TEXTS, LEVEL_TEXTS = [0, 1, 8], [0, 7]  # columns that are read, not compared
TITLES = [
    ("layer", ""),
    ("level", ""),
    ("ms", "per call, by the profile"),
    ("launches", "per call"),
    ("GFLOP", "of a batch, 2 per multiply-add"),
    ("MB", "at least: inputs, outputs and weights once, in the precision that ran"),
    ("TFLOP/s", ""),
    (
        "of its roof",
        "the larger of its shares of the arithmetic and of the bandwidth; above 100 % a cache helped, or an "
        "algorithm with fewer multiplications than counted",
    ),
    ("regime", ""),
    ("ms to be won", "its time less the time at its roof; a layer that fuses into another wins all of its time"),
]


def rooflines(found: Digest) -> list[Figure]:
    """Of the winner and of the baseline: the layers, then the levels; nothing where no layer has a time.

    For a winner that hides its layers stands the fastest stage that shows them.
    """
    ranked = sorted(
        (row for row in found.rows if row.ranked and row.seconds),
        key=lambda row: (row is not found.winner, row.seconds.value if row.seconds else 0.0),
    )
    shown = next(((row, figures) for row in ranked if (figures := of_row(found.run, row))), None)
    if shown is None:
        return []
    fastest, figures = shown
    if found.winner is not None and fastest is not found.winner:
        why = f"{found.winner.name} hides its layers; {fastest.name} is the fastest that shows them. "
        figures = [replace(figure, note=words.clean(why + figure.note)) for figure in figures]
    baseline = found.row(found.run.baseline)
    return [*figures, *(of_row(found.run, baseline) if baseline and baseline is not fastest else [])]


def of_row(run: RunRecord, row: Row) -> list[Figure]:
    """One stage's roofline and its levels."""
    bounds = roofs(run, row.stage)
    if isinstance(bounds, str):
        return []
    timed = parts(run, row.stage, bounds.element_bytes)
    if not any(_has_dot(part) for part in timed):
        return []
    name = words.clean(row.name)
    return [_layers_figure(run, name, row, bounds), _levels_figure(name, timed, bounds)]


def _layers_figure(run: RunRecord, name: str, row: Row, bounds: Roofs) -> Figure:
    timed = parts(run, row.stage, bounds.element_bytes)
    said = datasheet(run, bounds.precision)
    lines = [("measured here", bounds.flops_per_s, bounds.bytes_per_s)]
    lines += [("the datasheet's", said.flops_per_s, said.bytes_per_s)] if said else []
    title = f"Roofline of {name}"
    svg = charts.roofline([_dot(part) for part in timed if _has_dot(part)], levels_dots(timed), lines, title)
    source = f"Times from {words.clean(row.stage.diagnostics.layers_from)}. " if row.stage.diagnostics else ""
    undrawn = sum(not _has_dot(part) for part in timed)
    note = f"{source}Small: a layer; large: a level of the net. MeasuredPeaks in {bounds.precision}"
    note += f", dashed: {DATASHEET_SOURCE}." if said else "."
    note += f" What computes no FLOP has no place here ({undrawn} in the table)." if undrawn else ""
    return Figure(title, Markup(svg), note, layers_table(timed, bounds), LAYER_TEXTS)  # noqa: S704 - escaped by matplotlib


def _levels_figure(name: str, timed: list[Part], bounds: Roofs) -> Figure:
    won = won_by_level(timed, bounds)
    levels = sorted(level_parts(timed), key=lambda part: -won.get(part.level, 0.0))
    bars = [(words.clean(part.name), part.seconds - won[part.level], won[part.level]) for part in level_parts(timed)]
    title = f"{name}, level by level"
    svg = charts.levels(bars, title)
    note = "A level's time: at its layers' roofs, and above them, which is what could be won."
    return Figure(title, Markup(svg), note, _levels_table(levels, won, bounds), LEVEL_TEXTS)  # noqa: S704 - escaped by matplotlib


def top_layers(run: RunRecord, stage: StageRecord) -> Table | None:
    """The layers of a stage's own section; None where no layer has a time, or nothing to hold it against."""
    bounds = roofs(run, stage)
    if isinstance(bounds, str):
        return None
    timed = parts(run, stage, bounds.element_bytes)
    return layers_table(timed, bounds, TOP_LAYERS) if timed else None


def _has_dot(part: Part) -> bool:
    return part.flops > 0 and part.moved_bytes > 0 and part.seconds > 0


def _dot(part: Part) -> tuple[str, float, float]:
    """Name, FLOP per byte, FLOP/s."""
    return words.clean(part.name), part.flops / part.moved_bytes, part.flops / part.seconds


def levels_dots(timed: list[Part]) -> list[tuple[str, float, float]]:
    """Every level that computes, as a point."""
    return [_dot(part) for part in level_parts(timed) if _has_dot(part)]


def by_what_could_be_won(timed: list[Part], bounds: Roofs) -> list[Part]:
    """The most first; what nobody knows about last, the longest of it first."""
    won = {part.name: to_be_won(part, bounds) for part in timed}
    return sorted(timed, key=lambda part: (won[part.name] is None, -(won[part.name] or 0.0), -part.seconds))


def layers_table(timed: list[Part], bounds: Roofs, most: int | None = None) -> Table:
    """The layers by the milliseconds that could be won."""
    rows = [_cells(part, bounds, to_be_won(part, bounds)) for part in by_what_could_be_won(timed, bounds)[:most]]
    return Table(TITLES, rows)


def _levels_table(levels: list[Part], won: dict[str, float], bounds: Roofs) -> Table:
    rows = [_cells(part, bounds, won[part.level] if part.has_work else None) for part in levels]
    return Table([("level", ""), *TITLES[2:]], [[*row[:1], *row[2:]] for row in rows])


def _cells(part: Part, bounds: Roofs, won: float | None) -> list[Cell]:
    share = max(shares(part, bounds)) if part.has_work else None
    rate = part.flops / part.seconds / 1e12 if part.flops and part.seconds else None
    return [
        Cell(words.clean(part.name)),
        Cell(words.clean(part.level)),
        Cell(words.milliseconds(part.seconds), part.seconds),
        Cell(f"{part.launches:.4g}", part.launches),
        _figure(part.flops / 1e9 if part.flops else None),
        _figure(part.moved_bytes / 1e6 if part.moved_bytes else None),
        _figure(rate),
        Cell(words.share(share), share),
        Cell(of_layer(part, bounds)),
        Cell(words.milliseconds(won), won),
    ]


def _figure(value: float | None) -> Cell:
    return Cell(words.NOTHING) if value is None else Cell(words.significant(value), value)


def ceilings(run: RunRecord) -> str:
    """The measured ceilings beside the datasheet's, in a line."""
    said = beside(run)
    source = f"; of what {DATASHEET_SOURCE} says" if any("%" in line for line in said) else ""
    return ", ".join(said) + source
