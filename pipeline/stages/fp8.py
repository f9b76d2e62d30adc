"""The rewritten net in fp8 (e4m3), scales calibrated on the user's images, sensitive layers kept in fp16."""

import math
from typing import Any

import torch

from pipeline.compiler.calibrate import Budget, keep_for, largest, mixed, quantisable
from pipeline.compiler.graph import Graph, UnsupportedError
from pipeline.compiler.kernel_layer import Backend
from pipeline.compiler.lowering import Program
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.quantize import READS_FP8, Precision
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import supported
from pipeline.measure.torch_device import vendor
from pipeline.stages.api import Runner, Skip, Workload
from pipeline.stages.common.rewritten_net import (
    executed,
    half_instead,
    rewritten,
    runner,
    switch_on_the_library,
    tuned,
    tuner_in,
)


def build(
    workload: Workload,
    *,
    calibration_images: int = 32,
    keep_fp16: str | list[str] = "auto",
    budget: float = 7e-4,
    error_budget: float = 5e-2,
    tuning_folder: str | None = None,
) -> Runner:
    """Trace, rewrite, calibrate, decide what stays in fp16, measure each layer's candidates, capture.

    Args:
        workload: gives the net, and the images that the scales come from.
        calibration_images: how many images the scales come from.
        keep_fp16: names of layers, "none", or "auto": as many as it takes to stay within the budget.
        budget: for "auto", the share of pixels that may change their class against fp16.
        error_budget: for "auto", the relative L2 by which the logits may differ from fp16's.
        tuning_folder: keeps what was measured, for the next build; null is ~/.cache/unet-ladder.

    Raises:
        Skip: no CUDA GPU, or one without fp8 products or without what the kernels need.
        ValueError: a layer of `keep_fp16` isn't there.
    """
    if not is_cuda(workload.device.type):
        raise Skip("the project's fp8 kernels need a CUDA GPU")
    if reason := supported(torch.cuda.get_device_capability(workload.device), torch.float8_e4m3fn, vendor()):
        raise Skip(reason)
    switch_on_the_library()
    try:
        graph, passes = rewritten(workload)
    except UnsupportedError as error:
        return half_instead(workload, str(error))
    precision, details = calibrated(graph, workload, calibration_images, keep_fp16, Budget(budget, error_budget))
    tuner = tuner_in(tuning_folder)
    program = tuned(Program(graph, precision, workload.device), workload.batches[0], tuner, None)
    details |= {"passes": passes}
    kept, any_fp8 = details["kept_fp16"], layers_in_fp8(graph, precision) > 0
    execution = executed(program, "fp8", kept) if any_fp8 else executed(program, "fp16")
    return runner(workload, program, details, None, stored(graph, precision, kept), execution, tuner.measured)


def calibrated(
    graph: Graph, workload: Workload, images: int, keep_fp16: str | list[str], budget: Budget
) -> tuple[Precision, dict[str, Any]]:
    """Which values are stored in fp8 and with which scales, and what the record should keep of how that came about."""
    batches = workload.batches[: math.ceil(images / workload.shape[0])]
    with torch.inference_mode():
        half = Program(graph, Precision(), workload.device, dict.fromkeys(convolutions(graph), Backend.LIBRARY))
        seen = largest(half, batches)
        kept, gains = layers_to_keep(graph, seen, workload, keep_fp16, budget)
    precision = mixed(graph, seen, kept, "fp16")
    details = {"kept_fp16": kept, "sensitivity": gains, "stored_fp8": sorted(precision.fp8_values), "largest": seen}
    return precision, details


def stored(graph: Graph, precision: Precision, kept: list[str]) -> str:
    """How many layers read fp8, in words."""
    reading = layers_in_fp8(graph, precision)
    return f"fp8 in {reading} layers ({len(kept)} kept in fp16)" if reading else "fp16 (no layer reads fp8)"


def layers_in_fp8(graph: Graph, precision: Precision) -> int:
    """How many layers read fp8."""
    return sum(node.op in READS_FP8 and node.inputs[0] in precision.fp8_values for node in graph.nodes)


def convolutions(graph: Graph) -> list[str]:
    """The kernels' operations that have weights."""
    return [node.name for node in graph.nodes if node.op in BY_NAME and BY_NAME[node.op].pack is not None]


def layers_to_keep(
    graph: Graph, seen: dict[str, float], workload: Workload, asked: str | list[str], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """What stays in fp16, and each layer's sensitivity where it was measured.

    Raises:
        ValueError: no such layer.
    """
    if asked == "none":
        return [], {}
    if asked != "auto":
        names = [asked] if isinstance(asked, str) else list(asked)
        if strange := sorted(set(names) - set(quantisable(graph))):
            raise ValueError(f"keep_fp16={strange[0]}: no such layer; choose among {', '.join(quantisable(graph))}")
        return names, {}

    def make(precision: Precision) -> Program:
        return Program(graph, precision, workload.device)  # by the references: no mix of types needs a tile then

    batches = workload.batches[: workload.verified]
    return keep_for(graph, make, lambda kept: mixed(graph, seen, kept, "fp16"), batches, budget)
