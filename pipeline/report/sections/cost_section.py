"""What a million images cost, and which stage is best for how many."""

from collections.abc import Sequence

from pipeline.analysis.cost import Cost, costs
from pipeline.analysis.payback import ChangeOver, Doubt
from pipeline.analysis.summary import RunSummary
from pipeline.report.formatting import clean, images, seconds, significant, spoken
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

DOUBTS: dict[Doubt, str] = {
    "not resolved": "the ratios aren't resolved",
    "baseline drifted": "the baseline drifted too far for times of different moments to be compared",
}


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
        Column("pays after", help=f"images until the set-up has paid for itself against {spoken(baseline)}", cell=paid),
    ]


def cost_table(summary: RunSummary) -> Table:
    """Of the ranked stages; columns without a figure are left out."""
    return table_of(columns(summary), costs(summary)).without_empty_columns


def cost_text(summary: RunSummary) -> list[str]:
    """Which stage is best for how many images, with the numbers at which that changes, and for a service."""
    if summary.doubt:
        return (
            [f"Which stage is best for how many images isn't known: {DOUBTS[summary.doubt]}."] if summary.ranked else []
        )
    lines = [_best_for(summary.change_overs)] if summary.change_overs else []
    service = summary.stage(summary.best_for_service)
    if service and service.latency:
        tail = f"p99 {seconds(service.latency.p99)} for a single call"
        lines.append(f"For a service that is built and warm: {spoken(service.name)}, {tail}.")
    return lines


def _best_for(found: Sequence[ChangeOver]) -> str:
    """Such as "Set-up included: amp up to 9,600 images, then fused, from 60,000 on fp8."."""
    if len(found) == 1:
        return f"Set-up included, {spoken(found[0][0])} is best for any number of images."
    first = f"Set-up included: {spoken(found[0][0])} up to {images(found[1][1])} images"
    later = [f"{spoken(name)} from {images(start)} on" for name, start in found[1:]]
    return f"{first}, {', '.join(later)}."


def _paid(cost: Cost, baseline: str) -> str:
    stage = cost.stage
    if stage.name == baseline:
        return "its own"
    if stage.break_even_doubt:
        return "unknown"
    if stage.break_even is None:
        return "never"
    return "at once" if stage.break_even < 1 else f"{images(stage.break_even)} images"
