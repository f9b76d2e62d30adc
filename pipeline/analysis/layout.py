"""What changes of layout cost each stage, and where they are."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from pipeline.analysis.attribution import way
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import LayoutChange, PlaceKind
from pipeline.records.run_record import StageRecord

WORTH_NAMING = 0.02  # share of the stage's time
MOST = 4  # stages that are named
GONE = 10  # times fewer milliseconds than the stage before: then the changes are gone


@dataclass(frozen=True)
class LayoutCost:
    """The changes of layout of one stage, the longest first, and what they take of a call."""

    stage: StageSummary
    changes: list[LayoutChange]

    @property
    def count(self) -> float:
        """How many run in a call: what a graph names is there a second time as the kernel that did it, if it ran."""
        return sum(change.times_per_call for change in self.changes if change.source != "ONNX graph")

    @property
    def planned(self) -> int:
        """How many the exported graph names."""
        return sum(change.source == "ONNX graph" for change in self.changes)

    @property
    def seconds(self) -> float | None:
        """What those cost a call whose time is known; None where no change has one."""
        known = [change.seconds_per_call for change in self.changes if change.seconds_per_call is not None]
        return sum(known) if known else None

    @property
    def share(self) -> float | None:
        """Of the stage's time, what its changes of layout take; None where its profile was taken at another pace."""
        if self.seconds is None or not self.stage.seconds or self.stage.bottleneck.reason == "other pace":
            return None
        return self.seconds / self.stage.seconds.value

    @property
    def pays(self) -> bool:
        """Whether the share is worth naming."""
        return (self.share or 0.0) >= WORTH_NAMING

    @property
    def generated_only(self) -> bool:
        """Whether kernels that a compiler generated make all of them, beside other work."""
        return all(change.source == "generated code" for change in self.changes)

    @property
    def largest(self) -> LayoutChange | None:
        """The one that takes longest."""
        return max(self.changes, key=lambda change: change.seconds_per_call or 0.0, default=None)

    @property
    def worst_place(self) -> tuple[tuple[str, PlaceKind | None] | None, float]:
        """The place where they take longest, what its name names, and how long; None where nothing says."""
        at: dict[tuple[str, PlaceKind | None] | None, float] = defaultdict(float)
        for change in self.changes:
            at[(change.where, change.where_kind) if change.where else None] += change.seconds_per_call or 0.0
        place = max(at, key=lambda name: at[name])
        return place, at[place]


def changes_of(stage: StageRecord) -> list[LayoutChange]:
    """The changes that the record names, the longest first."""
    changes = stage.diagnostics.layout if stage.diagnostics else []
    return sorted(changes, key=lambda change: -(change.seconds_per_call or 0.0))


def costs(summary: RunSummary) -> list[LayoutCost]:
    """Of every ranked stage with diagnostics."""
    return [LayoutCost(stage, changes_of(stage.stage)) for stage in summary.ranked if stage.stage.diagnostics]


def most_costly(summary: RunSummary) -> list[LayoutCost]:
    """The stages that pay most for changes of layout, in the ladder's order."""
    every = costs(summary)
    most = sorted((cost for cost in every if cost.pays), key=lambda cost: -(cost.share or 0.0))[:MOST]
    return [cost for cost in every if cost in most]


def gone(summary: RunSummary) -> list[tuple[LayoutCost, LayoutCost]]:
    """Neighbours on the way to the winner of which the second got rid of the first one's changes."""
    path = [LayoutCost(stage, changes_of(stage.stage)) for stage in way(summary)[0]]
    return [
        (before, after)
        for before, after in pairwise(path)
        if before.pays and (after.seconds or 0.0) * GONE <= (before.seconds or 0.0)
    ]
