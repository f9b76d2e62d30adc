"""OpenVINO's plugin for CPUs: models, settings, calls, and the precision in which it runs a network."""

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, Skip, StageError, Workload, no_traffic

# Keeps a number of the user below the home folder and reports to Google Analytics; its callers work without it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

EXTRA = "openvino"
ELEMENT_TYPES: dict[str, Precision] = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
MATRIX_WORK = ("Convolution", "Deconvolution", "MatMul", "FullyConnected")  # layer types of the CPU plugin
Kernels = list[tuple[str, str, str]]  # of each layer: the nodes it came from, its type, its precision


def chosen(dtype: str, why_no_bf16: str) -> Precision:
    """Return the precision to run in: "auto" is fp32 on a CPU without units for bf16, for the reason given."""
    if dtype == "bf16" and why_no_bf16:
        raise Skip(f"{why_no_bf16}, and OpenVINO would emulate it; stage.dtype=fp32 runs here")
    known: dict[str, Precision] = {"fp32": "fp32", "bf16": "bf16"}
    return known.get(dtype, "fp32" if why_no_bf16 else "bf16")


def settings(asked: Precision) -> dict[str, str | int]:
    """Return the plugin's settings: its precision, single calls, and torch's number of threads."""
    hint = "bf16" if asked == "bf16" else "f32"  # int8 is in the model, beside fp32
    threads = torch.get_num_threads()
    return {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}


def converted(openvino: ModuleType, workload: Workload) -> tuple[Any, dict[str, str]]:
    """Export and convert the network; return the model and, by module path, the name of each convolution's node."""
    from pipeline.stages.common.onnx_models import export, layers_of

    path = workload.folder / "fp32.onnx"
    export(workload.model, torch.float32, workload.batches[0], path)
    return openvino.convert_model(str(path)), layers_of(path, "Conv", "ConvTranspose")


class Compiled:
    """A model compiled for the CPU: takes a batch [batch, channels, height, width], gives [batch, classes, H, W]."""

    # Input and output are torch's memory: nothing is copied but what the plugin itself reorders.

    def __init__(self, openvino: ModuleType, model: object, asked: Precision = "fp32") -> None:
        self.openvino, self.compiled = openvino, openvino.compile_model(model, "CPU", settings(asked))
        self.request = self.compiled.create_infer_request()
        self.logits = torch.empty(tuple(self.compiled.output(0).shape))
        self.request.set_output_tensor(openvino.Tensor(self.logits.numpy(), shared_memory=True))

    def __call__(self, batch: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of an fp32 batch; the next call overwrites them."""
        self.request.set_input_tensor(self.openvino.Tensor(batch.numpy(), shared_memory=True))
        self.request.infer()
        return self.logits


def stage_of(openvino: ModuleType, model: object, layers: dict[str, str], asked: Precision) -> Runner:
    """Compile a model, which must run in the precision `asked`; `layers` are module paths to names of nodes."""
    run = Compiled(openvino, model, asked)
    kernels = kernels_of(run.compiled)
    devices = [str(name) for name in run.compiled.get_property("EXECUTION_DEVICES")]

    def save(folder: Path) -> list[Path]:
        openvino.save_model(model, str(folder / "openvino.xml"), compress_to_fp16=False)
        return [folder / "openvino.xml", folder / "openvino.bin"]

    return Runner(
        run,
        description=f"OpenVINO {openvino.__version__.split('-')[0]}, CPU plugin, {asked}",
        execution=observed(kernels, layers, asked),
        details={"devices": devices, "kernels": Counter(f"{kind} {precision}" for _, kind, precision in kernels)},
        save=save,
        traffic=no_traffic,
    )


def kernels_of(compiled: Any) -> Kernels:
    """Return the layers with matrix work as the plugin runs them."""
    kernels = []
    for node in compiled.get_runtime_model().get_ops():
        told = node.get_rt_info()
        kind = str(told["layerType"].value)
        if kind in MATRIX_WORK:
            kernels.append((str(told["originalLayersNames"].value), kind, str(told["runtimePrecision"].value)))
    return kernels


def observed(kernels: Kernels, layers: dict[str, str], asked: Precision) -> Execution:
    """Return how the plugin says that it runs the network."""
    precisions = {names: ELEMENT_TYPES.get(precision) for names, _, precision in kernels}
    if asked not in precisions.values():
        runs = ", ".join(sorted(map(str, set(precisions.values()))))
        raise StageError(f"asked for {asked}, OpenVINO runs {runs}", "wrong device")
    ran_in = {node: precision for names, precision in precisions.items() for node in names.split(",")}
    by_layer = {layer: ran_in.get(node) for layer, node in layers.items()}
    others = {layer: other for layer, other in by_layer.items() if other is not None and other != asked}
    return Execution(asked, others, None, "OpenVINO CPU", captured=False, fuses=True)
