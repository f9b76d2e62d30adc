"""Bytes that a stage moves: through device memory, counted in several ways, and between host and device."""

from dataclasses import dataclass
from statistics import median
from typing import Literal

from pipeline.records.diagnostics import BytesSource
from pipeline.records.run_record import StageRecord
from pipeline.stats.intervals import seconds_per_call

# The counts that a record holds, and lower bounds: each layer's input and output once; those of the layers with FLOPs.
Source = BytesSource | Literal["layers", "computing layers"]
BY_COUNTERS: BytesSource = "hardware counters"


@dataclass(frozen=True)
class Moved:
    """Bytes through device memory in one call, and how they are known."""

    amount: int | None
    source: Source | None
    unknown: str = ""  # why they are unknown; empty where they are known


@dataclass(frozen=True)
class Move:
    """One arrangement of the path from host memory and back."""

    name: str  # the last part that was moved
    seconds: float  # of a call, the median of its samples
    bought: float | None  # how many times as fast as the layout before it; None of the first


def moved(stage: StageRecord) -> Moved:
    """Return the bytes through device memory in one call: by the counters, else by the operators."""
    if seen := stage.explained.counted:
        return Moved(seen.moved_bytes, BY_COUNTERS)
    fusion = stage.explained.fusion
    if fusion is None:
        return Moved(None, None, "nothing on record")
    return Moved(fusion.bytes_per_call, fusion.bytes_source, fusion.bytes_unknown)


def moves(stage: StageRecord) -> list[Move]:
    """Return the layouts of a stage's path in their order; none where none was measured."""
    found: list[Move] = []
    for path in stage.host_path:
        seconds = median(path.seconds_per_call)
        bought = found[-1].seconds / seconds if found else None
        found.append(Move(path.move, seconds, bought))
    return found


def net_share(stage: StageRecord, seconds: float) -> float | None:
    """Return the network's own time as a share of a call's, at most 1; None where either is unknown."""
    if not stage.pairs or not seconds:
        return None
    return min(1.0, seconds_per_call(stage.pairs).value / seconds)
