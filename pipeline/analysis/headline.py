"""The ratios that a run is about: each stage at full load against what people run today, and against eager.

Since schema 5 a GPU's stages are interleaved with autocast, in samples at full load. Older records hold samples of a
GPU that rests between them, interleaved with eager: of these the stretches at full load in which the energy was
measured give the ratios, without an interval.
"""

from dataclasses import dataclass

from pipeline.devices.kinds import is_cuda
from pipeline.records.run_record import AUTOCAST, EAGER, RunRecord, StageRecord
from pipeline.stats.drift import steady_composed, steady_ratio
from pipeline.stats.intervals import ITSELF, Estimate, Ratio, latency, seconds_per_call
from pipeline.stats.lasting_pace import loop_seconds_per_call
from pipeline.stats.outcomes import Outcome, Unresolved
from pipeline.stats.ranking import Ranking, rankable


@dataclass(frozen=True)
class Compared:
    """A stage against the baselines; None where there is nothing to compare."""

    ratio: Ratio | None = None  # to the headline baseline; without blocks where it has no interval
    outcome: Outcome | None = None  # of a ranked stage, against the headline baseline
    eager_ratio: Ratio | None = None
    unresolved: Unresolved | None = None  # why the ratio is not resolved


def headline_baseline(run: RunRecord) -> str:
    """The baseline of the headline ratios: that of the interleaved samples, and autocast in a GPU's older records."""
    if run.baseline != EAGER or not _on_gpu(run) or any(_at_full_load(stage) for stage in run.stages):
        return run.baseline
    today = _stage(run, AUTOCAST)
    return AUTOCAST if today and rankable(today) and today.energy else run.baseline


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
    baseline = headline_baseline(run)
    if baseline != run.baseline:
        return _of_a_rested_gpu(run, stage, baseline, order, spread)
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
    """The headline baseline's median from host to host over the stage's; None where one of them wasn't measured."""
    baseline = _stage(run, headline_baseline(run))
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


def _of_a_rested_gpu(run: RunRecord, stage: StageRecord, baseline: str, order: Ranking, spread: float) -> Compared:
    """Ratios from the stretches at full load; the outcome is that of the interleaved samples, unless they disagree."""
    today, ranked = _stage(run, baseline), is_ranked(stage, order)
    assert today is not None
    if stage.name == baseline:
        return Compared(ITSELF, "same" if ranked else None, _full_load_ratio(run, EAGER, stage))
    interleaved = steady_composed(stage.pairs, today.pairs, spread)
    first = _full_load_ratio(run, baseline, stage) or interleaved
    to_eager = _full_load_ratio(run, EAGER, stage) or steady_ratio(stage.pairs, spread)
    if not ranked:
        return Compared(first, None, to_eager)
    outcome = order.noise.outcome(interleaved)
    if (outcome, first.value < 1) in (("faster", True), ("slower", False)):
        outcome = "not resolved"
    why = order.noise.unresolved(interleaved) if outcome == "not resolved" else None
    return Compared(first, outcome, to_eager, why)


def _full_load_ratio(run: RunRecord, baseline: str, stage: StageRecord) -> Ratio | None:
    """The baseline's seconds over the stage's at full load; without an interval, so without blocks."""
    other = _stage(run, baseline)
    theirs, ours = (sustained_seconds(run, part) if part else None for part in (other, stage))
    if not theirs or not ours:
        return None
    value = theirs / ours
    return Ratio(value, value, value, 0, 1, bounded=False)


def _stage(run: RunRecord, name: str) -> StageRecord | None:
    return next((stage for stage in run.stages if stage.name == name), None)


def _on_gpu(run: RunRecord) -> bool:
    return run.environment is not None and is_cuda(run.environment.device)


def _at_full_load(stage: StageRecord) -> bool:
    return any(pair.blocks for pair in stage.pairs) and all(pair.sustained for pair in stage.pairs if pair.blocks)


def baseline_seconds(run: RunRecord, order: Ranking) -> Estimate | None:
    """The time per call of the baseline that stages were interleaved with, over the samples of every ranked stage."""
    pairs = [pair for stage in run.stages if is_ranked(stage, order) for pair in stage.pairs]
    return seconds_per_call(pairs, "baseline") if pairs else None
