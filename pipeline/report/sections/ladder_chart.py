"""The ladder as bars: how much faster every stage is than the headline's baseline."""

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report.charts.bars import ladder as ladder_bars
from pipeline.report.formatting import clean
from pipeline.report.standing import baseline_name, ratio, spoken


def ladder_chart(summary: RunSummary) -> str:
    """Bars with their intervals; what isn't resolved is hatched, what isn't ranked says why."""
    bars = [
        (clean(stage.name), ratio(summary, stage) if stage.ranked else None, _kind(stage)) for stage in summary.stages
    ]
    return ladder_bars(bars, [(spoken(baseline_name(summary)), 1.0)], spoken(baseline_name(summary)))


def _kind(stage: StageSummary) -> str:
    """What colour the bar takes, or what stands in its place."""
    if not stage.ranked:
        return stage.status
    return stage.place or (stage.compared.outcome == "not resolved" and "not resolved") or ""
