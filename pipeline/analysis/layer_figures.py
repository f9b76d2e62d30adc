"""A stage's layers and levels: the time that each took, according to the profile, and the work that it had to do."""

from collections import defaultdict
from dataclasses import dataclass

from pipeline.analysis.roofline import Roofline
from pipeline.records.diagnostics import SKIP, LayerTime, LayerWork
from pipeline.records.run_record import RunRecord, StageRecord

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
    layers: tuple[str, ...] = ()  # of the net: two where the stage does them as one, none for a level

    @property
    def has_work(self) -> bool:
        """Whether the record says what it had to do."""
        return self.flops > 0 or self.moved_bytes > 0


@dataclass(frozen=True)
class LayerGroup:
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


def layers_of(run: RunRecord, stage: StageRecord, element_bytes: int) -> list[LayerFigures]:
    """Every layer that the profile gave time, in the net's order; those that the net doesn't know come last.

    A layer with no time of its own was folded into a neighbour. Where both have FLOPs the two are one part, such as
    the last convolution and a head in its epilogue.
    """
    times = {time.name: time for time in stage.diagnostics.layers} if stage.diagnostics else {}
    groups = groups_of(run.reference.layers if run.reference else [], set(times))
    found = [_figures(times.pop(group.timed), group, run.batch_size, element_bytes) for group in groups]
    return [*found, *(_bare(time) for time in times.values())]


def groups_of(layers: list[LayerWork], timed: set[str]) -> list[LayerGroup]:
    """The timed layers, each with the one untimed layer with FLOPs right before it; the last also with one after it.

    What lies between layers, which the record calls "" or skip connections, is nobody's neighbour.
    """
    groups: list[LayerGroup] = []
    waiting: list[LayerWork] = []
    apart = [layer for layer in layers if layer.name in ("", SKIP)]
    for layer in [layer for layer in layers if layer not in apart]:
        if layer.name in timed:
            groups.append(LayerGroup(layer.name, [*(waiting if layer.flops and len(waiting) == 1 else []), layer]))
            waiting = []
        elif layer.flops:
            waiting.append(layer)
    computing = [group for group in groups if group.layers[-1].flops]
    if computing and len(waiting) == 1 and len(computing[-1].layers) == 1:
        computing[-1].layers.extend(waiting)
    return [*groups, *(LayerGroup(layer.name, [layer]) for layer in apart if layer.name in timed)]


def _figures(time: LayerTime, group: LayerGroup, batch: int, element_bytes: int) -> LayerFigures:
    first = group.layers[0]
    name = " with ".join(layer.name or BETWEEN for layer in group.layers)
    moved = group.moved_bytes(batch, element_bytes)
    flops, layers = group.flops(batch), tuple(layer.name for layer in group.layers)
    return LayerFigures(
        name, first.kind, first.level, time.seconds_per_call, time.launches_per_call, flops, moved, layers
    )


def _bare(time: LayerTime) -> LayerFigures:
    """The time of what the untouched net has no layer for."""
    return LayerFigures(time.name or BETWEEN, "", BETWEEN, time.seconds_per_call, time.launches_per_call, 0.0, 0.0)


def levels_of(layers: list[LayerFigures]) -> list[LayerFigures]:
    """The layers summed by level, in the order in which they are met."""
    together: dict[str, list[LayerFigures]] = defaultdict(list)
    for part in layers:
        together[part.level].append(part)
    return [combined(level, inside) for level, inside in together.items()]


def combined(name: str, inside: list[LayerFigures]) -> LayerFigures:
    """The sum of several layers."""
    return LayerFigures(
        name,
        "",
        name,
        sum(part.seconds for part in inside),
        sum(part.launches for part in inside),
        sum(part.flops for part in inside),
        sum(part.moved_bytes for part in inside),
    )


def seconds_above(part: LayerFigures, roofline: Roofline) -> float | None:
    """Seconds above the roofline; None where the record does not say what the layer had to do."""
    if not part.has_work:
        return None
    return max(0.0, part.seconds - roofline.least_seconds(part.flops, part.moved_bytes))


def seconds_above_by_level(found: list[LayerFigures], roofline: Roofline) -> dict[str, float]:
    """Seconds above the roofline, summed over the layers of each level; the most first."""
    total: dict[str, float] = defaultdict(float)
    for part in found:
        total[part.level] += seconds_above(part, roofline) or 0.0
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))
