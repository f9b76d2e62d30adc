"""What a million images cost, as a table."""

from pipeline.analysis.cost import Cost, costs
from pipeline.analysis.summary import RunSummary
from pipeline.report.formatting import clean, images, significant
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of


def columns(summary: RunSummary) -> list[Column[Cost]]:
    """Time, energy, money and break-even."""
    price = summary.run.settings.report.gpu_hour_price
    at = "" if price is None else f" at {price:g} an hour"
    baseline = summary.baseline

    def paid(cost: Cost) -> Cell:
        return Cell(_paid(cost, baseline), cost.stage.break_even)

    return [
        names("stage", lambda cost: clean(cost.stage.name)),
        Column(
            "images/s", help="throughput at full load", cell=figure(lambda cost: cost.images_per_second, significant)
        ),
        Column("hours", help="for a million images", cell=figure(lambda cost: cost.hours, significant)),
        Column("images/J", help="images per joule", cell=figure(lambda cost: cost.images_per_joule, significant)),
        Column("kWh", help="for a million images", cell=figure(lambda cost: cost.kilowatt_hours, significant)),
        Column("price", help=f"of a million images{at}", cell=figure(lambda cost: cost.price, significant)),
        Column("pays after", help=f"images until the set-up has paid for itself against {baseline}", cell=paid),
    ]


def cost_table(summary: RunSummary) -> Table:
    """Of the ranked stages; columns without a figure are left out."""
    return table_of(columns(summary), costs(summary)).without_empty_columns


def _paid(cost: Cost, baseline: str) -> str:
    stage = cost.stage
    if stage.name == baseline:
        return "its own"
    if stage.break_even_doubt:
        return "unknown"
    if stage.break_even is None:
        return "never"
    return "at once" if stage.break_even < 1 else f"{images(stage.break_even)} images"
