"""What a million images cost, and which stage is best for how many."""

from collections.abc import Sequence

from pipeline.analysis.cost import Cost, costs
from pipeline.analysis.payback import ChangeOver, Doubt
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import Words
from pipeline.report.formatting import clean, samples, seconds, significant, spoken
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

DOUBTS: dict[Doubt, str] = {
    "not resolved": "the ratios aren't resolved",
    "baseline drifted": "the baseline drifted too far for times of different moments to be compared",
}


def columns(summary: RunSummary) -> list[Column[Cost]]:
    """Time, energy, cost and break-even."""
    price = summary.run.config.report.gpu_hour_price
    at, words = "" if price is None else f" at {price:g} an hour", summary.run.words
    baseline, against = summary.baseline, f" against {spoken(summary.baseline)}"

    def paid(cost: Cost) -> Cell:
        return Cell(_paid(cost, baseline, words), cost.stage.break_even)

    return [
        names("stage", lambda cost: clean(cost.stage.name)),
        Column(
            f"{words.samples}/s",
            help="throughput at full load",
            cell=figure(lambda cost: cost.images_per_second, significant),
        ),
        Column("hours", help=f"for a million {words.samples}", cell=figure(lambda cost: cost.hours, significant)),
        Column(
            f"{words.samples}/J",
            help=f"{words.samples} per joule",
            cell=figure(lambda cost: cost.images_per_joule, significant),
        ),
        Column(
            "kWh",
            help=f"for a million {words.samples}",
            cell=figure(lambda cost: cost.kilowatt_hours, significant),
        ),
        Column(
            "price",
            help=f"of a million {words.samples}{at}",
            cell=figure(lambda cost: cost.price, significant),
            csv="price_per_million_images",
        ),
        Column("pays after", help=f"{words.samples} until the set-up has paid for itself{against}", cell=paid),
    ]


def cost_table(summary: RunSummary) -> Table:
    """Of the ranked stages; columns without a figure are left out, and all of it where no other stage has any."""
    every = costs(summary)
    others = [cost for cost in every if cost.stage.name != summary.baseline]
    if others and all(cost.doubt for cost in others):
        return Table([], [])
    return table_of(columns(summary), every).without_empty_columns


def cost_text(summary: RunSummary) -> list[str]:
    """Which stage is best for how many samples, with the numbers at which that changes, and for a service."""
    words = summary.run.words
    if summary.doubt:
        unknown = f"Which stage is best for how many {words.samples} isn't known: {DOUBTS[summary.doubt]}."
        return [unknown] if summary.ranked else []
    lines = [_best_for(summary.change_overs, words)] if summary.change_overs else []
    service = summary.stage(summary.best_for_service)
    if service and service.latency:
        tail = f"p99 {seconds(service.latency.p99)} for a single call"
        if service.sustained_seconds:
            tail = f"{seconds(service.sustained_seconds)} per call at full load; {tail} on an otherwise idle GPU"
        lines.append(f"For a service that is built and warm: {spoken(service.name)}, {tail}.")
    return lines


def _best_for(found: Sequence[ChangeOver], words: Words) -> str:
    """Such as "Set-up included: amp up to 9,600 images, then fused, from 60,000 on fp8."."""
    if len(found) == 1:
        return f"Set-up included, {spoken(found[0][0])} is best for any number of {words.samples}."
    first = f"Set-up included: {spoken(found[0][0])} up to {samples(found[1][1])} {words.samples}"
    later = [f"{spoken(name)} from {samples(start)} on" for name, start in found[1:]]
    return f"{first}, {', '.join(later)}."


def _paid(cost: Cost, baseline: str, words: Words) -> str:
    stage = cost.stage
    if stage.name == baseline:
        return "the baseline"
    if stage.break_even_doubt:
        return "unknown"
    if stage.break_even is None:
        return "never"
    return "at once" if stage.break_even < 1 else f"{samples(stage.break_even)} {words.samples}"
