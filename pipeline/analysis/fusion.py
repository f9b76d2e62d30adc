"""How much is launched and moved, and what a compiler put into one kernel."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from pipeline.analysis.attribution import way
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.analysis.traffic import Moved, Source, counted, moved
from pipeline.records.diagnostics import FusedKernel, Fusion

WORTH_NAMING = 0.05  # of a rung's kernels or bytes


@dataclass(frozen=True)
class FusionFigures:
    """One stage's kernels and bytes per call."""

    stage: StageSummary
    fusion: Fusion
    kernels_share: float | None  # of the baseline's
    bytes_share: float | None  # of the baseline's; None where the two were counted differently

    @property
    def counted_bytes(self) -> int | None:
        """To and from device memory, by the GPU's counters."""
        seen = counted(self.stage.stage)
        return seen.moved_bytes if seen else None

    @property
    def cache_bytes(self) -> int | None:
        """Asked of the L2 cache, by the same counters."""
        seen = counted(self.stage.stage)
        return seen.cache_bytes if seen else None

    @property
    def directions(self) -> Counter[str]:
        """How many of the generated kernels fuse chains, siblings or nothing."""
        return Counter(kernel.direction for kernel in self.fusion.kernels)

    @property
    def best_moved(self) -> Moved:
        """The bytes by the counters where they were read, else as the operators have them."""
        return moved(self.stage.stage)

    @property
    def recorded_moved(self) -> Moved:
        """The bytes by the operators, also where counters were read."""
        return Moved(self.fusion.bytes_per_call, self.fusion.bytes_source, self.fusion.bytes_unknown)


@dataclass(frozen=True)
class FusionStep:
    """Kernels and bytes of one rung and of a later one."""

    before: FusionFigures
    after: FusionFigures

    @property
    def worth_naming(self) -> bool:
        """Whether the kernels changed by enough, or the bytes; those that can't be compared count as a change."""
        kernels = self.before.fusion.kernels_per_call, self.after.fusion.kernels_per_call
        amounts = [kernels, *([self.through] if self.through else [])]
        return self.through is None or any(abs(old - new) >= WORTH_NAMING * old for old, new in amounts)

    @property
    def through(self) -> tuple[int, int] | None:
        """The bytes of both, counted the same way; None where no count has both."""
        for old, new in [
            (self.before.best_moved, self.after.best_moved), (self.before.recorded_moved, self.after.recorded_moved)
        ]:  # fmt: skip
            if old.amount is not None and new.amount is not None and old.source == new.source:
                return old.amount, new.amount
        return None

    @property
    def both_known(self) -> bool:
        """Whether somebody counted the bytes of each."""
        return self.before.best_moved.amount is not None and self.after.best_moved.amount is not None


def fusions(summary: RunSummary) -> list[FusionFigures]:
    """The ranked stages whose fusion is on record."""
    known = [
        (stage, stage.stage.diagnostics.fusion)
        for stage in summary.ranked
        if stage.stage.diagnostics and stage.stage.diagnostics.fusion
    ]
    first = next((fusion for stage, fusion in known if fusion and stage.name == summary.run.baseline), None)
    return [_figures(stage, fusion, first) for stage, fusion in known if fusion]


def _figures(stage: StageSummary, fusion: Fusion, first: Fusion | None) -> FusionFigures:
    kernels, through = (first.kernels_per_call, first.bytes_per_call) if first else (None, None)
    fewer = fusion.kernels_per_call / kernels if kernels else None
    alike = first is not None and first.bytes_source == fusion.bytes_source
    less = fusion.bytes_per_call / through if alike and through and fusion.bytes_per_call else None
    return FusionFigures(stage, fusion, fewer, less)


def steps(figures: list[FusionFigures], summary: RunSummary) -> list[FusionStep]:
    """The whole way to the winner, then each rung on it; those that changed little are left out."""
    by_name = {figure.stage.name: figure for figure in figures}
    path = [by_name[stage.name] for stage in way(summary)[0] if stage.name in by_name]
    pairs = list(pairwise(path))
    ends = [(path[0], path[-1])] if len(pairs) > 1 else []
    every = [FusionStep(before, after) for before, after in [*ends, *pairs]]
    return [step for step in every if step.worth_naming]


def by_count(figures: list[FusionFigures]) -> dict[Source, list[tuple[FusionFigures, int]]]:
    """The stages with their known bytes, those counted the same way together: only they can be compared."""
    found: dict[Source, list[tuple[FusionFigures, int]]] = {}
    for each in figures:
        for through in {each.best_moved, each.recorded_moved}:
            if through.amount and through.source:
                found.setdefault(through.source, []).append((each, through.amount))
    return found


def kernel_seconds(stage: StageSummary, kernel: FusedKernel) -> float | None:
    """Seconds per call of a generated kernel; None where the profile doesn't know its name."""
    rows = stage.stage.profile.kernels if stage.stage.profile else []
    return {row.name: row.seconds_per_call for row in rows}.get(kernel.name)
