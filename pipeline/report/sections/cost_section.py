"""What a million images cost: time, energy, and money where the user names a price."""

from pipeline.analysis.summary import Digest, Row
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table

MILLION = 1e6
JOULES_PER_KWH = 3.6e6


def cost_table(found: Digest) -> Table:
    """Of the ranked stages; columns without a figure are left out."""
    price = found.gpu_hour_price
    rows = [row for row in found.rows if row.ranked]
    energy = any(row.joules_per_image for row in rows)
    titles = [("stage", ""), ("images/s", "throughput at full load"), ("hours", "for a million images")]
    titles += [("images/J", "images per joule"), ("kWh", "for a million images")] if energy else []
    titles += [("price", f"of a million images at {price:g} an hour")] if price is not None else []
    titles += [("pays after", f"images until the set-up has paid for itself against {found.run.baseline}")]
    table = []
    for row in rows:
        seconds = (row.pace or 0.0) / found.run.batch_size
        hours = seconds * MILLION / 3600
        cells = [Cell(words.clean(row.name)), _cell(1 / seconds), _cell(hours)]
        if energy:
            joules = row.joules_per_image
            cells += [
                _cell(1 / joules if joules else None),
                _cell(joules * MILLION / JOULES_PER_KWH if joules else None),
            ]
        if price is not None:
            cells.append(_cell(hours * price))
        table.append([*cells, Cell(_paid(found, row), row.break_even)])
    return Table(titles, table)


def _paid(found: Digest, row: Row) -> str:
    if row.name == found.run.baseline:
        return "its own"
    if row.break_even is None:
        return "never"
    return "at once" if row.break_even < 1 else f"{words.images(row.break_even)} images"


def _cell(value: float | None) -> Cell:
    return Cell(words.NOTHING) if value is None else Cell(words.significant(value), value)
