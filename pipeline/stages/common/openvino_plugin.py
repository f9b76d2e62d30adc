"""OpenVINO's plugin for CPUs: its settings, and in which precision it runs a net by its own account."""

from collections import Counter
from types import ModuleType
from typing import Any

import torch

from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Skip, StageError

EXTRA = "openvino"
ELEMENT_TYPES: dict[str, Precision] = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
MATRIX_WORK = ("Convolution", "Deconvolution", "MatMul", "FullyConnected")  # layer types of the CPU plugin


def chosen(dtype: str, why_no_bf16: str) -> Precision:
    """The precision that is asked for of a CPU, of which it is said why it has no units for bf16, where it has none.

    Raises:
        Skip: bf16 without units for it: the plugin would emulate it.
    """
    if dtype == "bf16" and why_no_bf16:
        raise Skip(f"{why_no_bf16}, and OpenVINO would emulate it; stage.dtype=fp32 runs here")
    known: dict[str, Precision] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8"}
    return known.get(dtype, "fp32" if why_no_bf16 else "bf16")


def settings(hint: str) -> dict[str, str | int]:
    """The plugin's: its precision, single calls, and torch's number of threads."""
    threads = torch.get_num_threads()
    return {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}


def hint_of(asked: Precision) -> str:
    """The plugin's name of a precision; int8 is in the model, beside fp32."""
    return "bf16" if asked == "bf16" else "f32"


def said(openvino: ModuleType, asked: Precision) -> str:
    """Who runs the net, in what."""
    return f"OpenVINO {openvino.__version__.split('-')[0]}, CPU plugin, {asked}"


def kernels_of(compiled: Any) -> list[tuple[str, str, str]]:
    """Of each layer with matrix work as the plugin runs it: the nodes it came from, its type, its precision."""
    found = []
    for node in compiled.get_runtime_model().get_ops():
        told = node.get_rt_info()
        kind = str(told["layerType"].value)
        if kind in MATRIX_WORK:
            names = str(told["originalLayersNames"].value)
            found.append((names, kind, str(told["runtimePrecision"].value)))
    return found


def counted(kernels: list[tuple[str, str, str]]) -> dict[str, int]:
    """How many layers of each type and precision."""
    return dict(Counter(f"{kind} {precision}" for _, kind, precision in kernels))


def observed(kernels: list[tuple[str, str, str]], layers: dict[str, str], asked: Precision) -> Execution:
    """How the plugin runs the net, by its own account: most layers in the precision that was asked for.

    Raises:
        StageError: none is.
    """
    precisions = {names: ELEMENT_TYPES.get(precision) for names, _, precision in kernels}
    if asked not in precisions.values():
        runs = ", ".join(sorted(map(str, set(precisions.values()))))
        raise StageError(f"asked for {asked}, OpenVINO runs {runs}", "wrong device")
    ran_in = {node: found for names, found in precisions.items() for node in names.split(",")}
    found = {layer: ran_in.get(node) for layer, node in layers.items()}
    others = {layer: other for layer, other in found.items() if other is not None and other != asked}
    return Execution(asked, others, None, "OpenVINO CPU", captured=False, fuses=True)
