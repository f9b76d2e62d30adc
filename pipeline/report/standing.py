"""How a stage stands beside the baseline that a reader would otherwise run: autocast on a GPU, eager on a CPU."""

from dataclasses import dataclass

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report.formatting import clean
from pipeline.stats.intervals import Ratio

SPOKEN = {"amp": "autocast"}


@dataclass(frozen=True)
class Standing:
    """A stage's figures against the headline's baseline; None where it gives none."""

    stage: StageSummary
    ratio: Ratio | None  # times as fast, at full load where that was measured
    host_ratio: float | None  # times as fast from host memory and back, single calls
    seconds: float | None  # per call, at full load where that was measured


def spoken(name: str | None) -> str:
    """A stage's name as a person would say it."""
    return SPOKEN.get(str(name), clean(name))


def baseline_name(summary: RunSummary) -> str:
    """The stage that the headline's ratio is to."""
    second = summary.stage(summary.run.second_baseline)
    return second.name if summary.on_gpu and second and second.ranked else summary.run.baseline


def baseline_stage(summary: RunSummary) -> StageSummary | None:
    """Its figures; None for a baseline that was no stage of its own."""
    return summary.stage(baseline_name(summary))


def standing(summary: RunSummary, stage: StageSummary) -> Standing:
    """A stage against that baseline."""
    base = baseline_stage(summary)
    host = None
    if base and base.host_latency and stage.host_latency:
        host = base.host_latency.p50 / stage.host_latency.p50
    return Standing(stage, ratio(summary, stage), host, stage.pace)


def ratio(summary: RunSummary, stage: StageSummary) -> Ratio | None:
    """Times as fast as that baseline; without an interval where it comes from one stretch of each at full load."""
    base = baseline_stage(summary)
    if base and base.sustained_seconds and stage.sustained_seconds:
        value = base.sustained_seconds / stage.sustained_seconds
        return Ratio(value, value, value, 0, 1, bounded=False)
    if base and base.name == summary.run.second_baseline != summary.run.baseline:
        return stage.compared.second_ratio
    return stage.ratio
