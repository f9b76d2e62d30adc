"""Which stages a person may sensibly choose: those that no other one is better than in everything that counts."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary

# Differences that nobody would choose by.
TIME_SHARE = 0.05
MEMORY_SHARE = 0.10
ERROR = 1e-4  # of all pixels, or of the answers' size
SETUP_FACTOR, SETUP_SECONDS = 1.5, 2.0  # both


@dataclass(frozen=True)
class Figures:
    """What a stage is chosen by; less is better in all of it, None is unknown."""

    seconds: float | None  # per call
    error: float | None  # share of pixels that change their class; of a net without masks the relative L2
    memory_bytes: int | None
    setup_seconds: float | None


def figures_of(stage: StageSummary) -> Figures:
    """Of a ranked stage."""
    accuracy, error = stage.stage.accuracy, None
    if accuracy is not None:
        error = accuracy.relative_l2 if accuracy.flipped_share is None else accuracy.flipped_share
    return Figures(stage.pace, error, stage.peak_bytes, stage.setup_seconds)


def choices(summary: RunSummary) -> list[StageSummary]:
    """The ranked stages that no other one dominates, fastest first; the winner and its ties are always among them."""
    order = [stage for name in summary.ranking.order if (stage := summary.stage(name)) and stage.ranked]
    figures = [figures_of(stage) for stage in order]
    return [
        stage
        for place, stage in enumerate(order)
        if stage.place or not any(dominates(faster, figures[place]) for faster in figures[:place])
    ]


def dominates(faster: Figures, slower: Figures) -> bool:
    """Whether the faster one is not noticeably worse in anything, so that no reason is left to take the slower one."""
    return not (
        _worse(faster.seconds, slower.seconds, lambda a, b: a > b * (1 + TIME_SHARE))
        or _worse(faster.error, slower.error, lambda a, b: a > b + ERROR)
        or _worse(faster.memory_bytes, slower.memory_bytes, lambda a, b: a > b * (1 + MEMORY_SHARE))
        or _worse(faster.setup_seconds, slower.setup_seconds, lambda a, b: a > max(b * SETUP_FACTOR, b + SETUP_SECONDS))
    )


def _worse(one: float | None, other: float | None, noticeably: Callable[[float, float], bool]) -> bool:
    return one is not None and other is not None and noticeably(one, other)
