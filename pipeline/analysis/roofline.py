"""The roofline that a stage runs under: the measured peaks of its precision, and the datasheet's beside them."""

from dataclasses import dataclass
from typing import Literal

from pipeline.records.run_record import RunRecord, StageRecord

ELEMENT_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
# TFLOP/s without sparsity, and TB/s. By the name that the driver gives; a variant with another name has other figures.
DATASHEETS = {
    "NVIDIA H200": ({"fp32": 67.0, "tf32": 495.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}, 4.8),
}

Gap = Literal["no measured peaks", "no precision", "no peak of this precision"]


@dataclass(frozen=True)
class Roofline:
    """What limits work in one precision: arithmetic, memory, and the launch of a kernel."""

    precision: str
    flops_per_s: float
    bytes_per_s: float
    launch_seconds: float | None  # None where nothing is launched

    @property
    def element_bytes(self) -> int:
        """Of an activation or a weight."""
        return ELEMENT_BYTES[self.precision]

    @property
    def ridge(self) -> float:
        """The FLOP per byte from which arithmetic, not memory, is the lower limit."""
        return self.flops_per_s / self.bytes_per_s

    def least_seconds(self, flops: float, moved: float) -> float:
        """The time on the roofline of so many FLOP and bytes."""
        return max(flops / self.flops_per_s, moved / self.bytes_per_s)


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
    """The measured peaks for the precision in which the stage ran; None where `gap` says why."""
    peaks, precision = run.measured_peaks, stage.precision
    if peaks is None or precision is None or gap(run, stage):
        return None
    launch = peaks.launch_us / 1e6 if peaks.launch_us else None
    return Roofline(precision, peaks.tflops[precision] * 1e12, peaks.bandwidth_bytes_per_s, launch)


def datasheet(run: RunRecord, precision: str) -> Roofline | None:
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
