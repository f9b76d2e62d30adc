"""The ladder as bars: how much faster every stage is than the headline's baseline."""

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report.charts.bars import ladder as ladder_bars
from pipeline.report.formatting import clean, spoken


def ladder_chart(summary: RunSummary) -> str:
    """Bars with their intervals; what isn't resolved is hatched, what isn't ranked says why."""
    bars = [(clean(stage.name), stage.ratio if stage.ranked else None, _kind(stage)) for stage in summary.stages]
    return ladder_bars(bars, [(spoken(summary.baseline), 1.0)], spoken(summary.baseline))


def _kind(stage: StageSummary) -> str:
    """What colour the bar takes, or what stands in its place."""
    if not stage.ranked:
        return stage.status
    unresolved = stage.compared.outcome == "not resolved"
    return "not resolved" if unresolved else stage.place
