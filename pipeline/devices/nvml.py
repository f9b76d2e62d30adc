"""A GPU as NVIDIA's driver sees it, through NVML, which holds no GPU context."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pynvml

Answer = TypeVar("Answer")

ROUNDING_SHARE = 0.01  # of a sample: a violation counter that grew by less shows its own rounding

# The reasons whose time NVML counts; its "low utilisation" is a pause between samples and no disturbance.
VIOLATIONS = {
    "power": pynvml.NVML_PERF_POLICY_POWER,
    "thermal": pynvml.NVML_PERF_POLICY_THERMAL,
    "sync boost": pynvml.NVML_PERF_POLICY_SYNC_BOOST,
    "board limit": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
}
REASONS = {
    "power": pynvml.nvmlClocksEventReasonSwPowerCap,
    "thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "sync boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "hardware slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "power brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}


@dataclass(frozen=True)
class DeviceState:
    """The state of a device at one moment."""

    clock_mhz: int | None = None  # of the SMs
    throttled_seconds: dict[str, float] | None = None  # reason to cumulative seconds; None if it isn't counted
    reasons: tuple[str, ...] = ()  # that hold at this moment, for devices that don't count


def throttle_reasons(before: DeviceState, after: DeviceState, seconds: float) -> list[str]:
    """Return why the device slowed down between two states around `seconds` of work, by counters if it has them."""
    # A counter tells of the sample itself; a reason that holds at the moment of asking may be that of the pause.
    if before.throttled_seconds is None or after.throttled_seconds is None:
        return sorted(after.reasons)
    grown = {name: total - before.throttled_seconds.get(name, 0.0) for name, total in after.throttled_seconds.items()}
    return sorted(name for name, more in grown.items() if more > ROUNDING_SHARE * seconds)


class Gpu:
    """One GPU. A value that device or driver doesn't tell is None."""

    def __init__(self, handle: object) -> None:
        self._handle = handle

    def name(self) -> str:
        """Return the name, such as "NVIDIA H200"."""
        return str(pynvml.nvmlDeviceGetName(self._handle))

    def uuid(self) -> str:
        """Return the UUID, such as "GPU-1234...", by which CUDA knows it too."""
        return str(pynvml.nvmlDeviceGetUUID(self._handle))

    def used_bytes(self) -> int | None:
        """Return the memory in use by all processes."""
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        return None if memory is None else int(memory.used)

    def processes(self) -> dict[int, int | None] | None:
        """Return the bytes of this device by process id; a container may see ids that are not its own."""
        found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return None if found is None else {process.pid: process.usedGpuMemory for process in found}

    def joules(self) -> float | None:
        """Return the energy since the driver was loaded; the counter moves some ten times a second."""
        millijoules = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        return None if millijoules is None else millijoules / 1e3

    def watts(self) -> float | None:
        """Return the power now, averaged by the device over up to a second."""
        milliwatts = _ask(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return None if milliwatts is None else milliwatts / 1e3

    def limit_watts(self) -> float | None:
        """Return the limit of its power."""
        milliwatts = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)
        return None if milliwatts is None else milliwatts / 1e3

    def celsius(self) -> int | None:
        """Return its temperature."""
        return _ask(pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU)

    def state(self) -> DeviceState:
        """Read clock and throttling."""
        clock = _ask(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM)
        counted = {
            name: _ask(pynvml.nvmlDeviceGetViolationStatus, self._handle, key) for name, key in VIOLATIONS.items()
        }
        known = {name: value.violationTime / 1e9 for name, value in counted.items() if value is not None}
        bits = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle) or 0
        return DeviceState(
            clock_mhz=clock,
            throttled_seconds=known or None,
            reasons=tuple(name for name, bit in REASONS.items() if bits & bit),
        )


def _ask(question: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return the answer, or None if this device or driver has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def all_gpus() -> list[Gpu]:
    """Return every GPU that the driver knows; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    return [Gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]


def visible_gpus(gpus: list[Gpu], visible: str | None = None) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, up to the first entry that names none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        by_number = gpus[int(entry) : int(entry) + 1] if entry.isdigit() else []
        found = by_number or [gpu for gpu in gpus if entry and not entry.isdigit() and gpu.uuid().startswith(entry)]
        if not found:
            break
        chosen.append(found[0])
    return chosen


def gpu_of(uuid: str) -> Gpu | None:
    """Return the GPU with CUDA's `uuid`, with or without "GPU-"; None if NVML doesn't know it."""
    return next((gpu for gpu in all_gpus() if gpu.uuid().removeprefix("GPU-") == uuid.removeprefix("GPU-")), None)
