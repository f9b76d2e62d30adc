"""The bottleneck of a stage, or of a layer: arithmetic, memory, or the overhead around the kernels.

Kernels that multiply no matrices pass over memory and do little else. How near those come to the bandwidth is judged
by the bytes that the program's operators or kernels must move, each once, and never by the GPU's counters: a run with
counters and one without must name the same bottleneck.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from pipeline.analysis.roofline import Gap, LayerFigures, Roofline, combined, gap
from pipeline.records.diagnostics import BytesSource
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stats.intervals import drifts_of, is_unfair, seconds_per_call, taken_by_others
from pipeline.stats.ranking import IDLE_WORTH_NAMING, least_idle, throttled

Kind = Literal["compute-bound", "memory-bound", "mixed", "overhead-bound", "below both roofs", "unknown"]
Reason = Literal[
    "", "not measured", "other pace", "idle", "flat with batch", "flat with pixels", "a roof is unknown",
    "not profiled", "far below",
]  # fmt: skip
Floor = tuple[float, float]  # seconds of a layer at the arithmetic and at the memory roof
# The counts that a record holds, and lower bounds: each layer's input and output once; those of the layers with FLOPs.
Source = BytesSource | Literal["layers", "computing layers"]
BY_COUNTERS: BytesSource = "hardware counters"

MATRIX_WORK = ("convolution", "matmul")
NEAR_ARITHMETIC = 0.5  # of the roofline, from which matrix work counts as near it
NEAR_BANDWIDTH = 0.25  # the same of passes over memory: their bytes are a lower bound
WHOLE_NET = 0.9  # of its FLOPs that the timed layers must hold, or the network's layers stand for them
MOST_OF_THE_TIME = 0.6  # in work near one roof, from which that roof names the bottleneck
IDLE_MOST = 0.5  # of the time without any kernel: above it, most of the time is not the GPU's
# Twice the images take less than 1.23 times as long, or four times the pixels less than 1.52 times: at least 62 or 55 %
# of the time does not depend on the work. By pixels, on two EPYC cores, fp32, batch 1, of models.bottleneck_nets:
# ManyTinyLayers 0.18 at 8×8, 0.24 at 16×16, 0.42 at 32×32, 1.26 at 64×64; WidePointwise 1.56 and LargeChannels 0.72 at
# 256×256.
FLAT_SLOPE = 0.3
FAR_BELOW = 0.25  # of both roofs: a layer, or an unprofiled stage, below a quarter is limited by neither
FEW_LAUNCHES = 3.0  # a kernel that lasts no longer than this many launches is mostly start and end
SEEN_SHARE = 0.5  # of a stage's time that its profile must account for; below it the kernels say little


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
    return min(1.0, seconds_per_call(stage.pairs).value / seconds) if stage.pairs and seconds else None


@dataclass(frozen=True)
class TimeShares:
    """Shares of the kernels' time, or of the operators' on a CPU; `compute`, `memory` and `far` add up to 1."""

    compute: float  # in matrix work near the arithmetic roof
    memory: float  # in matrix work near the bandwidth, and in passes over memory
    far: float  # in work that is known to be far below both
    matrix: float  # in all matrix work; the rest passes over memory
    matrix_reach: float | None  # the time of the matrix work on its rooflines over its time; None without any
    # Of the bandwidth, by the passes over memory, at the least. None where unknown, and where it would be above 1: then
    # the matrix work moved more than the least that is known of it.
    passes_reach: float | None


@dataclass(frozen=True)
class Evidence:
    """The figures that decide, and those that a reader wants beside them; None where one isn't known."""

    compute: float | None = None  # share of the FLOP/s at the peak, over the whole call
    memory: float | None = None  # share of the measured bandwidth, over the whole call
    idle: float | None = None  # share of the profiled time in which no kernel runs
    slope: float | None = None  # of the time with the batch; 1 grows with it, 0 does not
    image_slope: float | None = None  # the same with the pixels of an image, on a CPU
    shares: TimeShares | None = None  # of the kernels' time near each roof; None where the profile sees too little
    unfilled: float | None = None  # of an unprofiled call, what its kernels leave: the profiler makes the host slower
    steepest: float | None = None  # the largest slope with the batch, above 1 where more images cost more each
    throttled: bool = False  # the samples: the profiled kernels may have run at another clock

    @property
    def idle_at_least(self) -> float | None:
        """The idle share, without the profiler where that is less; None where it may be a difference of clocks."""
        if self.idle is None:
            return None
        share = max(0.0, min(share for share in (self.idle, self.unfilled) if share is not None))
        return None if self.throttled and share < least_idle(self.throttled) else share

    @property
    def idle_told(self) -> float | None:
        """The idle share under the profiler; None where kernels fill an unprofiled call."""
        filled = self.unfilled is not None and self.unfilled < least_idle(self.throttled)
        return None if filled and self.idle is not None and self.idle >= IDLE_WORTH_NAMING else self.idle


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a stage, with its reason and the evidence."""

    kind: Kind
    reason: Reason
    evidence: Evidence
    roofline: Roofline | None = None
    gap: Gap | None = None  # why there is no roofline
    moved: Moved | None = None  # the bytes that the share of the bandwidth is of
    on_gpu: bool = False


def bottleneck_of(
    run: RunRecord, stage: StageRecord, roofline: Roofline | None, layers: Sequence[LayerFigures],
    interleaved: float | None, pace: float | None,
) -> Bottleneck:  # fmt: skip
    """Decide what limits a stage: `interleaved` seconds are beside its profile, `pace` is at steady state."""
    if interleaved is None or pace is None:
        return Bottleneck("unknown", "not measured", Evidence())
    has_flops = run.reference is not None and run.reference.flops_per_image > 0
    through = moved_at_least(run, stage, layers, roofline.element_bytes) if roofline else None
    on_gpu = run.environment is not None and run.environment.device == "cuda"
    unfair = any(is_unfair(change) for change in (run.drift, *drifts_of(stage.pairs)))
    if not on_gpu and (unfair or taken_by_others(stage.pairs)):  # the peaks were measured on another machine then
        return Bottleneck("unknown", "other pace", Evidence(), roofline, gap(run, stage), through, on_gpu)
    seen, named = (profiled_share(stage, interleaved, named=alone) for alone in (False, True))
    told = seen is not None and named is not None and (on_gpu or named >= SEEN_SHARE)
    floors = matrix_floors(run, stage, layers, roofline) if roofline else []
    growth = stage.explained.growth
    pixels = stage.explained.image_growth
    batches = zip(pairwise(growth.images), pairwise(growth.seconds), strict=True) if growth else ()
    slopes = [slope_of(images, times) for images, times in batches]
    evidence = Evidence(
        compute=sum(compute for compute, _ in floors) / pace if roofline and has_flops else None,
        memory=through.amount / pace / roofline.bytes_per_s if roofline and through and through.amount else None,
        idle=idle_share(stage) if on_gpu else None,
        slope=slope_of(growth.images, growth.seconds) if growth else None,
        image_slope=slope_of(pixels.pixels, pixels.seconds) if pixels else None,
        shares=time_shares(stage, floors, roofline) if roofline and told else None,
        unfilled=1 - seen if on_gpu and seen is not None else None,
        steepest=max((slope for slope in slopes if slope is not None), default=None),
        throttled=throttled(stage.pairs),
    )
    kind, reason = decide(evidence, roofline is not None and has_flops)
    return Bottleneck(kind, reason, evidence, roofline, gap(run, stage), through, on_gpu)


def decide(evidence: Evidence, has_roofline: bool = True) -> tuple[Kind, Reason]:
    """Return the bottleneck of a whole stage, and the rule that named it."""
    if evidence.idle_at_least is not None and evidence.idle_at_least > IDLE_MOST:
        return "overhead-bound", "idle"
    if evidence.slope is not None and evidence.slope < FLAT_SLOPE:
        return "overhead-bound", "flat with batch"
    if not has_roofline:
        return "unknown", "a roof is unknown"
    kind: Kind
    shares, compute, memory = evidence.shares, evidence.compute, evidence.memory
    if shares:
        roofs: dict[Kind, float] = {"compute-bound": shares.compute, "memory-bound": shares.memory}
        kind = next((kind for kind, share in roofs.items() if share >= MOST_OF_THE_TIME), "mixed")
        far = shares.far >= MOST_OF_THE_TIME
    else:  # the FLOPs at the peak may still fill most of a call
        kind = "compute-bound" if compute is not None and compute >= MOST_OF_THE_TIME else "unknown"
        far = compute is not None and memory is not None and max(compute, memory) < FAR_BELOW
    if far and evidence.image_slope is not None and evidence.image_slope < FLAT_SLOPE:
        return "overhead-bound", "flat with pixels"
    if far:
        return "below both roofs", "far below"
    return kind, "not profiled" if kind == "unknown" else ""


def time_shares(stage: StageRecord, floors: Sequence[Floor], roofline: Roofline) -> TimeShares | None:
    """Return where the time of a stage goes; None without a profile, or where the network's FLOPs are unknown."""
    rows = stage.profile.kernels if stage.profile else []
    total, on_roofs = sum(row.seconds_per_call for row in rows), sum(map(max, floors))
    if not total or not floors:
        return None
    matrix = sum(row.seconds_per_call for row in rows if row.kind in MATRIX_WORK)
    passes = max(0.0, total - matrix)
    reach = on_roofs / matrix if matrix else None
    fusion = stage.explained.fusion
    passes_reach = None
    if fusion and fusion.bytes_per_call and passes:  # of all operators or kernels, each once, less the matrix work's
        matrix_bytes = sum(memory for _, memory in floors) * roofline.bytes_per_s
        through = max(0.0, fusion.bytes_per_call - matrix_bytes) / passes / roofline.bytes_per_s
        passes_reach = through if through <= 1 else None
    near = matrix if reach is not None and reach >= NEAR_ARITHMETIC else 0.0
    slow = passes if passes_reach is not None and passes_reach < NEAR_BANDWIDTH else 0.0
    arithmetic = sum(compute for compute, memory in floors if compute >= memory)  # where it is the lower roof
    compute = near * (arithmetic / on_roofs) if on_roofs else 0.0
    return TimeShares(
        compute=compute / total,
        memory=(near - compute + passes - slow) / total,
        far=(matrix - near + slow) / total,
        matrix=matrix / total,
        matrix_reach=reach,
        passes_reach=passes_reach,
    )


def matrix_floors(
    run: RunRecord, stage: StageRecord, layers: Sequence[LayerFigures], roofline: Roofline
) -> list[Floor]:
    """Return the layers with FLOPs on their roofs; the network's own where the profile hides them."""
    if run.reference is None or not run.reference.flops_per_image:
        return []
    timed = [layer for layer in layers if layer.flops]
    covered = {name for layer in timed for name in layer.layers}
    known = sum(work.flops for work in run.reference.layers if work.name in covered)
    if known >= WHOLE_NET * run.reference.flops_per_image:
        return [(layer.compute_seconds, layer.memory_seconds) for layer in timed]
    found = []
    for work in run.reference.layers:
        if work.flops:
            own = stage.execution.layer_precision.get(work.name) if stage.execution else None
            elements = run.batch_size * (work.read_elements + work.written_elements) + work.weight_elements
            memory = roofline.element_bytes * elements / roofline.bytes_per_s
            found.append((run.batch_size * work.flops / roofline.rate(own), memory))
    return found or [(run.reference.flops_per_image * run.batch_size / roofline.flops_per_s, 0.0)]


def moved_at_least(run: RunRecord, stage: StageRecord, layers: Sequence[LayerFigures], element_bytes: int) -> Moved:
    """Return the least bytes of one call: by counters, else as counted while it ran, else by the network's layers."""
    known = moved(stage)
    if known.amount is not None:
        return known
    timed = [layer for layer in layers if layer.has_work]
    if timed:
        return Moved(round(combined("", timed).moved_bytes), "layers")
    computing = [layer for layer in (run.reference.layers if run.reference else []) if layer.flops]
    if not computing:
        return Moved(None, None, "no layers on record")
    images = run.batch_size * sum(layer.read_elements + layer.written_elements for layer in computing)
    return Moved(element_bytes * (images + sum(layer.weight_elements for layer in computing)), "computing layers")


def idle_share(stage: StageRecord) -> float | None:
    """Return the share of a profiled call in which no kernel runs; None where that wasn't recorded."""
    split = stage.explained.split
    if split is not None and split.device_seconds is not None and split.wall_seconds > 0:
        return max(0.0, 1 - split.device_seconds / split.wall_seconds)
    profile = stage.profile
    return None if profile is None or profile.busy_share is None else 1 - profile.busy_share


def profiled_share(stage: StageRecord, seconds: float, *, named: bool = False) -> float | None:
    """Return the share of a call of `seconds` in the profile's rows, of those `named` with a class; else None."""
    rows = stage.profile.kernels if stage.profile else []
    if not rows or seconds <= 0:
        return None
    return sum(row.seconds_per_call for row in rows if not named or row.kind != "other") / seconds


def slope_of(amounts: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return log(t2 / t1) / log(n2 / n1) of the last two, 1 where time grows as they do; else None."""
    if len(amounts) < 2 or min(seconds[-2:]) <= 0:
        return None
    (n1, n2), (t1, t2) = amounts[-2:], seconds[-2:]
    return math.log(t2 / t1) / math.log(n2 / n1) if n1 < n2 else None


def of_layer(layer: LayerFigures, roofline: Roofline) -> Kind:
    """Return a layer's bottleneck: the roof that it is near to, otherwise whether its kernels are short as a launch."""
    compute, memory = layer.shares
    if layer.has_work and max(compute, memory) >= FAR_BELOW:
        return "compute-bound" if compute >= memory else "memory-bound"
    launch = roofline.launch_seconds
    if launch is not None and layer.launches and layer.seconds / layer.launches < FEW_LAUNCHES * launch:
        return "overhead-bound"
    return "below both roofs" if layer.has_work and layer.seconds > 0 else "unknown"
