"""Layers and levels under the roofline of their precision.

The roofline is the most that anything reached here in a precision, and the bandwidth of a measured copy. A profile
gives time to a layer, or to two that run as one; the record says what work each had to do.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.records.diagnostics import SKIP, LayerWork
from pipeline.records.run_record import Execution, Precision, RunRecord, StageRecord

ELEMENT_BYTES: dict[Precision, int] = {"int8": 1, "fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
LEAST_ANSWER_BYTES = 2  # of a logit: fp8 could not hold it, and no kernel writes it
BETWEEN = "between layers"  # what the record calls ""
# A layer that seems faster than this many times the measured matmul multiplies less often than counted, as by FFT.
BELIEVED = 1.3
UPSAMPLING = ("ConvTranspose", "Upsample")  # kinds of layers that belong to the level that they feed
# TFLOP/s without sparsity, and TB/s. By the name that the driver gives; a variant with another name has other figures.
HOPPER_SXM = {"fp32": 67.0, "tf32": 495.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}
DATASHEETS = {"NVIDIA H200": (HOPPER_SXM, 4.8), "NVIDIA H100 80GB HBM3": (HOPPER_SXM, 3.35)}

Gap = Literal["no measured peaks", "no precision", "no peak of this precision"]


@dataclass(frozen=True)
class LayerGroup:
    """One layer of the network, or two that a stage does as one."""

    timed: str  # the layer that has the time
    layers: list[LayerWork]

    def multiplied(self, batch: int, execution: Execution) -> float:
        """Return the FLOPs of a batch that the stage really does: two merged layers need fewer than both."""
        own = execution.layer_flops.get(self.timed, sum(layer.flops for layer in self.layers))
        return float(batch * own)

    def moved_bytes(self, batch: int, read_bytes: int, written_bytes: int) -> float:
        """Return the least bytes through memory: first input and last output of each image, all weights once."""
        weights = sum(layer.weight_elements for layer in self.layers)
        read, written = self.layers[0].read_elements, self.layers[-1].written_elements
        return float(read_bytes * (batch * read + weights) + written_bytes * batch * written)

    def precision(self, execution: Execution) -> Precision | None:
        """Return the precision it computes in: of two that run as one kernel, an own precision decides."""
        own = (execution.layer_precision.get(layer.name) for layer in reversed(self.layers))
        return next((precision for precision in own if precision), execution.precision)


def groups_of(layers: list[LayerWork], timed: set[str]) -> list[LayerGroup]:
    """Return the timed layers, each with the one untimed layer with FLOPs right before it; the last also one after."""
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
    """Return the bytes of an element that each group reads, and of one that it writes; 0 where unknown."""
    precisions = [group.precision(execution) for group in groups]
    read = [ELEMENT_BYTES[precision] if precision else 0 for precision in precisions]
    computing = [at for at, group in enumerate(groups) if group.layers[-1].flops]
    last = computing[-1] if computing else len(groups) - 1
    written = [
        max(size, LEAST_ANSWER_BYTES) if at == last else read[at + 1] if at < last else size
        for at, size in enumerate(read)
    ]
    return list(zip(read, written, strict=True))


@dataclass(frozen=True)
class ReachedPeak:
    """The highest FLOP/s of this run in one precision: of the measured matmul, or of a faster layer."""

    flops_per_s: float
    layer: str = ""  # of the network; empty where it is the matmul
    stage: str = ""  # in which the layer was that fast


@dataclass(frozen=True)
class Roofline:
    """The limits of work in one precision: arithmetic, memory, and the launch of a kernel."""

    precision: Precision
    flops_per_s: float
    bytes_per_s: float
    launch_seconds: float | None  # None where nothing is launched
    reached_peaks: Mapping[Precision, ReachedPeak] = field(default_factory=dict)  # of all precisions, for single layers

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation or a weight."""
        return ELEMENT_BYTES[self.precision]

    def rate(self, precision: Precision | None) -> float:
        """Return the FLOP/s of a layer in its own precision; the stage's where that one has no peak."""
        peak = self.reached_peaks.get(precision) if precision else None
        return peak.flops_per_s if peak else self.flops_per_s


def gap(run: RunRecord, stage: StageRecord) -> Gap | None:
    """Return why a stage has no roofline; None where it has one."""
    if run.measured_peaks is None:
        return "no measured peaks"
    if stage.precision is None:
        return "no precision"
    known = run.measured_peaks.tflops.get(stage.precision) and run.measured_peaks.bandwidth_bytes_per_s
    return None if known else "no peak of this precision"


def roofline_of(run: RunRecord, stage: StageRecord, reached: Mapping[Precision, ReachedPeak]) -> Roofline | None:
    """Return the peaks for the precision in which the stage ran; None where `gap` says why."""
    peaks, precision = run.measured_peaks, stage.precision
    if peaks is None or precision is None or gap(run, stage):
        return None
    launch = peaks.launch_us / 1e6 if peaks.launch_us else None
    return Roofline(precision, reached[precision].flops_per_s, peaks.bandwidth_bytes_per_s, launch, reached)


def reached_peaks(run: RunRecord) -> dict[Precision, ReachedPeak]:
    """Return by precision the larger of the measured matmul and the fastest layer of any right stage."""
    rates = run.measured_peaks.tflops if run.measured_peaks else {}
    found = {name: ReachedPeak(rates[name] * 1e12) for name in ELEMENT_BYTES if rates.get(name)}
    believed = {name: BELIEVED * peak.flops_per_s for name, peak in found.items()}
    for stage in run.stages:
        if stage.status != "ok" or stage.execution is None or run.reference is None:
            continue
        times = {time.name: time.seconds_per_call for time in stage.explained.layers}
        for group in groups_of(run.reference.layers, set(times)):
            flops, precision = group.multiplied(run.batch_size, stage.execution), group.precision(stage.execution)
            if times[group.timed] > 0 and flops and precision in found:
                rate = flops / times[group.timed]
                if found[precision].flops_per_s < rate <= believed[precision]:
                    found[precision] = ReachedPeak(rate, group.timed, stage.name)
    return found


def datasheet(run: RunRecord, precision: Precision) -> Roofline | None:
    """Return the roofline by the maker's data sheet; None if `DATASHEETS` lacks the device or the precision."""
    rates, terabytes = DATASHEETS.get(run.environment.device_name if run.environment else "", ({}, 0.0))
    return Roofline(precision, rates[precision] * 1e12, terabytes * 1e12, None) if precision in rates else None


@dataclass(frozen=True)
class LayerFigures:
    """A layer or a level in one stage, per call."""

    name: str
    kind: str
    level: str
    seconds: float
    launches: float
    flops: float = 0.0
    moved_bytes: float = 0.0  # at least: inputs, outputs and weights once
    compute_seconds: float = 0.0  # its FLOPs at the peak of its own precision
    memory_seconds: float = 0.0  # its bytes at the measured bandwidth
    layers: tuple[str, ...] = ()  # of the network: two where the stage does them as one, none for a level
    precision: Precision | None = None  # None for a level, and where it is unknown

    @property
    def has_work(self) -> bool:
        """True if the record says what it had to do."""
        return self.flops > 0 or self.moved_bytes > 0

    @property
    def least_seconds(self) -> float:
        """The time on its roofline."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the arithmetic and of the bandwidth; the larger one is its share of the roofline."""
        if self.seconds <= 0:
            return 0.0, 0.0
        return self.compute_seconds / self.seconds, self.memory_seconds / self.seconds

    @property
    def seconds_above(self) -> float | None:
        """Seconds above its roofline, below 0 where it is faster; None where the record doesn't say what it did."""
        return self.seconds - self.least_seconds if self.has_work else None


def layers_of(run: RunRecord, stage: StageRecord, roofline: Roofline) -> list[LayerFigures]:
    """Return every timed layer in the network's order, under the roofs of its own precision; unknown ones come last."""
    times = {time.name: time for time in stage.explained.layers}
    execution = stage.execution or Execution(roofline.precision)
    every = run.reference.layers if run.reference else []
    groups, levels, found = groups_of(every, set(times)), levels_by_layer(every), []
    for group, sizes in zip(groups, element_bytes(groups, execution), strict=True):
        time, precision, first = times.pop(group.timed), group.precision(execution), group.layers[0]
        flops, moved = group.multiplied(run.batch_size, execution), group.moved_bytes(run.batch_size, *sizes)
        name = " with ".join(layer.name or BETWEEN for layer in group.layers)
        layers = [one.name for one in group.layers]
        roofs = flops / roofline.rate(precision), moved / roofline.bytes_per_s
        took = time.seconds_per_call, time.launches_per_call
        level = levels[group.timed]
        found.append(LayerFigures(name, first.kind, level, *took, flops, moved, *roofs, tuple(layers), precision))
    return [
        *found,
        *(
            LayerFigures(time.name or BETWEEN, "", BETWEEN, time.seconds_per_call, time.launches_per_call)
            for time in times.values()  # work that belongs to no layer of the original network
        ),
    ]


def levels_by_layer(layers: list[LayerWork]) -> dict[str, str]:
    """Return the level of each layer; that of a layer that only enlarges is the level of the next one."""
    found: dict[str, str] = {}
    following = ""
    for layer in reversed(layers):
        enlarges = layer.kind.startswith(UPSAMPLING) and following
        found[layer.name] = following if enlarges else layer.level
        following = following if layer.name in ("", SKIP) else found[layer.name]
    return found


def levels_of(layers: list[LayerFigures]) -> list[LayerFigures]:
    """Sum the layers by level, in the order in which they are met."""
    together: dict[str, list[LayerFigures]] = defaultdict(list)
    for layer in layers:
        together[layer.level].append(layer)
    return [combined(level, inside) for level, inside in together.items()]


def combined(name: str, inside: list[LayerFigures]) -> LayerFigures:
    """Sum several layers."""
    summed = ("seconds", "launches", "flops", "moved_bytes", "compute_seconds", "memory_seconds")
    return LayerFigures(name, "", name, *(sum(getattr(layer, each) for layer in inside) for each in summed))


def seconds_below(found: list[LayerFigures]) -> float:
    """Return the seconds by which layers fall below their rooflines, summed over the layers."""
    return sum(max(0.0, -(layer.seconds_above or 0.0)) for layer in found)


def seconds_above_by_level(found: list[LayerFigures]) -> dict[str, float]:
    """Return the seconds that each level's layers take above their rooflines; the most first."""
    total: dict[str, float] = defaultdict(float)
    for layer in found:
        total[layer.level] += max(0.0, layer.seconds_above or 0.0)
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))
