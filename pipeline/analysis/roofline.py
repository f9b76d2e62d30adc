"""The roofline that a stage runs under: the most that anything reached in a precision, and the datasheet's figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.analysis.layer_groups import ELEMENT_BYTES, timed_groups
from pipeline.records.run_record import Precision, RunRecord, StageRecord

# A layer that seems faster than so many times the measured matmul multiplies less often than counted, as by FFT.
BELIEVED = 1.3
# TFLOP/s without sparsity, and TB/s. By the name that the driver gives; a variant with another name has other figures.
DATASHEETS = {
    "NVIDIA H200": ({"fp32": 67.0, "tf32": 495.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}, 4.8),
}

Gap = Literal["no measured peaks", "no precision", "no peak of this precision"]


@dataclass(frozen=True)
class ReachedPeak:
    """The most FLOP/s that anything reached here in one precision: the measured matmul, or a layer that was faster."""

    flops_per_s: float
    layer: str = ""  # of the net; empty where it is the matmul
    stage: str = ""  # in which the layer was that fast


@dataclass(frozen=True)
class Roofline:
    """What limits work in one precision: arithmetic, memory, and the launch of a kernel."""

    precision: Precision
    flops_per_s: float
    bytes_per_s: float
    launch_seconds: float | None  # None where nothing is launched
    reached_peaks: Mapping[Precision, ReachedPeak] = field(default_factory=dict)  # of all precisions, for single layers

    @property
    def element_bytes(self) -> int:
        """Of an activation or a weight."""
        return ELEMENT_BYTES[self.precision]

    @property
    def ridge(self) -> float:
        """The FLOP per byte from which arithmetic, not memory, is the lower limit."""
        return self.flops_per_s / self.bytes_per_s

    def rate(self, precision: Precision | None) -> float:
        """FLOP/s of a layer in its own precision; the stage's where that one has no peak."""
        peak = self.reached_peaks.get(precision) if precision else None
        return peak.flops_per_s if peak else self.flops_per_s


@dataclass(frozen=True)
class Peak:
    """One measured peak beside the datasheet's."""

    name: str  # a precision, or "copy"
    value: float  # TFLOP/s; of the copy TB/s
    datasheet: float | None  # in the same unit; None for a device without a datasheet here


def gap(run: RunRecord, stage: StageRecord) -> Gap | None:
    """Why a stage has no roofline; None where it has one."""
    if run.measured_peaks is None:
        return "no measured peaks"
    precision = stage.precision
    if precision is None:
        return "no precision"
    known = run.measured_peaks.tflops.get(precision) and run.measured_peaks.bandwidth_bytes_per_s
    return None if known else "no peak of this precision"


def roofline_of(run: RunRecord, stage: StageRecord) -> Roofline | None:
    """The peaks for the precision in which the stage ran; None where `gap` says why."""
    peaks, precision = run.measured_peaks, stage.precision
    if peaks is None or precision is None or gap(run, stage):
        return None
    launch, found = peaks.launch_us / 1e6 if peaks.launch_us else None, reached_peaks(run)
    return Roofline(precision, found[precision].flops_per_s, peaks.bandwidth_bytes_per_s, launch, found)


def reached_peaks(run: RunRecord) -> dict[Precision, ReachedPeak]:
    """By precision, the larger of the measured matmul and the fastest layer of any stage whose answer is right."""
    rates = run.measured_peaks.tflops if run.measured_peaks else {}
    found = {name: ReachedPeak(rates[name] * 1e12) for name in ELEMENT_BYTES if rates.get(name)}
    believed = {name: BELIEVED * peak.flops_per_s for name, peak in found.items()}
    for stage in run.stages:
        for precision, reached in layer_rates(run, stage):
            if precision in found and found[precision].flops_per_s < reached.flops_per_s <= believed[precision]:
                found[precision] = reached
    return found


def layer_rates(run: RunRecord, stage: StageRecord) -> list[tuple[Precision, ReachedPeak]]:
    """What each timed layer with FLOPs of a stage reached, with its precision; nothing of a stage that isn't ok.

    A layer that is composed of two reached what it multiplied, and not what the two would have.
    """
    if stage.status != "ok" or stage.execution is None or run.reference is None:
        return []
    return [
        (precision, ReachedPeak(flops / seconds, group.timed, stage.name))
        for group, seconds in timed_groups(stage, run.reference.layers)
        if seconds > 0
        and (flops := group.multiplied(run.batch_size, stage.execution))
        and (precision := group.precision(stage.execution))
    ]


def datasheet(run: RunRecord, precision: Precision) -> Roofline | None:
    """What the maker says of this device; None for one that isn't in the table."""
    rates, terabytes = DATASHEETS.get(_device(run), ({}, 0.0))
    return Roofline(precision, rates[precision] * 1e12, terabytes * 1e12, None) if precision in rates else None


def peaks_of(run: RunRecord) -> list[Peak]:
    """The measured peaks of every precision in TFLOP/s, and that of the copy in TB/s, which comes last."""
    if run.measured_peaks is None:
        return []
    rates, terabytes = DATASHEETS.get(_device(run), ({}, None))
    peaks = [Peak(name, value, rates.get(name)) for name, value in run.measured_peaks.tflops.items()]
    return [*peaks, Peak("copy", run.measured_peaks.bandwidth_bytes_per_s / 1e12, terabytes)]


def _device(run: RunRecord) -> str:
    return run.environment.device_name if run.environment else ""
