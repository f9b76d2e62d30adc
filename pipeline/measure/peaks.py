"""The most that this device gives, measured at the start of a run: what a stage's speed is held against."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pipeline.devices import host
from pipeline.devices.accelerators import FP8
from pipeline.measure.clock import Clock, best_burst_seconds
from pipeline.measure.torch_device import has_compute
from pipeline.records.run_record import MeasuredPeaks

GPU_SIDE, CPU_SIDE = 8192, 1024  # of the square matrices
GPU_COPY_BYTES, CPU_COPY_BYTES = 2**30, 2**28  # far beyond any cache
HOST_COPY_BYTES = 2**28
DRAWN_BYTES = 2**20  # of what is copied; the rest repeats them


def measure(device: torch.device) -> MeasuredPeaks:
    """Matmul throughput per type, copy bandwidths and launch time of `device`; about three seconds."""
    # Matrices are random: zeros draw less power, and so run faster on a GPU.
    clock = Clock(device)
    if device.type == "cuda":
        return MeasuredPeaks(
            tflops=_gpu_matmuls(device, clock),
            bandwidth_bytes_per_s=_copy_rate(device, GPU_COPY_BYTES, clock),
            pinned_copy_bytes_per_s=_upload_rate(device, clock, pinned=True),
            pageable_copy_bytes_per_s=_upload_rate(device, clock, pinned=False),
            launch_us=1e6 * best_burst_seconds(lambda _: torch.cuda._sleep(0), clock),  # from one kernel to the next
        )
    matrices = {"fp32": torch.float32} | ({} if host.why_no_bf16() else {"bf16": torch.bfloat16})
    return MeasuredPeaks(
        tflops={name: _matmul_tflops(device, dtype, CPU_SIDE, clock) for name, dtype in matrices.items()},
        bandwidth_bytes_per_s=_copy_rate(device, CPU_COPY_BYTES, clock),
        pinned_copy_bytes_per_s=None,
        pageable_copy_bytes_per_s=None,
        launch_us=None,
    )


def _gpu_matmuls(device: torch.device, clock: Clock) -> dict[str, float]:
    tflops = {}
    for name, precision in {"fp32": "ieee", "tf32": "tf32"}.items():
        with _fp32_precision(precision):
            tflops[name] = _matmul_tflops(device, torch.float32, GPU_SIDE, clock)
    for name, dtype in {"fp16": torch.float16, "bf16": torch.bfloat16}.items():
        tflops[name] = _matmul_tflops(device, dtype, GPU_SIDE, clock)
    if has_compute(device, FP8):
        product = fp8_matmul(*(_random(GPU_SIDE, device, torch.float8_e4m3fn) for _ in range(2)))
        tflops["fp8"] = 2 * GPU_SIDE**3 / best_burst_seconds(lambda _: product(), clock) / 1e12
    return tflops


@contextmanager
def _fp32_precision(precision: str) -> Iterator[None]:
    kept = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = kept


def _random(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(side, side, device=device).to(dtype)


def _matmul_tflops(device: torch.device, dtype: torch.dtype, side: int, clock: Clock) -> float:
    left, right = _random(side, device, dtype), _random(side, device, dtype)
    out = torch.empty(side, side, device=device, dtype=dtype)
    return 2 * side**3 / best_burst_seconds(lambda _: torch.matmul(left, right, out=out), clock) / 1e12


def fp8_matmul(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """Return a call that multiplies e4m3 `left` [rows, inner] by `right` [columns, inner] transposed, into fp16."""
    # cuBLASLt takes the second operand in column-major order alone.
    columns, scale = right.t(), torch.ones((), device=left.device)
    return lambda: torch._scaled_mm(
        left, columns, scale_a=scale, scale_b=scale, out_dtype=torch.float16, use_fast_accum=True
    )


def _copy_rate(device: torch.device, size_bytes: int, clock: Clock) -> float:
    """Read plus write, bytes per second."""
    drawn = torch.randint(0, 255, (DRAWN_BYTES,), dtype=torch.uint8, device=device)  # a CPU draws 40 MB a second
    source = drawn.repeat(size_bytes // DRAWN_BYTES)
    target = torch.empty_like(source)
    return 2 * size_bytes / best_burst_seconds(lambda _: target.copy_(source), clock)


def _upload_rate(device: torch.device, clock: Clock, pinned: bool) -> float:
    """Host to device, bytes per second."""
    source = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=pinned).fill_(1)
    target = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, device=device)
    return HOST_COPY_BYTES / best_burst_seconds(lambda _: target.copy_(source, non_blocking=pinned), clock)
