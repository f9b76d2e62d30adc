"""The shares of a stage's time in work near each roof, by the kernels of its profile.

Kernels that multiply no matrices pass over memory and do little else. How near those come to the bandwidth is judged
by the bytes that the program's operators or kernels must move, each once, and never by the GPU's counters: a run with
counters and one without must name the same bottleneck.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.analysis.layer_figures import LayerFigures
from pipeline.analysis.roofline import Roofline
from pipeline.records.diagnostics import KernelRow
from pipeline.records.run_record import RunRecord, StageRecord

MATRIX_WORK = ("convolution", "matmul")
NEAR_ARITHMETIC = 0.5  # of the roofline, from which matrix work counts as near it
NEAR_BANDWIDTH = 0.25  # the same of passes over memory: their bytes are a lower bound
WHOLE_NET = 0.9  # of its FLOPs that the timed layers must hold, or the net's layers stand for them


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


def time_shares(
    run: RunRecord, stage: StageRecord, layers: Sequence[LayerFigures], roofline: Roofline
) -> TimeShares | None:
    """Where the time of a stage goes; None without a profile, or where the net's FLOPs are unknown."""
    rows = stage.profile.kernels if stage.profile else []
    total = sum(row.seconds_per_call for row in rows)
    floors = matrix_floors(run, stage, layers, roofline)
    if not total or not floors:
        return None
    matrix = matrix_seconds(rows)
    passes = max(0.0, total - matrix)
    reach = sum(map(max, floors)) / matrix if matrix else None
    through = passes_bandwidth(stage, passes, sum(memory for _, memory in floors) * roofline.bytes_per_s)
    passes_reach = None if through is None or through > roofline.bytes_per_s else through / roofline.bytes_per_s
    near = matrix if reach is not None and reach >= NEAR_ARITHMETIC else 0.0
    slow = passes if passes_reach is not None and passes_reach < NEAR_BANDWIDTH else 0.0
    compute = near * arithmetic_share(floors)
    return TimeShares(
        compute=compute / total,
        memory=(near - compute + passes - slow) / total,
        far=(matrix - near + slow) / total,
        matrix=matrix / total,
        matrix_reach=reach,
        passes_reach=passes_reach,
    )


def matrix_seconds(rows: Sequence[KernelRow]) -> float:
    """Per call, in kernels that multiply matrices or convolve."""
    return sum(row.seconds_per_call for row in rows if row.kind in MATRIX_WORK)


Floor = tuple[float, float]  # seconds of a layer at the arithmetic and at the memory roof


def matrix_floors(
    run: RunRecord, stage: StageRecord, layers: Sequence[LayerFigures], roofline: Roofline
) -> list[Floor]:
    """The layers with FLOPs on their roofs; the net's own where the profile hides them."""
    if run.reference is None or not run.reference.flops_per_image:
        return []
    timed = [layer for layer in layers if layer.flops]
    whole = run.reference.flops_per_image * run.batch_size
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
    return found or [(whole / roofline.flops_per_s, 0.0)]


def arithmetic_seconds(run: RunRecord, stage: StageRecord, layers: Sequence[LayerFigures], roofline: Roofline) -> float:
    """Of the whole net's FLOPs, each layer's at the peak of its own precision."""
    return sum(compute for compute, _ in matrix_floors(run, stage, layers, roofline))


def arithmetic_share(floors: Sequence[Floor]) -> float:
    """Of the layers' time on their rooflines, that of those for which arithmetic is the lower roof."""
    total = sum(map(max, floors))
    return sum(compute for compute, memory in floors if compute >= memory) / total if total else 0.0


def passes_bandwidth(stage: StageRecord, seconds: float, matrix_bytes: float) -> float | None:
    """Bytes per second of the passes over memory, at the least; None where the program's bytes are unknown.

    Args:
        stage: with the bytes of all its operators or kernels, each once.
        seconds: of those passes.
        matrix_bytes: what the matrix work moves of them.
    """
    fusion = stage.diagnostics.fusion if stage.diagnostics else None
    if fusion is None or not fusion.bytes_per_call or not seconds:
        return None
    return max(0.0, fusion.bytes_per_call - matrix_bytes) / seconds
