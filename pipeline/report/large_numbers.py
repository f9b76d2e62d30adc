"""The few large numbers behind the answer: how much faster, how long, how right, how much memory. Plain text."""

from dataclasses import dataclass

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.goals import psnr
from pipeline.records.run_record import EAGER
from pipeline.records.samples import Accuracy
from pipeline.report.answer import not_judged, speed_is_told
from pipeline.report.formatting import (
    NOTHING,
    interval,
    seconds,
    share,
    significant,
    size,
    spoken,
    times_as_fast,
)
from pipeline.report.sections import task_text

DRIFTED = 0.1  # of the baseline's time, from which on it isn't what the winner's ratio is to


@dataclass(frozen=True)
class Number:
    """A large number with what it is."""

    value: str
    label: str
    note: str = ""


def numbers(summary: RunSummary) -> list[Number]:
    """Three or four: how much faster, how long, how right, how much memory."""
    winner = summary.winner
    if winner is None or winner.pace is None:
        return []
    base = summary.stage(summary.baseline)
    beside, name = base if base is not winner else None, spoken(summary.baseline)
    count = summary.run.words.counted(summary.run.batch_size)
    every = [
        _speed(summary, winner) if speed_is_told(summary) else None,
        Number(
            seconds(winner.pace),
            f"for {count}{', at full load' if winner.sustained_seconds else ''}",
            _baselines_pace(name, base, winner),
        ),
        _accuracy(summary, winner),
        Number(
            size(winner.peak_bytes),
            "of the device's memory" if summary.on_gpu else "of memory",
            f"{name} takes {size(beside.peak_bytes)}" if beside and beside.peak_bytes else "",
        ),
    ]
    return [number for number in every if number and number.value != NOTHING]


def _baselines_pace(name: str, base: StageSummary | None, winner: StageSummary) -> str:
    """What the baseline takes; where it is no stage of its own, or drifted, what it took beside the winner.

    That is as the ratio has it.
    """
    if base is winner or winner.ratio is None:
        return ""
    if base is None or base.pace is None:
        return f"{name} took {seconds((winner.pace or 0.0) * winner.ratio.value)} beside it"
    own = winner.seconds if winner.sustained_seconds is None else None  # interleaved with the baseline's
    pace = base.pace
    beside = own.value * winner.ratio.value if own else pace
    if abs(beside / pace - 1) < DRIFTED:
        return f"{name} takes {seconds(pace)}"
    return f"{name} took {seconds(beside)} beside it, and {seconds(pace)} at another time"


def _speed(summary: RunSummary, stage: StageSummary) -> Number | None:
    found, eager = stage.ratio, stage.eager_ratio
    if found is None:
        return None
    notes = [f"95 % interval {interval(found)}"] if found.bounded and found.blocks else []
    notes += [f"{significant(eager.value)} × eager fp32"] if eager and summary.baseline != EAGER else []
    return Number(times_as_fast(found, 3), f"as fast as {spoken(summary.baseline)}", "; ".join(notes))


def _accuracy(summary: RunSummary, stage: StageSummary) -> Number | None:
    found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
    if found is None:
        return None
    if not summary.run.config.task.has_masks:
        return _value_error(summary, found, limit.relative_l2)
    if not summary.run.config.model.is_trained:
        said = f"relative L2 of the logits (limit {significant(limit.relative_l2, 2)})"
        return Number(significant(found.relative_l2, 2), said, not_judged(summary))
    words = summary.run.words
    label = f"of {words.points} change (limit {share(limit.flipped_share)})"
    return Number(share(found.flipped_share), label, f"on {words.counted(found.images)}, against fp32")


def _value_error(summary: RunSummary, found: Accuracy, limit: float) -> Number:
    """The error of answers that are no masks."""
    task, count = summary.run.config.task, f"on {summary.run.words.counted(found.images)}, against fp32"
    one_call = f"relative L2 {significant(found.relative_l2, 2)} (limit {significant(limit, 2)})"
    if task.name == "regression":
        return Number(f"{task_text.decibels(psnr(found))} dB", f"PSNR; {one_call}", count)
    if found.final_error is None:
        return Number(significant(found.relative_l2, 2), f"relative L2 (limit {significant(limit, 2)})", count)
    label = f"relative L2 of the final latents; of one step {one_call.removeprefix('relative L2 ')}"
    return Number(significant(found.final_error, 2), label, count)
