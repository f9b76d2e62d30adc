"""A stage's layers and levels: what each took, by the profile, and what it had to do. Records in, figures out."""

from collections import defaultdict
from dataclasses import dataclass

from pipeline.analysis.roofline import Roofs
from pipeline.records.diagnostics import SKIP, LayerTime, LayerWork
from pipeline.records.run_record import RunRecord, StageRecord

BETWEEN = "between layers"  # what the record calls ""


@dataclass(frozen=True)
class Part:
    """A layer or a level in one stage, per call."""

    name: str
    kind: str
    level: str
    seconds: float
    launches: float
    flops: float
    moved_bytes: float  # at least: inputs, outputs and weights once
    layers: tuple[str, ...] = ()  # the net's that it is: two that a stage does as one, none of a level

    @property
    def has_work(self) -> bool:
        """Whether the record says what it had to do."""
        return self.flops > 0 or self.moved_bytes > 0


@dataclass(frozen=True)
class Work:
    """One layer of the net, or two that a stage does as one."""

    timed: str  # the layer that has the time
    layers: list[LayerWork]

    def flops(self, batch: int) -> float:
        """Of a batch."""
        return float(batch * sum(layer.flops for layer in self.layers))

    def moved_bytes(self, batch: int, element_bytes: int) -> float:
        """Through memory at the least: the first's input and the last's output of each image, all weights once."""
        through = self.layers[0].read_elements + self.layers[-1].written_elements
        return float(element_bytes * (batch * through + sum(layer.weight_elements for layer in self.layers)))


def parts(run: RunRecord, stage: StageRecord, element_bytes: int) -> list[Part]:
    """Every layer that the profile gave time, in the net's order; those that the net doesn't know come last.

    A layer with no time of its own was folded into a neighbour. Where both have FLOPs the two are one part, such as
    the last convolution and a head in its epilogue.
    """
    times = {time.name: time for time in stage.diagnostics.layers} if stage.diagnostics else {}
    works = works_of(run.reference.layers if run.reference else [], set(times))
    found = [_part(times.pop(work.timed), work, run.batch_size, element_bytes) for work in works]
    return [*found, *(_bare(time) for time in times.values())]


def works_of(layers: list[LayerWork], timed: set[str]) -> list[Work]:
    """The timed layers, each with the one untimed layer with FLOPs right before it; the last also with one after it.

    What lies between layers, which the record calls "" or skip connections, is nobody's neighbour.
    """
    works: list[Work] = []
    waiting: list[LayerWork] = []
    apart = [layer for layer in layers if layer.name in ("", SKIP)]
    for layer in [layer for layer in layers if layer not in apart]:
        if layer.name in timed:
            works.append(Work(layer.name, [*(waiting if layer.flops and len(waiting) == 1 else []), layer]))
            waiting = []
        elif layer.flops:
            waiting.append(layer)
    computing = [work for work in works if work.layers[-1].flops]
    if computing and len(waiting) == 1 and len(computing[-1].layers) == 1:
        computing[-1].layers.extend(waiting)
    return [*works, *(Work(layer.name, [layer]) for layer in apart if layer.name in timed)]


def _part(time: LayerTime, work: Work, batch: int, element_bytes: int) -> Part:
    first = work.layers[0]
    name = " with ".join(layer.name or BETWEEN for layer in work.layers)
    moved = work.moved_bytes(batch, element_bytes)
    flops, layers = work.flops(batch), tuple(layer.name for layer in work.layers)
    return Part(name, first.kind, first.level, time.seconds_per_call, time.launches_per_call, flops, moved, layers)


def _bare(time: LayerTime) -> Part:
    """Time of what the untouched net has no layer for."""
    return Part(time.name or BETWEEN, "", BETWEEN, time.seconds_per_call, time.launches_per_call, 0.0, 0.0)


def level_parts(found: list[Part]) -> list[Part]:
    """The layers summed by level, in the order in which they are met."""
    together: dict[str, list[Part]] = defaultdict(list)
    for part in found:
        together[part.level].append(part)
    return [summed(level, inside) for level, inside in together.items()]


def summed(name: str, inside: list[Part]) -> Part:
    """Several parts as one."""
    return Part(
        name,
        "",
        name,
        sum(part.seconds for part in inside),
        sum(part.launches for part in inside),
        sum(part.flops for part in inside),
        sum(part.moved_bytes for part in inside),
    )


def to_be_won(part: Part, roofs: Roofs) -> float | None:
    """Seconds above the roof; None where the record doesn't say what the part had to do."""
    if not part.has_work:
        return None
    return max(0.0, part.seconds - roofs.least_seconds(part.flops, part.moved_bytes))


def won_by_level(found: list[Part], roofs: Roofs) -> dict[str, float]:
    """Seconds above the roof, summed over each level's layers; the most first."""
    total: dict[str, float] = defaultdict(float)
    for part in found:
        total[part.level] += to_be_won(part, roofs) or 0.0
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))
