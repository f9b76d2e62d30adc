"""Where a call's wall time goes: on the GPU, in launches, in the framework, in the interpreter."""

from dataclasses import dataclass
from typing import Literal

from pipeline.records.diagnostics import TimeSplit
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stats.intervals import seconds_per_call

IDLE_WORTH_NAMING = 0.1  # of the wall time under the profiler
ROUNDING = 1e-4  # of two sums that ought to agree

Finding = Literal["nothing recorded", "no GPU", "GPU waits", "profiler waits", "GPU busy"]
HostPart = Literal["launches", "the framework", "the interpreter"]


@dataclass(frozen=True)
class HostTime:
    """What a time split shows."""

    split: TimeSplit
    finding: Finding
    share: float = 0.0  # without a GPU: of the time, outside of operators; with one: idle under the profiler
    unfilled: float | None = None  # share of a call outside the profiler that its kernels leave; None if not measured
    longest: HostPart = "launches"  # of the host's parts

    @property
    def idle(self) -> float | None:
        """Seconds without any kernel; None without a GPU."""
        return idle(self.split)


@dataclass(frozen=True)
class Sums:
    """Two sums that ought to be the same."""

    what: Literal["GPU time", "time inside operators", "FLOPs"]  # that the second one is of
    first: float
    second: float

    @property
    def apart(self) -> float | None:
        """By what share the first differs from the second; None without a second, 0 within rounding."""
        if not self.second:
            return None
        difference = abs(self.first / self.second - 1)
        return 0.0 if difference < ROUNDING else difference

    @property
    def overlap(self) -> bool:
        """Whether kernels ran at once, as those that are launched early do: they add up to more than the GPU's time."""
        return self.what == "GPU time" and self.first > self.second


def idle(split: TimeSplit) -> float | None:
    """Seconds without any kernel; None without a GPU."""
    return None if split.device_seconds is None else max(0.0, split.wall_seconds - split.device_seconds)


def host_time(split: TimeSplit, seconds: float | None = None) -> HostTime:
    """What a split shows, beside the seconds that a call takes outside the profiler.

    The profiler makes the host slower: a GPU that waits under it may have no gap without it.
    """
    if split.wall_seconds <= 0:
        return HostTime(split, "nothing recorded")
    gap = idle(split)
    if gap is None:
        return HostTime(split, "no GPU", split.interpreter_seconds / split.wall_seconds)
    share = gap / split.wall_seconds
    unfilled = max(0.0, 1 - (split.device_seconds or 0.0) / seconds) if seconds else None
    parts: dict[HostPart, float] = {
        "launches": split.launch_seconds,
        "the framework": split.framework_seconds,
        "the interpreter": split.interpreter_seconds,
    }
    if share < IDLE_WORTH_NAMING:
        return HostTime(split, "GPU busy", share, unfilled)
    finding: Finding = "profiler waits" if unfilled is not None and unfilled < IDLE_WORTH_NAMING else "GPU waits"
    return HostTime(split, finding, share, unfilled, max(parts, key=lambda part: parts[part]))


def host_time_of(stage: StageRecord) -> HostTime | None:
    """What the stage's split shows; None where none is on record."""
    split = stage.diagnostics.split if stage.diagnostics else None
    if split is None:
        return None
    measured = any(pair.blocks for pair in stage.pairs)
    return host_time(split, seconds_per_call(stage.pairs).value if measured else None)


def class_sums(stage: StageRecord) -> Sums | None:
    """The sum of the profile's classes beside the time that they were measured in; None without either."""
    split = stage.diagnostics.split if stage.diagnostics else None
    if split is None or stage.profile is None or not stage.profile.kernels:
        return None
    classes = sum(kernel.seconds_per_call for kernel in stage.profile.kernels)
    if split.device_seconds is not None:
        return Sums("GPU time", classes, split.device_seconds)
    return Sums("time inside operators", classes, split.framework_seconds + split.launch_seconds)


def flops_sums(run: RunRecord) -> Sums | None:
    """The layers' FLOPs beside those counted for the whole net; None without layers on record."""
    if run.reference is None or not run.reference.layers:
        return None
    return Sums("FLOPs", sum(layer.flops for layer in run.reference.layers), run.reference.flops_per_image)
