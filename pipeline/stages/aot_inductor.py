"""AOTInductor: the network in half precision compiled ahead of time into a package, and run from that package."""

import shutil
from pathlib import Path
from typing import Literal

import torch
import torch._inductor.metrics

from pipeline.compiler.batch import IN_WORDS
from pipeline.compiler.half import short
from pipeline.compiler.inductor import count_bytes
from pipeline.compiler.input_forms import for_these_alone, form_of
from pipeline.compiler.network_calls import allow_tf32
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.aot_loading import load_package
from pipeline.stages.common.aot_package import build_package, cold_start, package_compiler
from pipeline.stages.common.inductor import bytes_in, check_possible, own_cache
from pipeline.stages.common.precision import Dtype, half_dtype, half_net, why_fp32

PACKAGE = "package.pt2"
SAID = "package.txt"  # its description, beside the package


def build(
    workload: Workload,
    *,
    dtype: Dtype | Literal["fp32"] = "auto",
    freezing: bool | None = None,
    max_autotune: bool = False,
    measure_cold_start: bool = True,
) -> Runner:
    """Export, compile into a package, load it."""
    check_possible(device := workload.device)
    precision = torch.float32 if dtype == "fp32" else half_dtype(dtype, device)
    allow_tf32(device.type == "cuda")
    layout = workload.layout_choice.take()
    cache, path = own_cache(workload.caches, cold := workload.earlier is None), workload.caches / PACKAGE
    said, details, moved = path.with_name(SAID), dict[str, object](why_fp32(precision)), None
    if cold or not path.exists():
        count_bytes()
        torch.backends.cudnn.benchmark = True
        workload.progress("compiling ahead of time")
        model, frozen = half_net(workload, precision), device.type != "cuda" if freezing is None else freezing
        is_frozen = build_package(model, [*workload.inputs[0]], path, frozen, max_autotune)
        way = "freezing, " * is_frozen + "without freezing, which makes it wrong, " * (frozen and not is_frozen)
        way += "max-autotune, " * max_autotune
        text = (
            f"AOTInductor, {way}{short(precision)} weights, {IN_WORDS[layout]}, run from its package{model.and_casts}"
        )
        said.write_text(text, encoding="utf-8")  # for a build from caches, which makes no such network
        details |= package_compiler().details
        moved = int(torch._inductor.metrics.num_bytes_accessed)
    if cold and measure_cold_start:
        details |= cold_start(path, device.type, [*workload.inputs[0]]).details
    computes = "tf32" if dtype == "fp32" and device.type == "cuda" else short(precision)
    return Runner(
        for_these_alone(load_package(path), [form_of(part) for part in workload.inputs[0]]),
        description=said.read_text(encoding="utf-8"),
        execution=Execution(computes, {}, layout, "AOTInductor", captured=False, fuses=True),
        details=details | {"package_bytes": path.stat().st_size},
        compile_facts=lambda: CompileFacts(
            generated_kernels=int(torch._inductor.metrics.generated_kernel_count), cache_bytes=bytes_in(cache)
        ),
        save=lambda folder: [Path(shutil.copyfile(path, folder / PACKAGE))],
        traffic=lambda *_: None if moved is None else (moved, "Inductor"),
    )
