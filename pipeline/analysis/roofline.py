"""The ceilings that a stage runs under, by the precision that ran, and what the maker's datasheet says. No torch."""

from dataclasses import dataclass

from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import formatting as words

PRECISIONS = ("fp8", "bf16", "fp16", "tf32", "fp32")
ELEMENT_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
# TFLOP/s without sparsity, and TB/s. By the name that the driver gives; a variant with another name has other figures.
DATASHEETS = {
    "NVIDIA H200": ({"fp32": 67.0, "tf32": 495.0, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}, 4.8),
}
DATASHEET_SOURCE = "NVIDIA's H200 datasheet, SXM, without sparsity"


@dataclass(frozen=True)
class Roofs:
    """What bounds work in one precision: arithmetic, memory, and the start of a kernel."""

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
        """FLOP per byte from which arithmetic, no longer memory, is the lower roof."""
        return self.flops_per_s / self.bytes_per_s

    def least_seconds(self, flops: float, moved: float) -> float:
        """The time at the roof of so many FLOP and bytes."""
        return max(flops / self.flops_per_s, moved / self.bytes_per_s)


def precision_of(description: str) -> str | None:
    """The precision of the matrix work, which `StageRecord.description` names first; None where it names none.

    "fp32 with TF32" is tf32, and "fp16 (no layer reads fp8)" is fp16.
    """
    said = description.lower().replace("tf32 off", "").replace("fp32 with tf32", "tf32")
    named = [name for name in PRECISIONS if name in said]
    return min(named, key=said.index) if named else None


def roofs(run: RunRecord, stage: StageRecord) -> Roofs | str:
    """The measured ceilings for what the stage ran; else why they are unknown."""
    if run.measured_peaks is None:
        return "this run measured no ceilings"
    precision = precision_of(stage.description)
    if precision is None:
        return f"no precision is named in what ran: {stage.description or 'nothing on record'}"
    rate = run.measured_peaks.tflops.get(precision)
    if not rate or not run.measured_peaks.bandwidth_bytes_per_s:
        return f"this run measured no {precision} ceiling"
    launch = run.measured_peaks.launch_us
    return Roofs(precision, rate * 1e12, run.measured_peaks.bandwidth_bytes_per_s, launch / 1e6 if launch else None)


def datasheet(run: RunRecord, precision: str) -> Roofs | None:
    """What the maker says of this device; None for one that isn't in the table."""
    name = run.environment.device_name if run.environment else ""
    rates, terabytes = DATASHEETS.get(name, ({}, 0.0))
    return Roofs(precision, rates[precision] * 1e12, terabytes * 1e12, None) if precision in rates else None


def beside(run: RunRecord) -> list[str]:
    """Each measured ceiling with the datasheet's, in words."""
    if run.measured_peaks is None:
        return []
    lines = []
    for name, value in run.measured_peaks.tflops.items():
        said = datasheet(run, name)
        lines.append(
            f"{name} {words.significant(value)} TFLOP/s{_of(value, said.flops_per_s / 1e12 if said else None)}"
        )
    _, terabytes = DATASHEETS.get(run.environment.device_name if run.environment else "", ({}, None))
    rate = run.measured_peaks.bandwidth_bytes_per_s / 1e12
    return [*lines, f"copy {words.significant(rate)} TB/s{_of(rate, terabytes)}"]


def _of(measured: float, said: float | None) -> str:
    return f" ({words.share(measured / said)} of {words.significant(said)})" if said else ""
