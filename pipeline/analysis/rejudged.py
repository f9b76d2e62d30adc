"""A finished run's stages under other limits of accuracy, from the figures that its record holds."""

from dataclasses import replace

from pipeline.records.data_words import Words
from pipeline.records.goals import AccuracyLimits
from pipeline.records.run_record import RunRecord, StageRecord

NOT_TIMED = "so it was not measured in this run, and keeps the limits that are asked for now; run it again with them"


def rejudged(run: RunRecord, limits: AccuracyLimits) -> RunRecord:
    """The run as if these limits had been asked for, as far as what was measured tells.

    A stage that misses one is inaccurate. One that only an earlier limit had refused is right again where it keeps
    these and was measured. What the stages' own tolerances refused stays so.
    """
    config = replace(run.config, accuracy=limits)
    return replace(run, config=config, stages=[_stage(stage, limits, run.words) for stage in run.stages])


def _stage(stage: StageRecord, limits: AccuracyLimits, words: Words) -> StageRecord:
    by_limit = stage.failure == "accuracy limit"
    if stage.accuracy is None or not (stage.status == "ok" or by_limit):
        return stage
    if missed := limits.missed(stage.accuracy, words):
        return replace(stage, status="inaccurate", failure="accuracy limit", reason=missed)
    if not by_limit:
        return stage
    if not stage.pairs:
        return replace(stage, reason=f"{stage.reason}, {NOT_TIMED}")
    return replace(stage, status="ok", failure=None, reason="")
