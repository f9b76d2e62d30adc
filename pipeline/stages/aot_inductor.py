"""AOTInductor: the network in half precision compiled ahead of time into a package, and run from that package."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
import torch._inductor.metrics

from pipeline.compiler.batch import IN_WORDS
from pipeline.compiler.half import short
from pipeline.compiler.inductor import count_bytes
from pipeline.compiler.input_forms import for_these_alone, form_of
from pipeline.compiler.network_calls import allow_tf32
from pipeline.errors import first_line
from pipeline.records.run_record import CompileFacts, Execution, Order
from pipeline.stages.api import Runner, StageError, Traffic, Workload, no_traffic
from pipeline.stages.common.aot_loading import load_package
from pipeline.stages.common.aot_package import build_package, cold_start, package_compiler
from pipeline.stages.common.inductor import check_possible, own_cache
from pipeline.stages.common.precision import Dtype, half_dtype, half_net, why_fp32

PACKAGE = "package.pt2"
CASTS = "casts.txt"  # what is said of them, beside the package


def build(
    workload: Workload,
    *,
    dtype: Dtype | Literal["fp32"] = "auto",
    freezing: bool | None = None,
    max_autotune: bool = False,
    measure_cold_start: bool = True,
) -> Runner:
    """Export, compile into a package, load it.

    Args:
        workload: gives the network and the folder.
        dtype: "fp32", "fp16", "bf16", or "auto": fp16 on a GPU, bf16 on a CPU with units for it, else fp32.
        freezing: fold what depends on weights alone; None is on a CPU, whose library then packs them.
        max_autotune: let Inductor time its candidates.
        measure_cold_start: have a fresh process load the package and answer once.

    Raises:
        Skip: a CPU run without a C++ compiler.
        StageError: torch.export or Inductor can't take the net.
    """
    check_possible(device := workload.device)
    precision = torch.float32 if dtype == "fp32" else half_dtype(dtype, device)
    allow_tf32(device.type == "cuda")
    layout = workload.layout_choice.take()
    cache, path = own_cache(workload.caches, cold := workload.earlier is None), workload.caches / PACKAGE
    frozen = freezing if freezing is not None else device.type != "cuda"
    made = cold or not path.exists()
    traffic = compiled(workload, path, precision, frozen, max_autotune) if made else no_traffic
    details: dict[str, object] = why_fp32(precision) | (package_compiler().details if made else {})
    if cold and measure_cold_start:
        details |= cold_start(path, device.type, [*workload.inputs[0]]).details
    return Runner(
        for_these_alone(load_package(path), [form_of(part) for part in workload.inputs[0]]),
        description=description(precision, frozen, max_autotune, layout) + casts_of(path),
        execution=replace(execution(precision, dtype == "fp32", device), layout=layout),
        details=details | {"package_bytes": path.stat().st_size},
        compile_facts=lambda: compile_facts(cache),
        save=lambda folder: [Path(shutil.copyfile(path, folder / PACKAGE))],
        traffic=traffic,
    )


def compiled(
    workload: Workload, path: Path, precision: torch.dtype, freezing: bool, max_autotune: bool
) -> Callable[..., Traffic | None]:
    """Write the package, and what is said of casts; what a call moves through memory, by Inductor's own count.

    Raises:
        StageError: torch.export or Inductor can't take the net.
    """
    count_bytes()
    torch.backends.cudnn.benchmark = True
    workload.progress("compiling ahead of time")
    try:
        model = half_net(workload, precision)
        build_package(model, [*workload.inputs[0]], path, freezing, max_autotune)
        path.with_name(CASTS).write_text(model.and_casts, encoding="utf-8")  # a build from caches makes no such network
    except Exception as error:  # torch.export and Inductor raise many kinds, the network's own among them
        raise StageError(f"no package of this network: {first_line(error)}", "unsupported") from error
    moved = int(torch._inductor.metrics.num_bytes_accessed)
    return lambda *_: (moved, "Inductor")


def description(precision: torch.dtype, freezing: bool, max_autotune: bool, layout: Order) -> str:
    """Return what runs, in a line."""
    how = ", ".join([*["freezing"] * freezing, *["max-autotune"] * max_autotune, short(precision)])
    return f"AOTInductor, {how} weights, {IN_WORDS[layout]}, run from its package"


def casts_of(package: Path) -> str:
    """Return what is said of a package's casts."""
    return package.with_name(CASTS).read_text(encoding="utf-8")


def execution(precision: torch.dtype, fp32: bool, device: torch.device) -> Execution:
    """Return how the package runs; on a GPU fp32 is TF32, as the stage allows it."""
    tf32 = fp32 and device.type == "cuda"
    return Execution("tf32" if tf32 else short(precision), {}, "NHWC", "AOTInductor", captured=False, fuses=True)


def compile_facts(cache: Path) -> CompileFacts:
    """Return what was compiled in this process; `cache` is Inductor's folder."""
    return CompileFacts(
        generated_kernels=int(torch._inductor.metrics.generated_kernel_count),
        cache_bytes=sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()),
    )
