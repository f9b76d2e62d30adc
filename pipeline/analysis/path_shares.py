"""What the net is of the whole path from the host's memory and back, and what each move around it buys."""

from dataclasses import dataclass
from statistics import median

from pipeline.records.run_record import StageRecord
from pipeline.stats.intervals import seconds_per_call


@dataclass(frozen=True)
class Move:
    """A layout of the path.

    Attributes:
        name: what was moved last.
        seconds: of a call, the median of its samples.
        bought: how many times as fast as the layout before it; None of the first.
        bytes_moved: up and down, of a call.
    """

    name: str
    seconds: float
    bought: float | None
    bytes_moved: int


def moves(stage: StageRecord) -> list[Move]:
    """The layouts of a stage's path in their order; none where none was measured."""
    found: list[Move] = []
    for part in stage.host_path:
        seconds = median(part.seconds_per_call)
        bought = found[-1].seconds / seconds if found else None
        found.append(Move(part.move, seconds, bought, part.bytes_in + part.bytes_out))
    return found


def net_share(stage: StageRecord, seconds: float) -> float | None:
    """The net's own time as a share of a call's, 0 to 1, where it takes less; None where either is unknown."""
    if not stage.pairs or not seconds:
        return None
    return min(1.0, seconds_per_call(stage.pairs).value / seconds)
