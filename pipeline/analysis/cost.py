"""What a million images cost: time, energy, and money where the user names a price."""

from dataclasses import dataclass

from pipeline.analysis.summary import RunSummary, StageSummary

MILLION = 1e6
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Cost:
    """One ranked stage's cost of a million images."""

    stage: StageSummary
    images_per_second: float
    hours: float
    images_per_joule: float | None
    kilowatt_hours: float | None
    price: float | None  # in the user's currency


def costs(summary: RunSummary) -> list[Cost]:
    """Of every ranked stage."""
    return [_cost(summary, stage) for stage in summary.ranked]


def _cost(summary: RunSummary, stage: StageSummary) -> Cost:
    seconds = (stage.pace or 0.0) / summary.run.batch_size
    hours, joules, price = seconds * MILLION / 3600, stage.joules_per_image, summary.run.settings.report.gpu_hour_price
    return Cost(
        stage,
        images_per_second=1 / seconds,
        hours=hours,
        images_per_joule=1 / joules if joules else None,
        kilowatt_hours=joules * MILLION / JOULES_PER_KWH if joules else None,
        price=None if price is None else hours * price,
    )
