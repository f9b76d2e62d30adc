"""The machine and the software that gave the numbers, and the most that the device gave."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """The machine and the software that gave the numbers."""

    device: str  # "cuda" or "cpu"
    device_name: str  # "NVIDIA H200", or the processor's model name
    driver: str | None
    cuda: str | None
    cudnn: str | None
    capability: str | None  # "9.0"
    multiprocessors: int | None
    device_memory_bytes: int | None
    l2_bytes: int | None
    cpu_name: str
    cpu_threads: int  # torch's intra-op threads
    python: str
    platform: str
    packages: dict[str, str]  # name to version
    commit: str | None
    dirty: bool | None
    launcher: str  # Hydra's launcher, "basic" where there is no sweep
    others_on_device: list[str]  # other processes that held the device at the start
    variables: dict[str, str] | None = None  # of the environment, which libraries read; None where none were noted


@dataclass(frozen=True)
class MeasuredPeaks:
    """The most that this device gave at the start of the run; None where it has no such unit."""

    tflops: dict[str, float]  # "fp32", "tf32", "fp16", "bf16", "fp8" to 10^12 FLOP/s, large matmul, random data
    bandwidth_bytes_per_s: float  # large device copy, read plus write
    pinned_copy_bytes_per_s: float | None  # host to device
    pageable_copy_bytes_per_s: float | None
    launch_us: float | None  # of an empty kernel, back to back
