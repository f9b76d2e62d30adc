"""What a stage's memory is: weights, activations, workspace, context; and how the rungs differ in it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import MemoryTimeline
from pipeline.records.samples import Memory

Part = Literal["weights", "held besides", "activations", "workspace", "in reserve", "context", "outside torch"]
PARTS: tuple[Part, ...] = get_args(Part)
ALLOCATED: tuple[Part, ...] = ("weights", "held besides", "activations", "workspace")  # at the peak of a call
Unknown = Literal["", "no timeline", "nothing allocated", "no workspace"]

LEAST_POINTS = 4  # of a timeline worth drawing: beginning, peak and end are in the table
WORTH_NAMING = 0.05  # of the peak, by which a neighbour's part must differ
NEAR = 0.1  # of the peak


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes of one stage by what they are; None where nobody knows."""

    stage: StageSummary
    amounts: dict[Part, int | None]
    unknown: Unknown  # why something isn't known

    @property
    def timeline(self) -> MemoryTimeline | None:
        """Allocated bytes through one call."""
        return timeline_of(self.stage)

    @property
    def allocated(self) -> int:
        """At the peak of one call."""
        return sum(self.amounts[part] or 0 for part in ALLOCATED)

    @property
    def total(self) -> int:
        """All that is known."""
        return sum(amount or 0 for amount in self.amounts.values())

    @property
    def process_bytes(self) -> int | None:
        """The whole process as the device sees it."""
        return self.stage.stage.memory.process_bytes if self.stage.stage.memory else None

    @property
    def resident_bytes(self) -> int | None:
        """In the host's memory at its peak, where the device tells nothing."""
        memory = self.stage.stage.memory
        return memory.host_peak_bytes if memory and self.process_bytes is None else None

    @property
    def mostly_workspace(self) -> bool:
        """Whether more than half of what is allocated at the peak is workspace."""
        return (self.amounts["workspace"] or 0) > self.allocated / 2

    @property
    def moments_near_peak(self) -> int:
        """How many other readings come within a tenth of the peak."""
        amounts = self.timeline.allocated_bytes if self.timeline else []
        return sum(amount >= (1 - NEAR) * max(amounts) for amount in amounts) - 1


@dataclass(frozen=True)
class MemoryStep:
    """What the device sees of one stage and of the next one, and the allocated peak of a call of both."""

    before: MemoryFigures
    after: MemoryFigures

    @property
    def seen(self) -> tuple[int, int] | None:
        """Bytes of both processes as the device sees them; None where it says nothing of one."""
        old, new = self.before.process_bytes, self.after.process_bytes
        return None if old is None or new is None else (old, new)

    @property
    def changes(self) -> dict[Part, int]:
        """The parts that changed by more than a twentieth of the peak, in bytes."""
        by = {part: (self.after.amounts[part] or 0) - (self.before.amounts[part] or 0) for part in ALLOCATED}
        return {part: change for part, change in by.items() if abs(change) > WORTH_NAMING * self.before.allocated}

    @property
    def direction(self) -> Literal["same", "falls", "rises"]:
        """Of the whole peak."""
        old, new = self.before.allocated, self.after.allocated
        return "same" if abs(new - old) <= WORTH_NAMING * old else "falls" if new < old else "rises"


def timeline_of(stage: StageSummary) -> MemoryTimeline | None:
    """Allocated bytes through one call of the stage."""
    return stage.stage.diagnostics.timeline if stage.stage.diagnostics else None


def figures_of(stage: StageSummary) -> MemoryFigures:
    """A stage's memory by what it is."""
    timeline = timeline_of(stage)
    if timeline is None:
        return MemoryFigures(stage, dict.fromkeys(PARTS), "no timeline")
    pooled = timeline.workspace_bytes is None and timeline.activations_bytes == 0
    amounts = {**_allocated(timeline, pooled), **_around(timeline, stage.stage.memory)}
    known = {part: None if amount is None else max(0, amount) for part, amount in amounts.items()}
    blind: Unknown = "no workspace" if timeline.workspace_bytes is None else ""
    return MemoryFigures(stage, known, "nothing allocated" if pooled else blind)


def _allocated(timeline: MemoryTimeline, pooled: bool) -> dict[Part, int | None]:
    """What the call's peak is made of."""
    return {
        "weights": timeline.weights_bytes,
        "held besides": timeline.held_bytes - (timeline.weights_bytes or 0),
        "activations": None if pooled else timeline.activations_bytes,
        "workspace": timeline.workspace_bytes,
    }


def _around(timeline: MemoryTimeline, memory: Memory | None) -> dict[Part, int | None]:
    """What the process holds besides."""
    reserved, seen = (memory.reserved_peak_bytes, memory.process_bytes) if memory else (None, None)
    context = timeline.context_bytes
    peak = timeline.held_bytes + timeline.activations_bytes + (timeline.workspace_bytes or 0)
    unseen = seen is None or reserved is None or context is None
    return {
        "in reserve": None if reserved is None else reserved - peak,
        "context": context,
        "outside torch": None if unseen else (seen or 0) - (reserved or 0) - (context or 0),
    }


def memories(summary: RunSummary) -> list[MemoryFigures]:
    """Of every ranked stage with diagnostics."""
    return [figures_of(stage) for stage in summary.ranked if stage.stage.diagnostics]


def with_workspace(figures: list[MemoryFigures]) -> list[MemoryFigures]:
    """Those whose workspace is known, so that their peaks can be compared part by part."""
    return [each for each in figures if each.amounts["workspace"] is not None]


def steps(figures: list[MemoryFigures]) -> list[MemoryStep]:
    """Each stage whose parts are known against the one before it."""
    return [MemoryStep(before, after) for before, after in pairwise(with_workspace(figures))]


def peak_layer(stage: StageSummary) -> str:
    """The layer that ran at the peak; empty where nobody knows."""
    timeline = timeline_of(stage)
    return (timeline.peak_layer or "") if timeline else ""


def is_convolution_by_cudnn(summary: RunSummary, layer: str) -> bool:
    """Whether cuDNN is there and the layer is a convolution, so that cuDNN chose its algorithm."""
    kinds = {each.name: each.kind for each in summary.run.reference.layers} if summary.run.reference else {}
    machine = summary.run.environment
    return "Conv" in kinds.get(layer, "") and machine is not None and machine.cudnn is not None


def watched(summary: RunSummary) -> tuple[list[StageSummary], list[StageSummary]]:
    """Stages whose timeline is worth drawing: the baseline and the winner, and then the others."""
    rows = [
        stage for stage in summary.ranked if (timeline := timeline_of(stage)) and len(timeline.seconds) >= LEAST_POINTS
    ]
    first = [stage for stage in rows if stage.name in (summary.run.baseline, summary.ranking.winner)]
    return first, [stage for stage in rows if stage not in first]


def device_bytes(summary: RunSummary, figures: list[MemoryFigures]) -> tuple[int, int] | None:
    """What the winner and the baseline need of the device; None where either is unknown, or they are the same."""
    seen = {each.stage.name: each.process_bytes for each in figures if each.process_bytes}
    winner, baseline = seen.get(summary.ranking.winner or ""), seen.get(summary.run.baseline)
    if summary.ranking.winner == summary.run.baseline or winner is None or baseline is None:
        return None
    return winner, baseline
