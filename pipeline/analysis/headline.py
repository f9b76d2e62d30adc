"""The ratios of each stage at full load to the baseline and to eager."""

from dataclasses import dataclass

from pipeline.records.run_record import EAGER, RunRecord, StageRecord
from pipeline.stats.drift import steady_composed, steady_ratio
from pipeline.stats.intervals import ITSELF, Estimate, Ratio, latency, seconds_per_call
from pipeline.stats.lasting_pace import loop_seconds_per_call
from pipeline.stats.outcomes import Outcome, Unresolved
from pipeline.stats.ranking import Ranking, rankable


@dataclass(frozen=True)
class Compared:
    """A stage against the baselines; None where there is nothing to compare."""

    ratio: Ratio | None = None  # to the baseline; without blocks where it has no interval
    outcome: Outcome | None = None  # of a ranked stage, against the baseline
    eager_ratio: Ratio | None = None
    unresolved: Unresolved | None = None  # why the ratio is not resolved


def compared(run: RunRecord, stage: StageRecord, order: Ranking, spread: float) -> Compared:
    """The stage's ratios; outcomes are for ranked stages alone.

    Args:
        run: the whole run.
        stage: one of its stages.
        order: of the run.
        spread: the between-run standard deviation.
    """
    if not any(pair.blocks for pair in stage.pairs):
        return Compared()
    first = steady_ratio(stage.pairs, spread)
    if not is_ranked(stage, order):
        return Compared(first, None, _to_eager(run, stage, first, spread))
    outcome = order.outcomes[stage.name]
    why = order.noise.unresolved(first) if outcome == "not resolved" else None
    return Compared(first, outcome, _to_eager(run, stage, first, spread), why)


def is_ranked(stage: StageRecord, order: Ranking) -> bool:
    """Whether the ranking holds this stage."""
    return stage.name in order.ratios and rankable(stage)


def sustained_seconds(run: RunRecord, stage: StageRecord) -> float | None:
    """Seconds per call at full load: of samples taken so, else of the stretch in which the energy was measured."""
    if _at_full_load(stage):
        return seconds_per_call(stage.pairs).value
    return loop_seconds_per_call(stage, run.batch_size) if stage.energy else None


def host_ratio(run: RunRecord, stage: StageRecord) -> float | None:
    """The baseline's median from host to host over the stage's; None where one of them wasn't measured."""
    baseline = _stage(run, run.baseline)
    first = baseline.host_latencies if baseline else run.baseline_host_latencies
    return latency(first).p50 / latency(stage.host_latencies).p50 if first and stage.host_latencies else None


def _to_eager(run: RunRecord, stage: StageRecord, first: Ratio, spread: float) -> Ratio | None:
    """To eager: the ratio itself, or composed through the pairs of both with the baseline."""
    if run.baseline == EAGER:
        return first
    if stage.name == EAGER:
        return ITSELF
    eager = _stage(run, EAGER)
    return steady_composed(stage.pairs, eager.pairs, spread) if eager and rankable(eager) else None


def _stage(run: RunRecord, name: str) -> StageRecord | None:
    return next((stage for stage in run.stages if stage.name == name), None)


def _at_full_load(stage: StageRecord) -> bool:
    return any(pair.blocks for pair in stage.pairs) and all(pair.sustained for pair in stage.pairs if pair.blocks)


def baseline_seconds(run: RunRecord, order: Ranking) -> Estimate | None:
    """The time per call of the baseline that stages were interleaved with, over the samples of every ranked stage."""
    pairs = [pair for stage in run.stages if is_ranked(stage, order) for pair in stage.pairs]
    return seconds_per_call(pairs, "baseline") if pairs else None
