"""The parts that a profile gives time to, a layer of the net or two that run as one, and the precision of each."""

from dataclasses import dataclass

from pipeline.records.diagnostics import SKIP, LayerWork
from pipeline.records.run_record import Execution, Precision, StageRecord

ELEMENT_BYTES: dict[Precision, int] = {"int8": 1, "fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
LEAST_ANSWER_BYTES = 2  # of a logit: fp8 could not hold it, and no kernel writes it


@dataclass(frozen=True)
class LayerGroup:
    """One layer of the net, or two that a stage does as one."""

    timed: str  # the layer that has the time
    layers: list[LayerWork]

    def flops(self, batch: int) -> float:
        """Of a batch, by the net's own layers."""
        return float(batch * sum(layer.flops for layer in self.layers))

    def multiplied(self, batch: int, execution: Execution) -> float:
        """Of a batch, what the stage really multiplies: a composed layer does with less than the net's own."""
        own = execution.layer_flops.get(self.timed)
        return self.flops(batch) if own is None else batch * own

    def moved_bytes(self, batch: int, read_bytes: int, written_bytes: int) -> float:
        """Through memory at the least: the first's input and the last's output of each image, all weights once.

        Args:
            batch: images in a call.
            read_bytes: of an element of the input, or of a weight.
            written_bytes: of an element of the output.
        """
        weights = sum(layer.weight_elements for layer in self.layers)
        read, written = self.layers[0].read_elements, self.layers[-1].written_elements
        return float(read_bytes * (batch * read + weights) + written_bytes * batch * written)

    def precision(self, execution: Execution) -> Precision | None:
        """What it computes in: of two that run as one kernel, the one whose precision is its own decides."""
        own = (execution.layer_precision.get(layer.name) for layer in reversed(self.layers))
        return next((precision for precision in own if precision), execution.precision)


def groups_of(layers: list[LayerWork], timed: set[str]) -> list[LayerGroup]:
    """The timed layers, each with the one untimed layer with FLOPs right before it; the last also with one after it.

    What lies between layers, which the record calls "" or skip connections, is nobody's neighbour.
    """
    groups: list[LayerGroup] = []
    waiting: list[LayerWork] = []
    apart = [layer for layer in layers if layer.name in ("", SKIP)]
    for layer in [layer for layer in layers if layer.name not in ("", SKIP)]:
        if layer.name in timed:
            groups.append(LayerGroup(layer.name, [*(waiting if layer.flops and len(waiting) == 1 else []), layer]))
            waiting = []
        elif layer.flops:
            waiting.append(layer)
    computing = [group for group in groups if group.layers[-1].flops]
    if computing and len(waiting) == 1 and len(computing[-1].layers) == 1:
        computing[-1].layers.extend(waiting)
    return [*groups, *(LayerGroup(layer.name, [layer]) for layer in apart if layer.name in timed)]


def element_bytes(groups: list[LayerGroup], execution: Execution) -> list[tuple[int, int]]:
    """Of each group, in the net's order, the bytes of an element that it reads and of one that it writes.

    It writes what the next group reads; the last one with FLOPs writes the answer. 0 where nobody knows the precision.
    """
    precisions = [group.precision(execution) for group in groups]
    read = [ELEMENT_BYTES[precision] if precision else 0 for precision in precisions]
    computing = [at for at, group in enumerate(groups) if group.layers[-1].flops]
    last = computing[-1] if computing else len(groups) - 1
    written = [
        max(size, LEAST_ANSWER_BYTES) if at == last else read[at + 1] if at < last else size
        for at, size in enumerate(read)
    ]
    return list(zip(read, written, strict=True))


def timed_groups(stage: StageRecord, layers: list[LayerWork]) -> list[tuple[LayerGroup, float]]:
    """Every group of the stage's layers with the seconds per call that the profile gave it."""
    times = {time.name: time.seconds_per_call for time in stage.diagnostics.layers} if stage.diagnostics else {}
    return [(group, times[group.timed]) for group in groups_of(layers, set(times))]
