"""What a million images cost: time, energy, and its price where the user names one."""

from dataclasses import dataclass

from pipeline.analysis.payback import Doubt
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary

MILLION = 1e6
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Cost:
    """One ranked stage's cost of a million images at full load; None where it isn't known, and all of it in doubt."""

    stage: StageSummary
    images_per_second: float | None = None
    hours: float | None = None
    images_per_joule: float | None = None
    kilowatt_hours: float | None = None
    price: float | None = None  # in the user's currency
    doubt: Doubt | None = None  # why the record can't say


def costs(summary: RunSummary) -> list[Cost]:
    """Of every ranked stage."""
    return [_cost(summary, stage) for stage in summary.ranked]


def _cost(summary: RunSummary, stage: StageSummary) -> Cost:
    if stage.break_even_doubt or not stage.pace:
        return Cost(stage, doubt=stage.break_even_doubt)
    seconds = stage.pace / summary.run.batch_size
    hours, joules, price = seconds * MILLION / 3600, stage.joules_per_image, summary.run.config.report.gpu_hour_price
    return Cost(
        stage,
        images_per_second=1 / seconds,
        hours=hours,
        images_per_joule=1 / joules if joules else None,
        kilowatt_hours=joules * MILLION / JOULES_PER_KWH if joules else None,
        price=None if price is None else hours * price,
    )
