"""What a million images cost, as a table."""

from pipeline.analysis.cost import Cost, costs
from pipeline.analysis.summary import RunSummary
from pipeline.report.formatting import clean, images, seconds, significant
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of


def columns(summary: RunSummary) -> list[Column[Cost]]:
    """Time, energy, money and break-even."""
    price = summary.run.settings.report.gpu_hour_price
    at = "" if price is None else f" at {price:g} an hour"
    baseline = summary.run.baseline

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


def cost_text(summary: RunSummary) -> list[str]:
    """When the set-up has paid for itself, and which stage is best for how many images."""
    few, many, service = summary.best_for_few, summary.best_for_many, summary.best_for_service
    if not few or not many or not service:
        return []
    if few == many == service:
        return [f"{clean(many)} is best for 100 images, for a service and for ten million alike."]
    stage = summary.stage(service)
    tail = f" (p99 {seconds(stage.latency.p99)} for a single call)" if stage and stage.latency else ""
    return [
        f"Set-up included, {clean(few)} is best for 100 images and {clean(many)} for ten million; for a service that "
        f"is built and warm, {clean(service)}{tail}."
    ]


def _paid(cost: Cost, baseline: str) -> str:
    stage = cost.stage
    if stage.name == baseline:
        return "its own"
    if stage.break_even is None:
        return "never"
    return "at once" if stage.break_even < 1 else f"{images(stage.break_even)} images"
