"""A stage's layers and levels: the time that each took, according to the profile, and the work that it had to do."""

from collections import defaultdict
from dataclasses import dataclass

from pipeline.analysis.layer_groups import LayerGroup, element_bytes, groups_of
from pipeline.analysis.roofline import Roofline
from pipeline.records.diagnostics import LayerTime
from pipeline.records.run_record import Execution, Precision, RunRecord, StageRecord

BETWEEN = "between layers"  # what the record calls ""


@dataclass(frozen=True)
class LayerFigures:
    """A layer or a level in one stage, per call."""

    name: str
    kind: str
    level: str
    seconds: float
    launches: float
    flops: float
    moved_bytes: float  # at least: inputs, outputs and weights once
    compute_seconds: float  # its FLOPs at the peak of its own precision
    memory_seconds: float  # its bytes at the measured bandwidth
    layers: tuple[str, ...] = ()  # of the net: two where the stage does them as one, none for a level
    precision: Precision | None = None  # None for a level, and where nobody knows

    @property
    def has_work(self) -> bool:
        """Whether the record says what it had to do."""
        return self.flops > 0 or self.moved_bytes > 0

    @property
    def least_seconds(self) -> float:
        """The time on its roofline."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def shares(self) -> tuple[float, float]:
        """Of the arithmetic and of the bandwidth; the larger one is its share of the roofline."""
        if self.seconds <= 0:
            return 0.0, 0.0
        return self.compute_seconds / self.seconds, self.memory_seconds / self.seconds

    @property
    def seconds_above(self) -> float | None:
        """Seconds above its roofline, below 0 where it is faster; None where the record doesn't say what it did."""
        return self.seconds - self.least_seconds if self.has_work else None


def layers_of(run: RunRecord, stage: StageRecord, roofline: Roofline) -> list[LayerFigures]:
    """Every layer that the profile gave time, in the net's order; those that the net doesn't know come last.

    A layer with no time of its own was folded into a neighbour. Where both have FLOPs the two are one part, such as
    the last convolution and a head in its epilogue. Each is held against the roofs of its own precision.
    """
    times = {time.name: time for time in stage.diagnostics.layers} if stage.diagnostics else {}
    execution = stage.execution or Execution(roofline.precision)
    groups = groups_of(run.reference.layers if run.reference else [], set(times))
    sizes = element_bytes(groups, execution)
    found = []
    for group, size in zip(groups, sizes, strict=True):
        work = group.multiplied(run.batch_size, execution), group.moved_bytes(run.batch_size, *size)
        found.append(_figures(times.pop(group.timed), group, work, group.precision(execution), roofline))
    return [*found, *(_bare(time) for time in times.values())]


def _figures(
    time: LayerTime, group: LayerGroup, work: tuple[float, float], precision: Precision | None, roofline: Roofline
) -> LayerFigures:
    first, (flops, moved) = group.layers[0], work
    return LayerFigures(
        name=" with ".join(layer.name or BETWEEN for layer in group.layers),
        kind=first.kind,
        level=first.level,
        seconds=time.seconds_per_call,
        launches=time.launches_per_call,
        flops=flops,
        moved_bytes=moved,
        compute_seconds=flops / roofline.rate(precision),
        memory_seconds=moved / roofline.bytes_per_s,
        layers=tuple(layer.name for layer in group.layers),
        precision=precision,
    )


def _bare(time: LayerTime) -> LayerFigures:
    """The time of what the untouched net has no layer for."""
    seconds, launches = time.seconds_per_call, time.launches_per_call
    return LayerFigures(time.name or BETWEEN, "", BETWEEN, seconds, launches, 0.0, 0.0, 0.0, 0.0)


def levels_of(layers: list[LayerFigures]) -> list[LayerFigures]:
    """The layers summed by level, in the order in which they are met."""
    together: dict[str, list[LayerFigures]] = defaultdict(list)
    for part in layers:
        together[part.level].append(part)
    return [combined(level, inside) for level, inside in together.items()]


def combined(name: str, inside: list[LayerFigures]) -> LayerFigures:
    """The sum of several layers."""
    return LayerFigures(
        name=name,
        kind="",
        level=name,
        seconds=sum(part.seconds for part in inside),
        launches=sum(part.launches for part in inside),
        flops=sum(part.flops for part in inside),
        moved_bytes=sum(part.moved_bytes for part in inside),
        compute_seconds=sum(part.compute_seconds for part in inside),
        memory_seconds=sum(part.memory_seconds for part in inside),
    )


def seconds_above_by_level(found: list[LayerFigures]) -> dict[str, float]:
    """What the layers of each level that are above their rooflines would save on them, in seconds; the most first."""
    total: dict[str, float] = defaultdict(float)
    for part in found:
        total[part.level] += max(0.0, part.seconds_above or 0.0)
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def seconds_below(found: list[LayerFigures]) -> float:
    """By how much the layers that are faster than their rooflines are so, in all."""
    return sum(max(0.0, -(part.seconds_above or 0.0)) for part in found)
